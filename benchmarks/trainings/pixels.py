"""PPO on pixels: as CleanRL's form with EnvPool, in which the step after an end resets and is a step like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import vecrl

from .log import Log


def _ale(game: str, count: int, seed: int) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(game, num_envs=count)


def _envpool(game: str, count: int, seed: int) -> Any:
    import envpool

    return envpool.make(_task(game), "gymnasium", num_envs=count, seed=seed, reward_clip=True)


def _task(game: str) -> str:
    return f"{game.capitalize()}-v5"


WAYS: dict[str, Callable[[str, int, int], Any]] = {
    "ale-py AtariVectorEnv": _ale,
    "EnvPool": _envpool,
    "vecrl, atari-vector::": lambda game, count, seed: vecrl.make(f"atari-vector::{game}", num_envs=count),
    "vecrl, envpool::": lambda game, count, seed: vecrl.make(
        f"envpool::{_task(game)}", num_envs=count, reward_clip=True
    ),
}


class Agent(nn.Module):
    """A policy and a value function of four frames."""

    def __init__(self, actions: int):
        super().__init__()
        self.trunk = nn.Sequential(
            *(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(2592, 256), nn.ReLU()),
        )
        self.actor, self.critic = nn.Linear(256, actions), nn.Linear(256, 1)

    def forward(self, obs: Any) -> tuple[Categorical, Tensor]:
        hidden = self.trunk(torch.as_tensor(obs).float() / 255)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


def train(way: str, seed: int, log: Log, *, game: str, envs: int, total: int, steps: int = 64, epochs: int = 2) -> None:
    """Trains the agent for `total` steps of all environments, `steps` of each between two updates."""
    torch.manual_seed(seed)
    made = WAYS[way](game, envs, seed)
    agent = Agent(_actions(made))
    optimizer = torch.optim.Adam(agent.parameters(), 2.5e-4, eps=1e-5)
    obs, _ = made.reset() if way == "EnvPool" else made.reset(seed=seed)
    step, sums = log.timed(made.step), np.zeros(envs)
    log.start()
    for update in range(1, total // (envs * steps) + 1):
        records: list[tuple[Tensor, ...]] = []
        returns: list[float] = []
        for _ in range(steps):
            with torch.no_grad():
                policy, value = agent(obs)
                action = policy.sample()
            before = torch.as_tensor(obs).clone()
            obs, reward, terminated, truncated, _ = step(action.numpy())
            done = terminated | truncated
            sums += reward
            returns += sums[done].tolist()
            sums[done] = 0.0
            ends = torch.as_tensor(reward).float(), torch.as_tensor(done)
            records.append((before, action, policy.log_prob(action), value, *ends))
        with torch.no_grad():
            _, next_value = agent(obs)
        observed, actions, log_probs, values, rewards, dones = zip(*records, strict=True)
        advantages = _advantages(rewards, values, dones, next_value)
        data = [torch.cat(parts) for parts in (observed, actions, log_probs, values, advantages)]
        for _ in range(epochs):
            for rows in torch.randperm(envs * steps).chunk(4):
                _update(agent, optimizer, *(column[rows] for column in data))
        if returns:
            log.add(update * envs * steps, float(np.mean(returns)))
    made.close()


def _actions(made: Any) -> int:
    space = getattr(made, "single_action_space", made.action_space)
    return int(space.n)


def _advantages(
    rewards: Sequence[Tensor], values: Sequence[Tensor], dones: Sequence[Tensor], next_value: Tensor
) -> list[Tensor]:
    last, advantages = torch.zeros_like(next_value), []
    for reward, value, done in zip(reversed(rewards), reversed(values), reversed(dones), strict=True):
        last = reward + 0.99 * next_value * ~done - value + 0.99 * 0.95 * last * ~done
        next_value = value
        advantages.append(last)
    return advantages[::-1]


def _update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    obs: Tensor,
    action: Tensor,
    old: Tensor,
    value: Tensor,
    advantage: Tensor,
) -> None:
    policy, estimate = agent(obs)
    ratio, target = (policy.log_prob(action) - old).exp(), value + advantage
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    loss = -torch.min(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()
    loss = loss + 0.25 * (estimate - target).square().mean() - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
