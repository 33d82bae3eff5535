"""PufferLib's vector environments, with next-step auto-reset."""

from __future__ import annotations

import time
from functools import partial

import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.actions import discrete, play
from benchmarks.busy_env import BusyEnv, WaitEnv
from benchmarks.implementation import Measurement, RunFactory


def serial_cartpole(num_envs: int) -> RunFactory:
    env = pufferlib.vector.make(
        partial(_emulated, partial(gymnasium.make, "CartPole-v1")), num_envs=num_envs, backend=pufferlib.vector.Serial
    )
    yield from _stepping(env, discrete(num_envs))


def processes_burn(num_envs: int, microseconds: float, out: str, num_workers: int = 2) -> RunFactory:
    env = pufferlib.vector.make(
        partial(_emulated, partial(BusyEnv, microseconds, out)),
        num_envs=num_envs,
        num_workers=num_workers,
        backend=pufferlib.vector.Multiprocessing,
    )
    yield from _stepping(env, discrete(num_envs))


def waiting(num_envs: int, milliseconds: float, num_workers: int = 2) -> RunFactory:
    """The asynchronous mode: batches of half of the environments, from the workers that are ready first.

    Idle workers spin, so there are no more workers than cores.
    """
    env = pufferlib.vector.make(
        partial(_emulated, partial(WaitEnv, milliseconds, None)),
        num_envs=num_envs,
        num_workers=num_workers,
        batch_size=num_envs // 2,
        zero_copy=False,
        backend=pufferlib.vector.Multiprocessing,
    )
    env.async_reset(0)
    actions = np.zeros(num_envs // 2, np.int64)
    env.recv()

    def run(units: int) -> Measurement:
        used = 0
        start = time.perf_counter()
        while used < units:
            env.send(actions)
            env.recv()
            used += len(actions)
        return Measurement(time.perf_counter() - start, used)

    yield run
    env.close()


def _emulated(make):
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=make)


def _stepping(env, batches: np.ndarray) -> RunFactory:
    env.reset(seed=0)
    yield play(env.step, batches)
    env.close()
