"""Stable-Baselines3's vector environments, and vecrl's with the same interface."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from benchmarks.actions import continuous, discrete, play
from benchmarks.busy_env import burners
from benchmarks.fault_envs import FaultEnv, fault_runs
from benchmarks.implementation import RunFactory
from benchmarks.stopwatch import starts


def serial_cartpole(num_envs: int) -> RunFactory:
    yield from _stepping(DummyVecEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs), discrete(num_envs))


def subproc_cartpole(num_envs: int) -> RunFactory:
    makers = [partial(gymnasium.make, "CartPole-v1")] * num_envs
    yield from _stepping(SubprocVecEnv(makers, start_method="fork"), discrete(num_envs))


def vecrl_cartpole(num_envs: int, backend: str = "serial", num_workers: int | None = None) -> RunFactory:
    from vecrl.interop import sb3

    makers = [partial(gymnasium.make, "CartPole-v1")] * num_envs
    yield from _stepping(sb3.VecEnv(makers, backend=backend, num_workers=num_workers), discrete(num_envs))


def vecrl_native_cartpole(num_envs: int) -> RunFactory:
    from vecrl.interop import sb3
    from vecrl.vector import make_vector_env

    yield from _stepping(sb3.VecEnv(make_vector_env("native::CartPole-v1", num_envs=num_envs)), discrete(num_envs))


def processes_burn(num_envs: int, microseconds: float, out: str) -> RunFactory:
    """Forks, since the default start method would import torch in each of 64 processes."""
    makers = burners(num_envs, microseconds, out)
    yield from _stepping(SubprocVecEnv(makers, start_method="fork"), discrete(num_envs))


def processes_cheetah(num_envs: int) -> RunFactory:
    makers = [partial(gymnasium.make, "HalfCheetah-v5")] * num_envs
    yield from _stepping(SubprocVecEnv(makers, start_method="fork"), continuous(num_envs, 6))


def struck(number: int) -> RunFactory:
    yield fault_runs(lambda: SubprocVecEnv([FaultEnv] * 8), number, False)


def startup(num_workers: int, method: str) -> RunFactory:
    from benchmarks.slow_import import SlowImportEnv

    yield starts(lambda: SubprocVecEnv([SlowImportEnv] * num_workers, start_method=method))


def _stepping(env: VecEnv, batches: np.ndarray) -> RunFactory:
    env.reset()
    yield play(env.step, batches)
    env.close()
