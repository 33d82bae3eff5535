"""`StartCache`: the start states of the next episodes of every row of a small batch, computed in one call.

The draws of a few rows take as long as those of hundreds, so a small batch computes those of several episodes at once.
This module knows no tasks, only their function from streams and episodes to start states.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ...engine.simulator import Array

DEPTH = 16  # episodes per row
MAX_ROWS = 8192  # larger batches would need much memory, and save little time

Start = Callable[[Array, Array], Array]


class StartCache:
    """Start states of a batch, as NumPy arrays.

    Args:
        start: computes the start states `[d, m]` of the episodes `[m]` of the streams `[2, m]`.
    """

    def __init__(self, start: Start):
        self._start = start
        self._keys: Array = None  # the streams that the states belong to
        self._first: Array = None  # `[n]`, the first episode of each row in the cache
        self._states: Array = None  # `[DEPTH * n, d]`

    def get(self, keys: Array, episodes: Array, row_index: Array) -> Array:
        """Returns the start states `[d, m]` of some rows.

        Args:
            keys: `[2, n]` of all rows. The cache holds for this array object, which must not be written to.
            episodes: `[n]` of all rows, which do not decrease as long as `keys` is the same object.
            row_index: `[m]`, the rows, at least one.
        """
        n = len(episodes)
        if n > MAX_ROWS:
            return self._start(keys[:, row_index], episodes[row_index])
        if keys is self._keys:
            index = (episodes - self._first)[row_index] * n + row_index
            with suppress(IndexError):  # a row has used all its episodes
                return self._states.take(index, 0).T
        self._keys, self._first = keys, episodes
        following = (episodes + np.arange(DEPTH, dtype=np.int32)[:, None]).ravel()
        self._states = self._start(np.tile(keys, DEPTH), following).T.copy()
        return self._states[row_index].T
