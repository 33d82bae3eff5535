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


def mujoco(name: str, num_envs: int, act_size: int, num_threads: int = 2, asynchronous: bool = False) -> RunFactory:
    """Synchronous, or in batches of half of the environments: those that are ready first."""
    batches = continuous(num_envs, act_size, np.float64)
    if not asynchronous:
        yield from _stepping(name, num_envs, num_threads, batches)
        return
    half = num_envs // 2
    options = {"num_envs": num_envs, "batch_size": half, "num_threads": num_threads, "seed": 0}
    env = envpool.make(name, env_type="gymnasium", **options)
    env.async_reset()

    def step(actions: np.ndarray) -> None:
        for part in (actions[:half], actions[half:]):
            env.send(part, env.recv()[-1]["env_id"])

    yield play(step, batches)
    env.close()


def _stepping(name: str, num_envs: int, num_threads: int, batches: np.ndarray) -> RunFactory:
    env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=0)
    env.reset()
    yield play(env.step, batches)
    env.close()
