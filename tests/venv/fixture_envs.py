"""Environments that worker processes can import, with known results."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecrl.venv import BaseVectorEnv, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

KINDS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}
FEW = [("dummy", 1), ("dummy", 3), ("shmem", 3), ("shmem", 2)]
"""Kinds and workers that a test of what all have in common is run on: three environments, alone, together, apart."""


class Counting(gymnasium.Env):
    """Observes `[i, episode, count]` with reward i, and ends after `length` steps.

    A step of action 2 lasts until the file `gate` exists, at most `patience` seconds; a step of action 3 fails.
    """

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(-1.0, 1e9, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, i: int = 0, length: int = 3, gate: Any = "", patience: float = 30.0):
        self.i, self.length, self.gate, self.patience = i, length, gate, patience
        self.episode, self.count, self.seen = -1, 0, []

    def observe(self) -> np.ndarray:
        return np.array([self.i, self.episode, self.count], np.float32)

    def reset(self, *, seed=None, options=None, **others):
        super().reset(seed=seed)
        self.seen.append((seed, options, others))
        self.episode += 1
        self.count = 0
        return self.observe(), {"episode_index": self.episode}

    def step(self, action):
        if action == 3:
            raise ZeroDivisionError("requested failure")
        if action == 2:
            end = time.monotonic() + self.patience
            while not os.path.exists(self.gate) and time.monotonic() < end:
                time.sleep(0.001)
        self.count += 1
        self.action = action
        return self.observe(), float(self.i), self.count >= self.length, False, {"count": self.count}

    def render(self, **kwargs):
        return self.i, kwargs


class ReturnedObsEnv(gymnasium.Env):
    """Observes and returns configured values."""

    action_space = spaces.Discrete(2)

    def __init__(self, obs: Any, space: spaces.Space, reward: Any = 1.0, info: Any = None):
        self.obs, self.observation_space, self.reward, self.info = obs, space, reward, info or {}

    def reset(self, *, seed=None, options=None):
        return self.obs, self.info

    def step(self, action):
        self.action = action
        return self.obs, self.reward, False, False, self.info


class DuckTypedEnv:
    """Does not derive from a gymnasium class, has no spaces, and its `reset` accepts any arguments."""

    def __init__(self, old: bool = False):
        self.old = old

    def reset(self, easy=False):
        obs = np.full(2, float(easy))
        return obs if self.old else (obs, {"easy": easy})

    def step(self, action):
        obs = np.full(2, float(action))
        return (obs, 1, True, {"TimeLimit.truncated": True}) if self.old else (obs, 1, True, False, {})


class SeededDuckTypedEnv(DuckTypedEnv):
    """Is seeded by its own method."""

    def seed(self, seed):
        self.said = seed
        return [seed, 7]


def make(kind: str, n: int = 3, num_workers: int | None = None, maker: Any = Counting, **options: Any) -> BaseVectorEnv:
    """Makes a vector environment of this class."""
    return KINDS[kind]([partial(maker, i) for i in range(n)], num_workers=num_workers, **options)


def make_returned_obs_venv(*cases: tuple[Any, ...], kind: str = "dummy", num_workers: int | None = 1, **options: Any) -> BaseVectorEnv:
    """Returns a vector environment of `ReturnedObsEnv`."""
    return KINDS[kind]([partial(ReturnedObsEnv, *case) for case in cases], num_workers=num_workers, **options)


def ids_of(infos: np.ndarray) -> list[int]:
    return [info["env_id"] for info in infos]
