"""Timers for work in which a unit is not one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from benchmarks.implementation import Measurement


def watch(work: Callable[[], object], times: int) -> float:
    """Returns the seconds of `times` calls."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - start


class ResettableEnv(Protocol):
    """A vector environment of any library."""

    def reset(self) -> object: ...

    def close(self) -> object: ...


def starts(build: Callable[[], ResettableEnv]) -> Callable[[int], Measurement]:
    """Returns a run that builds a vector environment and resets it, once per unit; closing is not timed."""

    def run(units: int) -> Measurement:
        seconds = 0.0
        for _ in range(units):
            start = time.perf_counter()
            env = build()
            env.reset()
            seconds += time.perf_counter() - start
            env.close()
        return Measurement(seconds, units)

    return run
