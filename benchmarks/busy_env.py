"""An environment that only uses CPU time: the rest of a vector step is the cost of the library."""

from __future__ import annotations

import time
from functools import partial

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

SHAPES = {"floats": ((16,), np.float32), "image": ((84, 84, 4), np.uint8)}


def burn(microseconds: float) -> None:
    """Keeps a core busy for this time."""
    end = time.perf_counter_ns() + int(microseconds * 1000)
    while time.perf_counter_ns() < end:
        pass


class BusyEnv(gymnasium.Env):
    """Uses `microseconds` of a core per step and returns 16 floats or an image; its episode never ends.

    The first element of the observation counts the steps, so that stale rows are detected.
    """

    def __init__(self, microseconds: float = 0.0, out: str = "floats"):
        shape, dtype = SHAPES[out]
        self.observation_space = Box(0, 255, shape, dtype)
        self.action_space = Discrete(2)
        self._microseconds = microseconds
        self._obs = np.zeros(shape, dtype)

    def reset(self, *, seed=None, options=None):
        self._obs = np.zeros_like(self._obs)  # objects that Ray sent are read-only
        self._first = self._obs.reshape(-1)
        self._steps = 0
        return self._obs, {}

    def step(self, action):
        if self._microseconds:
            burn(self._microseconds)
        self._steps += 1
        self._first[0] = self._steps & 127
        return self._obs, 1.0, False, False, {}


def burners(num_envs: int, microseconds: float, out: str) -> list[partial[BusyEnv]]:
    """Returns one factory per environment."""
    return [partial(BusyEnv, microseconds, out)] * num_envs


class WaitEnv(BusyEnv):
    """A `BusyEnv` with steps that sleep for a random time: exponentially distributed with this mean."""

    def __init__(self, milliseconds: float, seed: int | None):
        super().__init__()
        self._mean = milliseconds / 1000
        self._random = np.random.default_rng(seed)

    def step(self, action):
        time.sleep(self._random.exponential(self._mean))
        return super().step(action)


def waiters(num_envs: int, milliseconds: float) -> list[partial[WaitEnv]]:
    """Returns one factory per environment."""
    return [partial(WaitEnv, milliseconds, seed) for seed in range(num_envs)]
