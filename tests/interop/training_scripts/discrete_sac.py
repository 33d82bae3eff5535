"""Discrete SAC on CartPole: indices as actions, two Q networks with one value per action."""

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, DTypeCastTransform, GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, SafeModule, SafeProbabilisticModule, SafeProbabilisticTensorDictSequential
from torchrl.objectives import DiscreteSACLoss, SoftUpdate

FRAMES, BATCH = 1000, 50


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = TransformedEnv(
        GymEnv("CartPole-v1", categorical_action_encoding=True),
        Compose(
            StepCounter(200),
            RewardSum(),
            DTypeCastTransform(torch.int64, torch.float32, in_keys=["step_count"], out_keys=["time"]),
        ),
    )
    env.set_seed(seed)
    num_actions = env.action_spec.space.n

    logits = MLP(4, num_actions, num_cells=[64, 64], activation_class=nn.ReLU)
    actor = SafeProbabilisticTensorDictSequential(
        SafeModule(logits, in_keys=["observation"], out_keys=["logits"]),
        SafeProbabilisticModule(
            in_keys=["logits"], out_keys=["action"], spec=env.action_spec, distribution_class=Categorical
        ),
    )
    qvalue = TensorDictModule(
        MLP(4, num_actions, num_cells=[64, 64], activation_class=nn.ReLU),
        in_keys=["observation"],
        out_keys=["action_value"],
    )

    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=FRAMES, init_random_frames=100)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=64)
    loss_module = DiscreteSACLoss(actor, qvalue, action_space=env.action_spec, num_actions=num_actions)
    loss_module.make_value_estimator(gamma=0.98)
    target_update = SoftUpdate(loss_module, eps=0.99)
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
        results += [loss.item(), data["time"].mean().item(), *data["next", "episode_reward"][done].tolist()]
    collector.shutdown()
    return results


if __name__ == "__main__":
    print(main(seed=0))
