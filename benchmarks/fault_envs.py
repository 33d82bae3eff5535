"""Environments for faults: times the steps after a worker is killed or stopped."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks.implementation import Measurement

RECOVERY_TIMEOUT_S = 10.0  # seconds after which a step counts as hanging


class FaultEnv(gymnasium.Env):
    """Observes the id of its process and the number of steps; its episode never ends."""

    observation_space = Box(0, 1e9, (2,), np.float64)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        self._count = 0
        return np.array([os.getpid(), 0.0]), {}

    def step(self, action):
        self._count += 1
        return np.array([os.getpid(), self._count], float), 1.0, False, False, {}


class SteppableEnv(Protocol):
    """A vector environment of any library. `step` returns the observations first."""

    def reset(self) -> object: ...

    def step(self, actions: np.ndarray, /) -> tuple[Any, ...]: ...

    def close(self, **kwargs: bool) -> object: ...


class RecoveryFailedError(Exception):
    """A step did not return in time."""


def fault_runs(build: Callable[[], SteppableEnv], number: int, must_recover: bool) -> Callable[[int], Measurement]:
    """Returns a run that sends a signal to the worker of environment 0 once per unit, and times the next two steps.

    Args:
        build: creates a vector environment.
        number: the signal.
        must_recover: whether both steps must succeed. If not, the first exception ends the measurement.
    """

    def run(units: int) -> Measurement:
        return Measurement(sum(_trigger_fault(build(), number, must_recover) for _ in range(units)), units)

    return run


def _trigger_fault(env: SteppableEnv, number: int, must_recover: bool) -> float:
    actions = np.zeros(8, np.int64)
    env.reset()
    for _ in range(19):
        env.step(actions)
    worker_pid = int(env.step(actions)[0][0, 0])
    signal.signal(signal.SIGALRM, _fail_recovery)
    signal.setitimer(signal.ITIMER_REAL, RECOVERY_TIMEOUT_S)
    start = time.perf_counter()
    os.kill(worker_pid, number)
    try:
        for _ in range(2):
            env.step(actions)
    except RecoveryFailedError:
        pass
    except Exception:
        if must_recover:
            raise
    seconds = time.perf_counter() - start
    signal.setitimer(signal.ITIMER_REAL, 0)
    _end_process(env, worker_pid)
    return seconds


def _end_process(env: SteppableEnv, worker_pid: int) -> None:
    """Closes the environment if possible. Other libraries may wait for ended workers, so it has a time limit."""
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    arguments = {"terminate": True} if isinstance(env, gymnasium.vector.AsyncVectorEnv) else {}
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        env.close(**arguments)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with suppress(OSError):
        os.kill(worker_pid, signal.SIGKILL)


def _fail_recovery(*_: object) -> None:
    raise RecoveryFailedError
