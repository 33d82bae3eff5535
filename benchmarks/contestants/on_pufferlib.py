"""PufferLib's vector environments, which reset in the step after an episode's last."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.actions import discrete, play
from benchmarks.burn import BurnEnv
from benchmarks.contestant import Contest


def serial_cartpole(num_envs: int) -> Contest:
    env = pufferlib.vector.make(
        partial(_emulated, partial(gymnasium.make, "CartPole-v1")), num_envs=num_envs, backend=pufferlib.vector.Serial
    )
    yield from _stepping(env, discrete(num_envs))


def processes_burn(num_envs: int, microseconds: float, out: str, num_workers: int = 2) -> Contest:
    env = pufferlib.vector.make(
        partial(_emulated, partial(BurnEnv, microseconds, out)),
        num_envs=num_envs,
        num_workers=num_workers,
        backend=pufferlib.vector.Multiprocessing,
    )
    yield from _stepping(env, discrete(num_envs))


def _emulated(make):
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=make)


def _stepping(env, batches: np.ndarray) -> Contest:
    env.reset(seed=0)
    yield play(env.step, batches)
    env.close()
