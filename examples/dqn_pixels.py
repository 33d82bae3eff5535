"""DQN on images of CartPole, with a video of the result: `python examples/dqn_pixels.py`."""

from __future__ import annotations

import argparse
import copy
from functools import partial

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional

from vecrl.envs import EnvBase, GymEnv, ParallelEnv
from vecrl.envs.transforms import CatFrames, Compose, Crop, GrayScale, Resize, RewardSum, ToTensorImage, TransformedEnv
from vecrl.record import CSVLogger, VideoRecorder


def images(*first: VideoRecorder) -> Compose:
    """Returns transforms from rendered images to the last three gray frames, `[3, 40, 80]` float32 in [0, 1]."""
    center = Crop(w=160, h=320, top=160, left=140)
    return Compose(*first, ToTensorImage(), center, GrayScale(), Resize(40, 80), CatFrames(3, dim=-3), RewardSum())


class QNetwork(nn.Sequential):
    """Predicts the return of each action from images `[n, 3, 40, 80]`."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 3 * 8, 128), nn.ReLU(), nn.Linear(128, 2),
        )  # fmt: skip

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(1 - pixels)  # the background is white


class Memory:
    """The last `capacity` transitions, in memory that is allocated once. Images are stored as bytes."""

    def __init__(self, capacity: int):
        self.capacity, self.num_added = capacity, 0
        self.data: TensorDictBase | None = None

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def add(self, step: TensorDictBase) -> None:
        next_td = step["next"]
        transitions = TensorDict(
            pixels=_to_bytes(step["pixels"]),
            next_pixels=_to_bytes(next_td["pixels"]),
            action=step["action"].bool(),
            reward=next_td["reward"],
            terminated=next_td["terminated"],
            batch_size=step.batch_size,
        )
        if self.data is None:
            self.data = torch.empty_like(transitions[:1].expand(self.capacity))
        self.data[(self.num_added + torch.arange(len(transitions))) % self.capacity] = transitions
        self.num_added += len(transitions)

    def sample(self, size: int) -> TensorDictBase:
        assert self.data is not None
        return self.data[torch.randint(len(self), (size,))]


def _to_bytes(pixels: Tensor) -> Tensor:
    return (pixels * 255).round().byte()


def loss(network: nn.Module, target: nn.Module, batch: TensorDictBase, gamma: float = 0.99) -> Tensor:
    """Returns the loss of double DQN: `network` chooses the next action, and `target` predicts its return."""
    pixels, next_pixels = batch["pixels"] / 255, batch["next_pixels"] / 255
    with torch.no_grad():
        best = network(next_pixels).argmax(-1, keepdim=True)
        future = target(next_pixels).gather(-1, best)
        expected = batch["reward"] + gamma * future * ~batch["terminated"]
    predicted = network(pixels)[batch["action"]].unsqueeze(-1)
    return functional.smooth_l1_loss(predicted, expected)


@torch.no_grad()
def act(td: TensorDictBase, network: nn.Module, epsilon: float = 0.0) -> TensorDictBase:
    """Writes the best actions into `td`; each is random with probability `epsilon`."""
    best = network(td["pixels"].reshape(-1, *td["pixels"].shape[-3:])).argmax(-1)
    random = torch.randint(2, best.shape)
    action = torch.where(torch.rand(best.shape) < epsilon, random, best)
    return td.set("action", functional.one_hot(action, 2).reshape(*td.batch_size, 2))


def record(network: nn.Module, make_env: partial[EnvBase], steps: int) -> float:
    """Plays one episode, records it in logs/dqn_pixels/videos, and returns its return."""
    logger = CSVLogger("dqn_pixels", log_dir="logs", video_format="mp4")
    env = TransformedEnv(make_env(), images(VideoRecorder(logger, "episode", skip=1)))
    episode = env.rollout(steps, partial(act, network=network))
    env.close()  # which completes the video
    return float(episode["next", "episode_reward"][-1])


def main() -> None:
    """Trains the network, prints the returns of the last episodes, and records an episode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4000, help="steps of each environment")
    parser.add_argument("--warmup", type=int, default=1000, help="transitions before the first update")
    options = parser.parse_args()

    torch.manual_seed(0)
    make_env = partial(GymEnv, "CartPole-v1", from_pixels=True, pixels_only=True, frame_skip=2)
    env = TransformedEnv(ParallelEnv(options.envs, make_env), images())
    env.set_seed(0)
    network, memory = QNetwork(), Memory(30_000)
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), 5e-4)
    root, returns = env.reset(), []
    for number in range(1, options.steps + 1):
        epsilon = max(0.05, 1 - 2 * number / options.steps)
        step, root = env.step_and_maybe_reset(act(root, network, epsilon))
        memory.add(step)
        returns += step["next", "episode_reward"][step["next", "done"]].tolist()
        if memory.num_added >= options.warmup:
            for _ in range(4):
                optimizer.zero_grad()
                loss(network, target, memory.sample(64)).backward()
                optimizer.step()
        if number % 100 == 0:
            target.load_state_dict(network.state_dict())
        if number % max(options.steps // 20, 1) == 0:
            last = returns[-20:]
            print(f"step {number}: mean return {sum(last) / max(len(last), 1):.1f}, {epsilon=:.2f}", flush=True)
    env.close()
    print(f"return {record(network, make_env, 500):.0f}; its video is in logs/dqn_pixels/videos")


if __name__ == "__main__":
    main()
