"""SAC on Pendulum: a tanh-normal actor, two Q networks and an evaluation with deterministic actions."""

import torch
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, RewardScaling, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

FRAMES, BATCH = 1000, 50


def make_env(seed: int) -> TransformedEnv:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardScaling(0.0, 0.1), StepCounter(100), RewardSum()))
    env.set_seed(seed)
    return env


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env, test_env = make_env(seed), make_env(seed + 1)
    spec = env.action_spec

    network = nn.Sequential(MLP(3, 2, num_cells=[64, 64], activation_class=nn.ReLU), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
        return_log_prob=False,
    )
    qvalue = ValueOperator(MLP(4, 1, num_cells=[64, 64], activation_class=nn.ReLU), in_keys=["action", "observation"])

    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=FRAMES, init_random_frames=200)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=64)
    loss_module = SACLoss(actor, qvalue, num_qvalue_nets=2, action_spec=spec, loss_function="l2")
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, tau=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for data in collector:
        buffer.extend(data)
        for _ in range(5):
            losses = loss_module(buffer.sample())
            loss = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_update.step()
        done = data["next", "done"]
        results += [loss.item(), *data["next", "episode_reward"][done].tolist()]
    collector.shutdown()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        test = test_env.rollout(100, actor)
    return [*results, test["next", "episode_reward"][-1].item()]


if __name__ == "__main__":
    print(main(seed=0))
