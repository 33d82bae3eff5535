"""The parts of a loop with a policy, each alone, and the loop with gymnasium's vector environment."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.implementation import RunFactory
from benchmarks.network import OnArrays, play_greedily

torch.set_num_threads(1)


def replayed_cartpole(steps: int, num_envs: int = 1) -> RunFactory:
    """The environments alone, with the actions of the policy, recorded from the same seeds."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(num_envs)]
    act, used = OnArrays(), []
    obs = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)])
    for _ in range(steps):
        used.append(act(obs))
        obs = np.stack([_stepped(env, action) for env, action in zip(envs, used[-1], strict=True)])

    def run(units: int) -> None:
        for _ in range(units):
            for i, env in enumerate(envs):
                env.reset(seed=i)
            for actions in used:
                for env, action in zip(envs, actions, strict=True):
                    _, _, terminated, truncated, _ = env.step(action)
                    if terminated or truncated:
                        env.reset()

    yield run
    for env in envs:
        env.close()


def _stepped(env: gymnasium.Env, action: np.integer) -> np.ndarray:
    obs, _, terminated, truncated, _ = env.step(action)
    return env.reset()[0] if terminated or truncated else obs


def policy_alone(steps: int, num_envs: int) -> RunFactory:
    """The policy alone: array in, array out."""
    act = OnArrays()
    obs = np.random.default_rng(0).normal(0, 0.1, (num_envs, 4)).astype(np.float32)

    def run(units: int) -> None:
        for _ in range(units * steps):
            act(obs)

    yield run


def gymnasium_sync(num_envs: int, steps: int) -> RunFactory:
    """gymnasium's `SyncVectorEnv` under the policy."""
    makers = [partial(gymnasium.make, "CartPole-v1")] * num_envs
    env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    yield play_greedily(env, steps)
    env.close()
