"""PPO in one file, in the style of CleanRL: gymnasium's vector interface and wrappers over worker processes."""

from __future__ import annotations

import argparse
import time
from functools import partial

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import vector as wrappers
from torch import Tensor, nn
from torch.distributions import Categorical

from vecrl.vector import VectorEnv  # was: gymnasium.vector.AsyncVectorEnv


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """A policy over discrete actions, and a value function."""

    def __init__(self, envs: gymnasium.vector.VectorEnv):
        super().__init__()
        size, actions = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)
        self.critic = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)

    def policy(self, obs: Tensor) -> Categorical:
        return Categorical(logits=self.actor(obs))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", default="processes")
    parser.add_argument("--total-steps", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=128, help="steps of each environment between two updates")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--entropy", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_envs(options: argparse.Namespace) -> gymnasium.vector.VectorEnv:
    """Returns the environments in gymnasium's own wrappers, which compute with NumPy."""
    make = [partial(gymnasium.make, options.env)] * options.envs
    envs = VectorEnv(make, backend=options.backend, num_workers=options.workers)  # in next-step auto-reset mode
    return wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(envs))


class Storage:
    """The steps `[time, envs]` between two updates."""

    def __init__(self, options: argparse.Namespace, obs_shape: tuple[int, ...]):
        shape = options.steps, options.envs
        self.obs = torch.zeros(*shape, *obs_shape)
        self.action = torch.zeros(shape, dtype=torch.int64)
        self.log_prob, self.reward, self.value, self.next_value = (torch.zeros(shape) for _ in range(4))
        self.terminated, self.done = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
        self.is_reset = torch.zeros(shape, dtype=torch.bool)
        """Whether the step only reset its environment, since the step before ended the episode."""

    def advantages(self, gamma: float, decay: float) -> Tensor:
        """Returns generalized advantage estimates. The observation after a step is the true one, also at an end."""
        delta = self.reward + gamma * self.next_value * ~self.terminated - self.value
        estimates, last = torch.zeros_like(delta), torch.zeros(delta.shape[1])
        for t in reversed(range(len(delta))):
            last = estimates[t] = delta[t] + gamma * decay * last * ~self.done[t]
        return estimates


def learn(agent: Agent, optimizer: torch.optim.Optimizer, data: Storage, options: argparse.Namespace) -> None:
    """Runs several epochs over the steps, except those that only reset an environment."""
    advantage, rows = data.advantages(options.gamma, options.gae_lambda), ~data.is_reset
    obs, action, old_log_prob = data.obs[rows], data.action[rows], data.log_prob[rows]
    advantage, target = advantage[rows], (advantage + data.value)[rows]
    for _ in range(options.epochs):
        for batch in torch.randperm(len(obs)).chunk(options.minibatches):
            policy = agent.policy(obs[batch])
            ratio = (policy.log_prob(action[batch]) - old_log_prob[batch]).exp()
            scaled = (advantage[batch] - advantage[batch].mean()) / (advantage[batch].std() + 1e-8)
            clipped = ratio.clamp(1 - options.clip, 1 + options.clip)
            policy_loss = -torch.min(scaled * ratio, scaled * clipped).mean()
            value_loss = 0.5 * (agent.value(obs[batch]) - target[batch]).square().mean()
            loss = policy_loss + 0.5 * value_loss - options.entropy * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main() -> None:
    """Trains the agent, and prints the returns of the episodes that ended."""
    options = parse()
    torch.manual_seed(options.seed)
    envs = make_envs(options)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), options.learning_rate, eps=1e-5)
    data = Storage(options, envs.single_observation_space.shape)
    obs = torch.from_numpy(envs.reset(seed=options.seed)[0]).float()
    done = torch.zeros(options.envs, dtype=torch.bool)
    started, updates = time.perf_counter(), max(1, options.total_steps // (options.steps * options.envs))
    for update in range(1, updates + 1):
        optimizer.param_groups[0]["lr"] = options.learning_rate * (1 - (update - 1) / updates)
        returns: list[float] = []
        for t in range(options.steps):
            with torch.no_grad():
                policy = agent.policy(obs)
                action = policy.sample()
                data.log_prob[t], data.value[t] = policy.log_prob(action), agent.value(obs)
            data.obs[t], data.action[t], data.is_reset[t] = obs, action, done
            next_obs, reward, terminated, truncated, info = envs.step(action.numpy())
            obs, done = torch.from_numpy(next_obs).float(), torch.from_numpy(terminated | truncated)
            data.reward[t], data.terminated[t] = torch.from_numpy(reward), torch.from_numpy(terminated)
            data.done[t] = done
            with torch.no_grad():
                data.next_value[t] = agent.value(obs)
            if "episode" in info:
                returns += info["episode"]["r"][info["_episode"]].tolist()
        learn(agent, optimizer, data, options)
        if returns:
            speed = update * options.steps * options.envs / (time.perf_counter() - started)
            print(f"update {update}: mean return {np.mean(returns):.1f}, {speed:.0f} steps/s", flush=True)
    envs.close()


if __name__ == "__main__":
    main()
