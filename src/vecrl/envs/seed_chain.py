"""The chain of seeds with which the environments of a batch are seeded."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..validation import check_seed


def next_seed(seed: int) -> int:
    """Returns the seed after `seed`, in [0, 2**32 - 1), by the same rule as TorchRL.

    >>> next_seed(0)
    795726461
    """
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % (2**32 - 1)


def seed_chain(seed: int, count: int) -> list[int]:
    """Returns `count` seeds, the first of which is `seed`.

    >>> seed_chain(0, 2)
    [0, 795726461]
    """
    seeds = [seed]
    while len(seeds) < count:
        seeds.append(next_seed(seeds[-1]))
    return seeds


def validate_seed(seed: object) -> Any:
    """Returns `seed` if it is an integer of 0 or more, or None.

    Raises:
        TypeError: it is something else.
        SpaceError: (a `ValueError`) it is negative.
    """
    check_seed(seed)
    if seed is None or isinstance(seed, int | np.integer):
        return None if seed is None else int(seed)
    raise TypeError(f"Expected an int or None as seed, got {seed!r}. A batch derives the seeds of its rows from one.")
