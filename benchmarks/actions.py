"""Actions sampled before the measurement, and the loop over them: the part that all implementations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BATCHES = 64


def discrete(num_envs: int) -> np.ndarray:
    """`[BATCHES, num_envs]` int64, left or right."""
    return np.random.default_rng(0).integers(0, 2, (BATCHES, num_envs))


def continuous(num_envs: int, size: int, dtype: type = np.float32) -> np.ndarray:
    """`[BATCHES, num_envs, size]` within (-1, 1)."""
    return np.random.default_rng(0).uniform(-1, 1, (BATCHES, num_envs, size)).astype(dtype)


def play(step: Callable[[Any], Any], batches: Sequence[Any]) -> Callable[[int], None]:
    """Returns a run that calls `step` once per unit and cycles through the batches."""

    def run(units: int) -> None:
        for i in range(units):
            step(batches[i % BATCHES])

    return run
