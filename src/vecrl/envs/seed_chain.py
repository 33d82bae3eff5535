"""The chain of seeds that environments hand on to one another. Knows numbers only."""

from __future__ import annotations

from typing import Any

import numpy as np


def next_seed(seed: int) -> int:
    """The seed after `seed`, in [0, 2**32 - 1); a chain that TorchRL's environments go through too.

    >>> next_seed(0)
    795726461
    """
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % (2**32 - 1)


def seed_chain(seed: int, count: int) -> list[int]:
    """`count` seeds, the first of them `seed`.

    >>> seed_chain(0, 2)
    [0, 795726461]
    """
    seeds = [seed]
    while len(seeds) < count:
        seeds.append(next_seed(seeds[-1]))
    return seeds


def validate_seed(seed: Any) -> Any:
    """`seed` itself, where it is an integer or None.

    Raises:
        TypeError: it is something else.
    """
    if seed is None or isinstance(seed, int | np.integer):
        return seed
    raise TypeError(
        f"Expected an int as seed, or None, but {seed!r} came. A batch draws the seeds of its rows from one."
    )
