"""PPO with `RolloutWorkers`: each worker steps its environments with a copy of the agent, and returns rollouts."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import gymnasium
import matplotlib
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from vecrl.errors import WorkerCrash
from vecrl.running_stats import RunningStats
from vecrl.vector import Rollout, RolloutWorkers

matplotlib.use("agg")
import matplotlib.pyplot as plt


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for linear, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(linear.weight, scale)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """A Gaussian policy and a value function. Its state includes the normalization, so workers get that too."""

    def __init__(self, env: gymnasium.Env):
        super().__init__()
        obs_size, action_size = env.observation_space.shape[0], env.action_space.shape[0]
        self.critic, self.actor = mlp(obs_size, 1, 1.0), mlp(obs_size, action_size, 0.01)
        self.log_std = nn.Parameter(torch.zeros(action_size))
        self.register_buffer("mean", torch.zeros(obs_size))
        self.register_buffer("std", torch.ones(obs_size))

    def normalize(self, obs: Any) -> Tensor:
        return ((torch.as_tensor(obs, dtype=torch.float32) - self.mean) / self.std).clamp(-10, 10)

    def distribution(self, x: Tensor) -> Normal:
        return Normal(self.actor(x), self.log_std.exp())

    @torch.no_grad()
    def forward(self, obs: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the actions for observations `[k, ...]`, in a worker, and what learning needs of them."""
        x = self.normalize(obs)
        distribution = self.distribution(x)
        action = distribution.sample()
        return action, {"log_prob": distribution.log_prob(action).sum(-1), "value": self.critic(x).squeeze(-1)}

    @torch.no_grad()
    def value(self, obs: np.ndarray) -> Tensor:
        """Returns the values of the last and the final observations of a rollout."""
        return self.critic(self.normalize(obs)).squeeze(-1)


class RewardScale:
    """Divides rewards by the standard deviation of their discounted sums so far."""

    def __init__(self, options: argparse.Namespace):
        self.gamma, self.sums, self.stats = options.gamma, np.zeros(options.envs), RunningStats()

    def __call__(self, rollout: Rollout) -> np.ndarray:
        for reward, done in zip(rollout.reward, rollout.terminated | rollout.truncated, strict=True):
            self.sums = self.gamma * self.sums + reward
            self.stats.update(self.sums)
            self.sums[done] = 0.0
        return rollout.reward / max(float(self.stats.std), 1e-4)


def advantages(rollout: Rollout, reward: np.ndarray, gamma: float, decay: float) -> np.ndarray:
    """Returns generalized advantage estimates `[T, n]`."""
    delta = reward + gamma * rollout.next_value() * ~rollout.terminated - rollout.extras["value"]
    goes_on = ~(rollout.terminated | rollout.truncated)
    estimates, last = np.zeros_like(delta), np.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        last = estimates[t] = delta[t] + gamma * decay * last * goes_on[t]
    return estimates


def learn(
    agent: Agent, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], options: argparse.Namespace
) -> None:
    """Runs several epochs over the rows of a rollout."""
    for _ in range(options.epochs):
        for rows in torch.randperm(len(batch["obs"])).chunk(options.minibatches):
            x, action, old_log_prob, advantage, target = (
                batch[name][rows] for name in ("obs", "action", "log_prob", "advantage", "target")
            )
            distribution = agent.distribution(x)
            ratio = (distribution.log_prob(action).sum(-1) - old_log_prob).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            value_loss = (agent.critic(x).squeeze(-1) - target).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.25 * value_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", default="processes", help="or ray, threads, serial")
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=256, help="steps of each environment between two updates")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--minibatches", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", default="ppo_rollout_workers.png", help="file of the learning curve")
    return parser.parse_args()


def main() -> None:
    """Trains the agent, prints the returns of the episodes that ended, and draws them."""
    options = parse()
    torch.manual_seed(options.seed)
    make = partial(gymnasium.make, options.env)
    with make() as env:
        agent, norm, scale = Agent(env), RunningStats(env.observation_space.shape), RewardScale(options)
    optimizer = torch.optim.Adam(agent.parameters(), options.learning_rate, eps=1e-5)
    updates, curve = max(1, options.total_steps // (options.steps * options.envs)), []
    started = time.perf_counter()
    with RolloutWorkers(
        [make] * options.envs, agent, backend=options.backend, num_workers=options.workers, seed=options.seed
    ) as workers:
        for update in range(1, updates + 1):
            optimizer.param_groups[0]["lr"] = options.learning_rate * (1 - (update - 1) / updates)
            try:
                rollout = workers.rollout(options.steps, agent.state_dict())
            except WorkerCrash as crash:  # a process or a node is lost
                print(f"{crash.failures[0].error}; the workers start again", flush=True)
                workers.reset()
                continue
            reward = scale(rollout)
            advantage = advantages(rollout, reward, options.gamma, options.gae_lambda)
            flat = {name: torch.as_tensor(rows) for name, rows in rollout.flat().items()}
            batch = {"obs": agent.normalize(flat["obs"]), "action": flat["action"], "log_prob": flat["log_prob"]}
            batch["advantage"] = torch.from_numpy(advantage.reshape(-1)).float()
            batch["target"] = batch["advantage"] + flat["value"]
            learn(agent, optimizer, batch, options)
            norm.update(rollout.obs)
            agent.mean.copy_(torch.from_numpy(norm.mean))
            agent.std.copy_(torch.from_numpy(norm.std).clamp(min=1e-4))
            if len(rollout.returns):
                steps = update * options.steps * options.envs
                curve.append((steps, rollout.returns.mean()))
                speed = steps / (time.perf_counter() - started)
                print(f"{steps} steps: mean return {curve[-1][1]:.1f}, {speed:.0f} steps/s", flush=True)
    if curve:
        plt.plot(*zip(*curve, strict=True))
        plt.xlabel("environment steps")
        plt.ylabel("mean return of an episode")
        plt.title(options.env)
        plt.savefig(options.plot)


if __name__ == "__main__":
    main()
