"""Stopwatches for the work where a unit is not simply a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.implementation import Measurement


def watch(work: Callable[[], Any], times: int) -> float:
    """The seconds that so many calls take."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - start


def starts(build: Callable[[], Any]) -> Callable[[int], Measurement]:
    """A run that builds a vector environment and resets it once a unit; closing is not counted."""

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
