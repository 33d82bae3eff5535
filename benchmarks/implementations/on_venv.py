"""Environments with ids of vecrl and Tianshou: the same code for both, since the names are equal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np

from benchmarks.actions import BATCHES, discrete, play
from benchmarks.busy_env import burners, waiters
from benchmarks.implementation import Measurement, RunFactory

MODULES = {"vecrl": "vecrl.venv", "tianshou": "tianshou.env"}
KINDS = {"subproc": "SubprocVectorEnv", "shmem": "ShmemVectorEnv"}


def stepping(library: str, kind: str, num_envs: int, num_workers: int | None = None) -> RunFactory:
    """A unit is a step of all environments, which do nothing in it."""
    shared = {} if num_workers is None else {"num_workers": num_workers}
    env = _make(library, kind, burners(num_envs, 0, "floats"), **shared)
    env.reset()
    yield play(env.step, discrete(num_envs))
    env.close()


def waiting(library: str, kind: str, num_envs: int, milliseconds: float) -> RunFactory:
    """A unit is a transition. Steps sleep for a random time, and the caller waits for half of the environments."""
    env = _make(library, kind, waiters(num_envs, milliseconds), wait_num=num_envs // 2)
    env.reset()
    ready = np.arange(num_envs)
    counted = np.zeros(num_envs)

    def run(units: int) -> Measurement:
        nonlocal ready
        used = 0
        start = time.perf_counter()
        while used < units:
            obs, *_, infos = env.step(np.zeros(len(ready), np.int64), ready)
            ready = np.array([info["env_id"] for info in infos])
            counted[ready] += 1
            if not (obs[:, 0] == counted[ready] % 128).all():
                raise AssertionError("a transition was lost, doubled or out of order")
            used += len(ready)
        return Measurement(time.perf_counter() - start, used)

    yield run
    env.close()


def normed(library: str, num_envs: int) -> RunFactory:
    """`VectorEnvNormObs` on the observations of a step."""
    batches = np.random.default_rng(0).normal(2, 3, (BATCHES, num_envs, 4)).astype(np.float32)
    env = import_module(MODULES[library]).VectorEnvNormObs(_FixedEnv())
    yield play(env.step, batches)


class _FixedEnv:
    """A vector environment that returns its actions as observations."""

    is_async = False

    def step(self, action: np.ndarray, id: object = None) -> tuple[object, ...]:  # noqa: A002
        return action, None, None, None, None


def _make(library: str, kind: str, makers: Sequence[Callable[[], gymnasium.Env]], **options: object) -> Any:
    return getattr(import_module(MODULES[library]), KINDS[kind])(makers, **options)
