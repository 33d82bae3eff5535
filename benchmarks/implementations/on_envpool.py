"""EnvPool: environments in C++ on threads."""

from __future__ import annotations

import envpool
import numpy as np

from benchmarks.actions import continuous, discrete, play
from benchmarks.implementation import RunFactory


def batch_cartpole(num_envs: int, num_threads: int) -> RunFactory:
    yield from _stepping("CartPole-v1", num_envs, num_threads, discrete(num_envs))


def threads_cheetah(num_envs: int, num_threads: int = 2) -> RunFactory:
    """Synchronous: a step waits for all environments."""
    yield from _stepping("HalfCheetah-v5", num_envs, num_threads, continuous(num_envs, 6, np.float64))


def _stepping(name: str, num_envs: int, num_threads: int, batches: np.ndarray) -> RunFactory:
    env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=0)
    env.reset()
    yield play(env.step, batches)
    env.close()
