"""An environment that only burns time: what is left of a vector step beside it is the library's own cost."""

from __future__ import annotations

import time
from functools import partial

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

SHAPES = {"floats": ((16,), np.float32), "image": ((84, 84, 4), np.uint8)}


def burn(microseconds: float) -> None:
    """Keep a core busy for so long."""
    end = time.perf_counter_ns() + int(microseconds * 1000)
    while time.perf_counter_ns() < end:
        pass


class BusyEnv(gymnasium.Env):
    """Burns `microseconds` a step and gives out 16 floats or an image; its only episode never ends.

    The observation counts the steps in its first element, so that a library that hands out stale rows shows.
    """

    def __init__(self, microseconds: float = 0.0, out: str = "floats"):
        shape, dtype = SHAPES[out]
        self.observation_space = Box(0, 255, shape, dtype)
        self.action_space = Discrete(2)
        self._microseconds = microseconds
        self._obs = np.zeros(shape, dtype)

    def reset(self, *, seed=None, options=None):
        self._obs = np.zeros_like(self._obs)  # Ray's copies of what it is sent cannot be written to
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
    """One factory an environment."""
    return [partial(BusyEnv, microseconds, out)] * num_envs


class WaitEnv(BusyEnv):
    """The same, but a step sleeps for a time that is drawn anew each: exponential, with this mean."""

    def __init__(self, milliseconds: float, seed: int | None):
        super().__init__()
        self._mean = milliseconds / 1000
        self._random = np.random.default_rng(seed)

    def step(self, action):
        time.sleep(self._random.exponential(self._mean))
        return super().step(action)


def waiters(num_envs: int, milliseconds: float) -> list[partial[WaitEnv]]:
    """One factory an environment."""
    return [partial(WaitEnv, milliseconds, seed) for seed in range(num_envs)]
