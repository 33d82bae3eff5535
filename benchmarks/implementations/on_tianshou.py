"""Tianshou's vector environments, without auto-reset: the caller resets."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
from tianshou.env import BaseVectorEnv, DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from tianshou.utils import RunningMeanStd

from benchmarks.actions import BATCHES, continuous, discrete, play
from benchmarks.busy_env import burners
from benchmarks.fault_envs import FaultEnv, fault_runs
from benchmarks.implementation import RunFactory

KINDS = {"subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}


def serial_cartpole(num_envs: int) -> RunFactory:
    yield from _stepping(DummyVectorEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs), discrete(num_envs))


def processes_burn(num_envs: int, microseconds: float, out: str, kind: str) -> RunFactory:
    yield from _stepping(KINDS[kind](burners(num_envs, microseconds, out)), discrete(num_envs))


def ray_burn(num_envs: int, microseconds: float, out: str) -> RunFactory:
    """One actor per environment, its only mode."""
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    yield from _stepping(RayVectorEnv(burners(num_envs, microseconds, out)), discrete(num_envs))
    ray.shutdown()


def processes_cheetah(num_envs: int, kind: str) -> RunFactory:
    yield from _stepping(KINDS[kind]([partial(gymnasium.make, "HalfCheetah-v5")] * num_envs), continuous(num_envs, 6))


def struck(number: int) -> RunFactory:
    yield fault_runs(lambda: SubprocVectorEnv([FaultEnv] * 8), number, False)


def normed(num_envs: int) -> RunFactory:
    """`RunningMeanStd` on the observations of a step."""
    stats = RunningMeanStd()
    batches = np.random.default_rng(0).normal(2, 3, (BATCHES, num_envs, 4)).astype(np.float32)

    def step(rows: np.ndarray) -> np.ndarray:
        stats.update(rows)
        return stats.norm(rows)

    yield play(step, batches)


def _stepping(env: BaseVectorEnv, batches: np.ndarray) -> RunFactory:
    def step(actions: np.ndarray) -> None:
        _, _, terminated, truncated, _ = env.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            env.reset(ended)

    env.reset()
    yield play(step, batches)
    env.close()
