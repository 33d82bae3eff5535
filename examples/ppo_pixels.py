"""PPO on images of CartPole, with a video of the result: `python examples/ppo_pixels.py`."""

from __future__ import annotations

import argparse
from functools import partial

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import OneHotCategorical

from vecrl.envs import EnvBase, GymEnv, ParallelEnv
from vecrl.envs.transforms import CatFrames, Compose, Crop, GrayScale, Resize, RewardSum, ToTensorImage, TransformedEnv
from vecrl.record import CSVLogger, VideoRecorder


def images(*first: VideoRecorder) -> Compose:
    """Returns transforms from rendered images to the last three gray frames, `[3, 40, 80]` float32 in [0, 1]."""
    center = Crop(w=160, h=320, top=160, left=140)
    return Compose(*first, ToTensorImage(), center, GrayScale(), Resize(40, 80), CatFrames(3, dim=-3), RewardSum())


class Agent(nn.Module):
    """A policy and a value function with common convolutions."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 3 * 8, 128), nn.ReLU(),
        )  # fmt: skip
        self.logits, self.value = nn.Linear(128, 2), nn.Linear(128, 1)

    def act(self, pixels: Tensor) -> tuple[OneHotCategorical, Tensor]:
        ink = 1 - pixels  # the background is white
        features = self.features(ink.reshape(-1, *ink.shape[-3:])).reshape(*ink.shape[:-3], -1)
        return OneHotCategorical(logits=self.logits(features)), self.value(features)

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        choice, value = self.act(td["pixels"])
        action = choice.sample()
        log_prob = choice.log_prob(action).unsqueeze(-1)
        return td.update({"action": action.long(), "log_prob": log_prob, "value": value})


def advantages(rollout: TensorDictBase, next_value: Tensor, gamma: float = 0.99, decay: float = 0.95) -> Tensor:
    """Returns generalised advantage estimates `[envs, time, 1]`."""
    next_td = rollout["next"]
    delta = next_td["reward"] + gamma * next_value * ~next_td["terminated"] - rollout["value"]
    estimate, estimates = torch.zeros_like(delta[:, 0]), []
    for t in reversed(range(delta.shape[1])):
        estimate = delta[:, t] + gamma * decay * estimate * ~next_td["done"][:, t]
        estimates.append(estimate)
    return torch.stack(estimates[::-1], 1)


def learn(agent: Agent, optimizer: torch.optim.Optimizer, rollout: TensorDictBase, epochs: int = 4) -> None:
    """Runs several epochs over a rollout, in minibatches."""
    with torch.no_grad():
        gain = advantages(rollout, agent.act(rollout["next", "pixels"])[1])
    data = rollout.select("pixels", "action", "log_prob")
    data = data.set("gain", gain).set("target", gain + rollout["value"]).reshape(-1)
    for _ in range(epochs):
        for batch in data[torch.randperm(len(data))].split(128):
            choice, value = agent.act(batch["pixels"])
            ratio = (choice.log_prob(batch["action"]).unsqueeze(-1) - batch["log_prob"]).exp()
            scaled = (batch["gain"] - batch["gain"].mean()) / (batch["gain"].std() + 1e-8)
            policy_loss = -torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
            value_loss = (value - batch["target"]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.05 * value_loss - 0.01 * choice.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


@torch.no_grad()
def record(agent: Agent, make_env: partial[EnvBase], steps: int) -> float:
    """Plays one episode, records it in logs/ppo_pixels/videos, and returns its return."""
    logger = CSVLogger("ppo_pixels", log_dir="logs", video_format="mp4")
    env = TransformedEnv(make_env(), images(VideoRecorder(logger, "episode", skip=1)))
    episode = env.rollout(steps, agent)
    env.close()  # which completes the video
    return float(episode["next", "episode_reward"][-1])


def main() -> None:
    """Trains the agent, prints the returns of the episodes that ended, and records an episode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=64, help="steps of each environment between two updates")
    parser.add_argument("--updates", type=int, default=150)
    options = parser.parse_args()

    torch.manual_seed(0)
    make_env = partial(GymEnv, "CartPole-v1", from_pixels=True, pixels_only=True, frame_skip=2)
    env = TransformedEnv(ParallelEnv(options.envs, make_env), images())
    env.set_seed(0)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), 1e-3)
    root: TensorDict = env.reset()
    for update in range(1, options.updates + 1):
        with torch.no_grad():
            rollout = env.rollout(options.steps, agent, auto_reset=False, tensordict=root, break_when_any_done=False)
        root = env.maybe_reset(env.step_mdp(rollout[:, -1].clone()))
        learn(agent, optimizer, rollout)
        ended = rollout["next", "done"]
        if ended.any():
            returns = rollout["next", "episode_reward"][ended]
            print(f"update {update}: {len(returns)} episodes, mean return {returns.mean():.1f}", flush=True)
    env.close()
    print(f"return {record(agent, make_env, 500):.0f}; its video is in logs/ppo_pixels/videos")


if __name__ == "__main__":
    main()
