"""PPO on two Pendulums in a SerialEnv: normalized observations, GAE and clipped updates on minibatches."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import Compose, DoubleToFloat, GymEnv, ObservationNorm, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

FRAMES, BATCH, EPOCHS = 2000, 500, 4


def make_network(out_features: int, *tail: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out_features), *tail)


def make_env(seed: int, loc: torch.Tensor | None = None, scale: torch.Tensor | None = None) -> TransformedEnv:
    norm = ObservationNorm(loc, scale, in_keys=["observation"])
    batch = SerialEnv(2, lambda: GymEnv("Pendulum-v1"))
    env = TransformedEnv(batch, Compose(norm, DoubleToFloat(), StepCounter()))
    check_env_specs(batch)
    env.set_seed(seed)
    torch.manual_seed(seed)
    if loc is None:
        norm.init_stats(num_iter=100, reduce_dim=(0, 1), cat_dim=1)
    return env


def main(seed: int) -> list[float]:
    env = make_env(seed)

    actor_module = TensorDictModule(make_network(2, NormalParamExtractor()), ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(
        actor_module,
        in_keys=["loc", "scale"],
        spec=env.action_spec_unbatched,
        distribution_class=TanhNormal,
        distribution_kwargs={
            "low": env.action_spec_unbatched.space.low,
            "high": env.action_spec_unbatched.space.high,
        },
        return_log_prob=True,
    )
    critic = ValueOperator(make_network(1), in_keys=["observation"])
    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=FRAMES, split_trajs=False)
    buffer = ReplayBuffer(storage=LazyTensorStorage(BATCH), sampler=SamplerWithoutReplacement(), batch_size=100)
    advantage = GAE(gamma=0.95, lmbda=0.9, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_bonus=True, entropy_coeff=1e-3)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for data in collector:
        for _ in range(EPOCHS):
            advantage(data)
            buffer.extend(data.reshape(-1))
            for sample in buffer:
                losses = loss_module(sample)
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
                optimizer.step()
        results += [loss.item(), data["next", "reward"].mean().item()]
    collector.shutdown()
    test_env = make_env(seed + 1, env.transform[0].loc, env.transform[0].scale)
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        returns = test_env.rollout(200, actor, break_when_any_done=False)["next", "reward"].sum(1)
    return results + returns.flatten().tolist()


if __name__ == "__main__":
    print(main(seed=0))
