"""Where the rows are: one block of memory with an array a leaf, row i belonging to environment i.

The arena holds the actions, the final observations of episodes that a step ended, and a few *slots* with
all that a step yields. A worker writes the rows of a step straight into a slot, and the caller gets the slot's arrays
themselves: a slot is written again only when nobody holds a piece of it any more. So results are the
caller's own for as long as they are kept, and nothing is copied while they are used and dropped.

The memory is the process's heap or an anonymous file that only those who were handed its descriptor can map;
it vanishes with the last of them, however they end. Knows nothing of who writes.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from .simulator import RowBuffers
from .space_layout import Layout

_ALIGN = 64  # bytes: a cache line, and what DLPack consumers want
Spec = tuple[tuple[int, ...], np.dtype[Any]]


class Slot:
    """One place for a step's results: arrays of n rows in one block.

    Attributes:
        obs: leaf arrays of the observations to act on next (a list of objects where the leaf is opaque).
        reward: float64.
        flags: bool `[3, n]`, of which the next three are the rows.
        terminated, truncated: bool.
        was_reset: bool, the rows whose `obs` begins an episode.
        returns: float64, lengths: int64; the record of the episodes that ended, elsewhere stale.
    """

    __slots__ = (
        "_block",
        "_free_refcount",
        "flags",
        "lengths",
        "obs",
        "returns",
        "reward",
        "terminated",
        "truncated",
        "was_reset",
    )

    def __init__(self, block: np.ndarray, arrays: Sequence[Any]):
        self.reward, self.flags, self.returns, self.lengths = arrays[:4]
        self.terminated, self.truncated, self.was_reset = self.flags
        self.obs = list(arrays[4:])
        self._block = block
        self._free_refcount = -1

    def seal(self) -> None:
        """Take the references that exist now as the ones that mean "free"."""
        self._free_refcount = getrefcount(self._block)

    @property
    def free(self) -> bool:
        """Whether nobody outside holds its observations. Callers get views, and whatever is made of a view of
        ours (another view, a tensor, a buffer) keeps a reference to the view or to the block, never to our arrays."""
        return getrefcount(self._block) == self._free_refcount


class BatchBuffers:
    """The memory of a pool.

    Args:
        obs: layout of the observations.
        action: layout of the actions.
        num_envs: n, the number of rows.
        slots: how many slots, the first of which is never handed out.
        fd: descriptor of a file to map; None for the heap.
    """

    def __init__(self, obs: Layout, action: Layout, num_envs: int, slots: int = 4, fd: int | None = None):
        self.num_envs = num_envs
        slot_specs = _slot_specs(obs, num_envs)
        shared_specs = [*_leaf_specs(action, num_envs), *_leaf_specs(obs, num_envs), ((num_envs,), np.dtype(bool))]
        sizes = [_size(shared_specs), *[_size(slot_specs)] * slots]
        memory = None if fd is None else mmap.mmap(fd, sum(sizes))
        blocks, start = [], 0
        for size in sizes:
            blocks.append(_memory_block(memory, start, size))
            start += size
        shared = _array_views(blocks[0], shared_specs)
        num_actions = len(action.leaves)
        self.actions: list[Any] = shared[:num_actions]
        self.final_obs: list[Any] = shared[num_actions:-1]
        self.reset_mask: np.ndarray = shared[-1]
        self.slots = [Slot(block, _array_views(block, slot_specs)) for block in blocks[1:]]

    @staticmethod
    def size(obs: Layout, action: Layout, num_envs: int, slots: int = 4) -> int:
        """Bytes that an arena of these takes."""
        shared = [*_leaf_specs(action, num_envs), *_leaf_specs(obs, num_envs), ((num_envs,), np.dtype(bool))]
        return _size(shared) + slots * _size(_slot_specs(obs, num_envs))

    def rows(self, start: int, stop: int) -> list[RowBuffers]:
        """The part of each slot that is for the worker that owns rows `start` to `stop`."""
        final_obs = _slice_rows(self.final_obs, start, stop)
        return [
            RowBuffers(
                _slice_rows(s.obs, start, stop),
                final_obs,
                s.reward[start:stop],
                s.flags[:, start:stop],
                s.returns[start:stop],
                s.lengths[start:stop],
            )
            for s in self.slots
        ]

    def seal(self) -> None:
        """Every worker has its rows: from now on, any further reference to a slot is a caller's."""
        for slot in self.slots:
            slot.seal()

    def lease(self) -> int:
        """The index of a slot that nobody holds; 0 (whose rows must be copied) where all are held."""
        for index in range(1, len(self.slots)):
            if self.slots[index].free:
                return index
        return 0


def anonymous_file() -> int:
    """A descriptor of an empty file without a name in any folder; gone with its last holder."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("vecrl", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _slice_rows(arrays: Sequence[Any], start: int, stop: int) -> list[Any]:
    return [None if a is None else a[start:stop] for a in arrays]


def _slot_specs(obs: Layout, n: int) -> list[Spec | None]:
    entries: list[Spec | None] = [
        ((n,), np.dtype("f8")),
        ((3, n), np.dtype(bool)),
        ((n,), np.dtype("f8")),
        ((n,), np.dtype("i8")),
    ]
    return [*entries, *_leaf_specs(obs, n)]


def _leaf_specs(layout: Layout, n: int) -> list[Spec | None]:
    return [None if leaf.dtype is None else ((n, *leaf.shape), leaf.dtype) for leaf in layout.leaves]


def _bytes(spec: Spec | None) -> int:
    if spec is None:
        return 0
    shape, dtype = spec
    return -(-int(np.prod(shape, dtype=np.int64)) * dtype.itemsize // _ALIGN) * _ALIGN


def _size(specs: Sequence[Spec | None]) -> int:
    return sum(map(_bytes, specs)) or _ALIGN


def _memory_block(memory: mmap.mmap | None, start: int, size: int) -> np.ndarray:
    if memory is None:
        return np.zeros(size, np.uint8)
    return np.frombuffer(memory, np.uint8, size, start)


def _array_views(block: np.ndarray, specs: Sequence[Spec | None]) -> list[Any]:
    arrays: list[Any] = []
    start = 0
    for spec in specs:
        if spec is None:
            arrays.append(None)
            continue
        shape, dtype = spec
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(block[start : start + count].view(dtype).reshape(shape))
        start += _bytes(spec)
    return arrays
