"""CQL on Pendulum, offline: random actions fill a buffer, then a conservative SAC learns from it."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector, RandomPolicy
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import Compose, DoubleToFloat, GymEnv, RewardScaling, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import CQLLoss, SoftUpdate

FRAMES, UPDATES = 1000, 60


def make_env(seed: int) -> TransformedEnv:
    env = TransformedEnv(
        SerialEnv(2, lambda: TransformedEnv(GymEnv("Pendulum-v1"), RewardScaling(loc=0.0, scale=0.1))),
        Compose(DoubleToFloat(), StepCounter(max_steps=150)),
    )
    env.set_seed(seed)
    return env


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = make_env(seed)
    spec = env.action_spec_unbatched
    collector = Collector(env, RandomPolicy(env.action_spec), frames_per_batch=200, total_frames=FRAMES)
    buffer = ReplayBuffer(storage=LazyTensorStorage(FRAMES), sampler=SamplerWithoutReplacement(), batch_size=64)
    for data in collector:
        buffer.extend(data.reshape(-1))
    collector.shutdown()

    network = nn.Sequential(MLP(3, 2, num_cells=[64, 64], activation_class=nn.ReLU), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=True,
    )
    qvalue = ValueOperator(MLP(4, 1, num_cells=[64, 64], activation_class=nn.ReLU), in_keys=["action", "observation"])
    loss_module = CQLLoss(actor, qvalue, action_spec=spec, num_random=4)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, tau=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for _ in range(UPDATES):
        losses = loss_module(buffer.sample())
        loss = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_cql"] + losses["loss_alpha"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target_update.step()
        results.append(loss.item())
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        returns = make_env(seed).rollout(150, actor)["next", "reward"].sum(1)
    return results + returns.flatten().tolist()


if __name__ == "__main__":
    print(main(seed=0))
