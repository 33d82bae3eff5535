"""`Log`: what a training program reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Log:
    """The seconds of a training since its first step, those within steps of the environments, and its returns.

    Attributes:
        curve: `(steps, seconds, mean return)` after each update with an ended episode.
        stepping: seconds within steps of the environments.
    """

    def __init__(self) -> None:
        self.curve: list[tuple[int, float, float]] = []
        self.stepping = 0.0
        self._started = 0.0

    def start(self) -> None:
        """Starts the clock, after imports and after the environments were made."""
        self._started = time.perf_counter()

    def timed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls `step` and adds its time to `stepping`."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return step(*arguments, **keywords)
            finally:
                self.stepping += time.perf_counter() - started

        return call

    def add(self, steps: int, value: float) -> None:
        """Adds the mean return after so many steps of all environments."""
        self.curve.append((steps, time.perf_counter() - self._started, float(value)))

    def result(self) -> dict[str, Any]:
        """Returns what was recorded, as plain data."""
        return {"seconds": time.perf_counter() - self._started, "stepping": self.stepping, "curve": self.curve}
