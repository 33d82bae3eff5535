"""Actions sampled before the measurement, and the loop over them: the part that all implementations share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

BATCHES = 64
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def discrete(num_envs: int) -> np.ndarray:
    """`[BATCHES, num_envs]` int64, left or right."""
    return np.random.default_rng(0).integers(0, 2, (BATCHES, num_envs))


def continuous(num_envs: int, size: int, dtype: type = np.float32) -> np.ndarray:
    """`[BATCHES, num_envs, size]` within (-1, 1)."""
    return np.random.default_rng(0).uniform(-1, 1, (BATCHES, num_envs, size)).astype(dtype)


class Batches(Protocol[T_co]):
    """An array, tensor or list of batches of actions."""

    def __getitem__(self, index: int, /) -> T_co: ...


def play(step: Callable[[T], object], batches: Batches[T]) -> Callable[[int], None]:
    """Returns a run that calls `step` once per unit and cycles through the batches."""

    def run(units: int) -> None:
        for i in range(units):
            step(batches[i % BATCHES])

    return run
