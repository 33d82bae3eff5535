"""DQN on the frames of CartPole: gray, small, four at a time, and rewards that are clipped to their signs."""

import torch
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import (
    CatFrames,
    Compose,
    DoubleToFloat,
    GrayScale,
    GymEnv,
    Resize,
    RewardSum,
    SignTransform,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
)
from torchrl.modules import MLP, ConvNet, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

FRAMES, BATCH = 240, 40


def make_env(seed: int) -> TransformedEnv:
    env = TransformedEnv(
        GymEnv("CartPole-v1", from_pixels=True, pixels_only=True),
        Compose(
            ToTensorImage(),
            GrayScale(),
            Resize(36, 36),
            CatFrames(N=4, dim=-3),
            RewardSum(),
            StepCounter(max_steps=30),
            SignTransform(in_keys=["reward"]),
            DoubleToFloat(),
        ),
    )
    env.set_seed(seed)
    return env


def main(seed: int) -> list[float]:
    torch.manual_seed(seed)
    env = make_env(seed)
    network = nn.Sequential(
        ConvNet(in_features=4, num_cells=[8, 16], kernel_sizes=[8, 4], strides=[4, 2], activation_class=nn.ReLU),
        MLP(in_features=144, out_features=env.action_spec.shape[-1], num_cells=[32], activation_class=nn.ReLU),
    )
    actor = QValueActor(network, in_keys=["pixels"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.1, annealing_num_steps=FRAMES)
    policy = TensorDictSequential(actor, explore)
    collector = Collector(env, policy, frames_per_batch=BATCH, total_frames=FRAMES)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), batch_size=32)
    loss_module = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    loss_module.make_value_estimator(gamma=0.99)
    target_update = HardUpdate(loss_module, value_network_update_interval=2)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3)

    results = []
    for data in collector:
        explore.step(data.numel())
        buffer.extend(data.reshape(-1))
        for _ in range(3):
            loss = loss_module(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target_update.step()
        done = data["next", "done"].squeeze(-1)
        results += [loss.item(), data["pixels"].mean().item()]
        results += data["next", "episode_reward"][done].flatten().tolist()
    collector.shutdown()
    return results


if __name__ == "__main__":
    print(main(seed=0))
