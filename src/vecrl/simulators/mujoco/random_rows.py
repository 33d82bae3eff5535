"""Random generators of rows, seeded as gymnasium seeds an environment, and their states as arrays of integers.

This module must not know simulators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import SpaceError
from ...validation import check_seed

WORDS = 6  # of 64 bits: the state and the increment of PCG64, twice two; a buffered number, and whether there is one
MASK = 2**64 - 1


class RandomRows:
    """The `numpy.random.Generator` of each of n rows.

    A row with a seed draws what a gymnasium environment draws after `reset(seed=...)`. A row without one begins with
    entropy of the operating system.

    Args:
        count: n.
    """

    def __init__(self, count: int):
        self.generators = [np.random.Generator(np.random.PCG64()) for _ in range(count)]

    def seed(self, seeds: Sequence[int | None] | None) -> None:
        """Seeds the rows; a seed of None continues the row's stream.

        Raises:
            SpaceError: there is not one seed per row, or one is no integer of 0 or more.
        """
        if seeds is None:
            return
        if len(seeds) != len(self.generators):
            raise SpaceError(f"Expected {len(self.generators)} seeds, one per environment, got {len(seeds)}.")
        for row, seed in enumerate(seeds):
            if seed is None:
                continue
            check_seed(seed)
            if not isinstance(seed, int | np.integer):
                raise SpaceError(f"Expected seeds to be integers or None, got {seed!r}.")
            self.generators[row] = np.random.Generator(np.random.PCG64(int(seed)))

    def get_state(self) -> np.ndarray:
        """Returns the states of the generators, `[n, 6]` int64."""
        rows = np.empty((len(self.generators), WORDS), np.uint64)
        for row, generator in zip(rows, self.generators, strict=True):
            state = generator.bit_generator.state
            counter, increment = state["state"]["state"], state["state"]["inc"]
            words = counter >> 64, counter & MASK, increment >> 64, increment & MASK
            row[:] = *words, state["uinteger"], state["has_uint32"]
        return rows.view(np.int64)

    def set_state(self, rows: np.ndarray) -> None:
        """Restores what `get_state` returned."""
        for generator, row in zip(self.generators, np.ascontiguousarray(rows).view(np.uint64).tolist(), strict=True):
            high, low, increment_high, increment_low, number, has_number = row
            generator.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
                "has_uint32": has_number,
                "uinteger": number,
            }
