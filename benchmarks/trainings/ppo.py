"""PPO in one file, as CleanRL has it, on vector environments, or with rollouts of workers.

In every way, the agent normalizes observations by statistics of the rollouts before, so that all compute the same. With
`RolloutWorkers`, copies of the agent draw the actions, so its numbers are others. With rollouts of a worker, the worker
acts while this process learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

import vecrl
from vecrl.running_stats import RunningStats
from vecrl.vector import Rollout, RolloutWorkers, VectorEnv

from .log import Log

GAMMA, DECAY = 0.99, 0.95


def _sync(env: str, count: int) -> Any:
    return SyncVectorEnv([partial(gymnasium.make, env)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def _async(env: str, count: int) -> Any:
    return AsyncVectorEnv([partial(gymnasium.make, env)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def _vecrl(env: str, count: int) -> Any:
    return VectorEnv([partial(gymnasium.make, env)] * count, backend="auto", autoreset_mode="same_step")


def _vecrl_batched(env: str, count: int) -> Any:
    return vecrl.make(f"mujoco::{env}", num_envs=count, autoreset_mode="same_step")


WAYS: dict[str, Callable[[str, int], Any]] = {
    "gymnasium Sync": _sync,
    "gymnasium Async": _async,
    "vecrl, import changed": _vecrl,
    "vecrl, mujoco::": _vecrl_batched,
}
WORKERS, ASYNC_WORKER = "vecrl, RolloutWorkers", "vecrl, rollouts of a worker"


class Agent(nn.Module):
    """A policy over numbers or choices, and a value function."""

    def __init__(self, obs_space: Any, action_space: Any):
        super().__init__()
        self.is_discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        inputs, outputs = obs_space.shape[0], int(action_space.n) if self.is_discrete else action_space.shape[0]
        self.critic, self.actor = _mlp(inputs, 1, 1.0), _mlp(inputs, outputs, 0.01)
        self.log_std = nn.Parameter(torch.zeros(outputs))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))

    def normalize(self, obs: Any) -> Tensor:
        return ((torch.as_tensor(obs, dtype=torch.float32) - self.mean) / self.std).clamp(-10, 10)

    def policy(self, x: Tensor) -> Any:
        outputs = self.actor(x)
        return Categorical(logits=outputs) if self.is_discrete else Independent(Normal(outputs, self.log_std.exp()), 1)

    @torch.no_grad()
    def forward(self, obs: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        x = self.normalize(obs)
        policy = self.policy(x)
        action = policy.sample()
        return action, {"log_prob": policy.log_prob(action), "value": self.critic(x).squeeze(-1)}

    @torch.no_grad()
    def value(self, obs: np.ndarray) -> Tensor:
        return self.critic(self.normalize(obs)).squeeze(-1)


def _mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for linear, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(linear.weight, scale)
        nn.init.zeros_(linear.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Loop:
    """Steps a vector environment with the agent, and returns what `RolloutWorkers.rollout` does."""

    def __init__(self, envs: Any, agent: Agent, seed: int):
        self.envs, self.agent = envs, agent
        self.obs, _ = envs.reset(seed=seed)
        self.sums, self.lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)

    def rollout(self, steps: int, step: Callable[[Any], Any]) -> Rollout:
        lists: dict[str, list[Any]] = {name: [] for name in ("obs", "action", "reward", "terminated", "truncated")}
        extras: list[dict[str, Tensor]] = []
        ends, finals, returns, lengths = [], [], [], []
        for t in range(steps):
            action, extra = self.agent(self.obs)
            extras.append(extra)
            next_obs, reward, terminated, truncated, info = step(action.numpy())
            values = self.obs, action.numpy(), reward, terminated, truncated
            for name, value in zip(lists, values, strict=True):
                lists[name].append(value)
            self.obs = next_obs
            self.sums, self.lengths = self.sums + reward, self.lengths + 1
            for row in np.flatnonzero(terminated | truncated):
                ends.append((t, row))
                finals.append(info["final_obs"][row])
                returns.append(self.sums[row])
                lengths.append(self.lengths[row])
                self.sums[row] = self.lengths[row] = 0
        return Rollout(
            **{name: np.stack(values) for name, values in lists.items()},
            last_obs=self.obs,
            ends=np.array(ends, np.int64).reshape(-1, 2),
            final_obs=np.stack(finals) if finals else None,
            returns=np.array(returns),
            lengths=np.array(lengths),
            extras={name: np.stack([extra[name].numpy() for extra in extras]) for name in extras[0]},
            last_value=self.agent.value(self.obs).double().numpy(),
            final_value=self.agent.value(np.stack(finals)).double().numpy() if finals else np.empty(0),
        )


def train(
    way: str,
    seed: int,
    log: Log,
    *,
    env: str,
    envs: int,
    total: int,
    batch: int = 2048,
    epochs: int = 10,
    minibatches: int = 32,
) -> None:
    """Trains the agent for `total` steps of all environments, `batch` of them between two updates."""
    torch.manual_seed(seed)
    with gymnasium.make(env) as one:
        agent = Agent(one.observation_space, one.action_space)
        norm = RunningStats(one.observation_space.shape)
    optimizer = torch.optim.Adam(agent.parameters(), 3e-4, eps=1e-5)
    scale, sums = RunningStats(), np.zeros(envs)
    steps, updates = batch // envs, total // batch
    source, collect = _source(way, agent, seed, env, envs, log)
    with closing(source):
        log.start()
        for update in range(1, updates + 1):
            optimizer.param_groups[0]["lr"] = 3e-4 * (1 - (update - 1) / updates)
            rollout = collect(steps)
            for reward, done in zip(rollout.reward, rollout.terminated | rollout.truncated, strict=True):
                sums = GAMMA * sums + reward
                scale.update(sums)
                sums[done] = 0.0
            _learn(agent, optimizer, rollout, rollout.reward / max(float(scale.std), 1e-4), epochs, minibatches)
            norm.update(rollout.obs)
            agent.mean.copy_(torch.from_numpy(norm.mean))
            agent.std.copy_(torch.from_numpy(norm.std).clamp(min=1e-4))
            if len(rollout.returns):
                log.add(update * batch, rollout.returns.mean())


def _source(way: str, agent: Agent, seed: int, env: str, envs: int, log: Log) -> tuple[Any, Callable[[int], Rollout]]:
    """Returns the environments, and a function that collects a rollout of so many steps of each."""
    if way == WORKERS:
        workers = RolloutWorkers([partial(gymnasium.make, env)] * envs, agent, num_workers=min(envs, 2), seed=seed)
        workers.rollout(1)  # makes the workers ready
        return workers, log.timed(lambda steps: workers.rollout(steps, agent.state_dict()))
    if way == ASYNC_WORKER:
        workers = RolloutWorkers([partial(gymnasium.make, env)] * envs, agent, num_workers=1, seed=seed)
        return workers, log.timed(_next_rollout(workers, agent))
    made = WAYS[way](env, envs)
    return made, partial(Loop(made, agent, seed).rollout, step=log.timed(made.step))


def _next_rollout(workers: RolloutWorkers, agent: Agent) -> Callable[[int], Rollout]:
    """Returns a function that waits for the next rollout. While the caller learns from it, the worker makes another.

    So each rollout but the first two is by the agent before the last update.
    """
    workers.rollout(1)  # makes the worker ready
    rollouts: list[Iterator[Rollout]] = []

    def collect(steps: int) -> Rollout:
        workers.set_parameters(agent.state_dict())
        if not rollouts:
            rollouts.append(workers.rollouts(steps))
        return next(rollouts[0])

    return collect


def _learn(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    reward: np.ndarray,
    epochs: int,
    minibatches: int,
) -> None:
    delta = reward + GAMMA * rollout.next_value() * ~rollout.terminated - rollout.extras["value"]
    goes_on = ~(rollout.terminated | rollout.truncated)
    advantages, last = np.zeros_like(delta), np.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        last = advantages[t] = delta[t] + GAMMA * DECAY * last * goes_on[t]
    flat = {name: torch.as_tensor(rows) for name, rows in rollout.flat().items()}
    x, old = agent.normalize(flat["obs"]), flat["log_prob"]
    advantage = torch.from_numpy(advantages.reshape(-1)).float()
    target = advantage + flat["value"]
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).chunk(minibatches):
            ratio = (agent.policy(x[rows]).log_prob(flat["action"][rows]) - old[rows]).exp()
            scaled = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            loss = -torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
            loss = loss + 0.25 * (agent.critic(x[rows]).squeeze(-1) - target[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
