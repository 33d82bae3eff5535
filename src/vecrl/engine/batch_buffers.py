"""Allocates the batch buffers: one block of memory with one array per leaf, in which row i belongs to environment i.

The batch buffers hold the actions, the final observations of episodes that ended in a step, and a few *slots*, each
with the results of one step. A worker writes its rows directly into a slot, and the caller gets new array objects over
the slot's memory, the *leases*. Whatever the caller makes of a lease (a view, a tensor, a buffer) keeps it alive. A
slot is reused only after its leases are gone, which weak references to them show. So results stay valid as long as the
caller keeps them, and nothing is copied if it drops them.

The memory is on the heap or in an anonymous file. Only processes that were given the file's descriptor can map it, and
the system frees it when the last of them ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from .simulator import RowBuffers
from .space_layout import DType, Layout, LeafRows, would_change

_ALIGN = 64  # bytes: a cache line, and the alignment that DLPack consumers expect
_ArraySpec = tuple[tuple[int, ...], DType]


class Slot:
    """The buffers for the results of one step: arrays of n rows in one block.

    Attributes:
        obs: leaf arrays of the observations to act on next; None for an opaque leaf.
        reward: `[n]` float64.
        flags: `[3, n]` bool; its rows are `terminated`, `truncated` and `was_reset`.
        terminated, truncated: `[n]` bool.
        was_reset: `[n]` bool, the rows in which `obs` is the observation of a reset.
        returns, lengths: `[n]` float64 and int64, of the episodes that ended; outdated values in other rows.
    """

    __slots__ = (
        "_leases",
        "_memory",
        "_opaque",
        "flags",
        "lengths",
        "obs",
        "returns",
        "reward",
        "terminated",
        "truncated",
        "was_reset",
    )

    def __init__(self, arrays: Sequence[Any]):
        self.reward, self.flags, self.returns, self.lengths = arrays[:4]
        self.terminated, self.truncated, self.was_reset = self.flags
        self.obs = list(arrays[4:])
        self._memory = [_as_lease_memory(leaf) for leaf in self.obs if leaf is not None]
        self._opaque = [i for i, leaf in enumerate(self.obs) if leaf is None]
        self._leases: list[ref[np.ndarray]] = []

    def lease_obs(self) -> list[Any]:
        """Returns new arrays over the observations, for the caller; None for an opaque leaf.

        The slot is not free while anything refers to them.
        """
        arrays: list[Any] = [memory.view(np.ndarray) for memory in self._memory]
        self._leases = [*map(ref, arrays)]
        for index in self._opaque:
            arrays.insert(index, None)
        return arrays

    @property
    def free(self) -> bool:
        """Whether the arrays of the last `lease_obs`, and everything made from them, are released."""
        for lease in self._leases:  # noqa: SIM110 - `all` with a generator takes four times as long
            if lease() is not None:
                return False
        return True


class BatchBuffers:
    """The memory of a pool.

    Args:
        obs: layout of the observations.
        action: layout of the actions.
        num_envs: n, the number of rows.
        slots: the number of slots. Slot 0 is never leased, so with one slot all results are copies.
        fd: descriptor of a file to map; None for the heap.

    Attributes:
        actions: leaf arrays `[n, ...]` of the actions; None for an opaque leaf.
        final_obs: leaf arrays `[n, ...]` of final observations; None for an opaque leaf.
        reset_mask: `[n]` bool, the rows to reset instead of stepping them.
        slots: the slots.
    """

    def __init__(self, obs: Layout, action: Layout, num_envs: int, slots: int = 4, fd: int | None = None):
        self.num_envs = num_envs
        slot_specs = _slot_specs(obs, num_envs)
        shared_specs = _shared_specs(obs, action, num_envs)
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
        self.slots = [Slot(_array_views(block, slot_specs)) for block in blocks[1:]]
        self._result_slots = [*range(1, slots)] if _HAS_LEASES else []
        self._address = blocks[0].ctypes.data

    @staticmethod
    def size(obs: Layout, action: Layout, num_envs: int, slots: int = 4) -> int:
        """Returns the size in bytes of batch buffers with these arguments."""
        return _size(_shared_specs(obs, action, num_envs)) + slots * _size(_slot_specs(obs, num_envs))

    def places(self) -> dict[str, Any]:
        """Returns where the arrays are in the memory, for a process that cannot use this class.

        Returns:
            `(offset, shape, dtype)` of each array, by the names of the attributes, with the dtype as text; None for an
            opaque leaf.
        """

        def place(array: np.ndarray | None) -> tuple[int, tuple[int, ...], str] | None:
            return None if array is None else (array.ctypes.data - self._address, array.shape, array.dtype.str)

        names = "reward", "terminated", "truncated", "was_reset", "returns", "lengths"
        slots = [
            {"obs": [place(leaf) for leaf in slot.obs]} | {name: place(getattr(slot, name)) for name in names}
            for slot in self.slots
        ]
        actions, final_obs = [*map(place, self.actions)], [*map(place, self.final_obs)]
        return {"actions": actions, "final_obs": final_obs, "reset_mask": place(self.reset_mask), "slots": slots}

    def write_actions(self, leaves: Sequence[Any], rows: slice | np.ndarray) -> dict[int, LeafRows] | None:
        """Writes the leaves of actions into `rows`, and returns those to send with the command instead.

        Args:
            leaves: for each leaf of the action layout, the values of k rows: an array `[k, ...]`, or a sequence of
                objects for an opaque leaf.
            rows: which k rows they belong to.

        Returns:
            The opaque leaves, and the arrays that the dtype of the space would change, by the index of the leaf; None
            if all are written.
        """
        not_written: dict[int, LeafRows] | None = None
        for index, (values, target) in enumerate(zip(leaves, self.actions, strict=True)):
            if target is None or would_change(values, target.dtype):
                not_written = (not_written or {}) | {index: values}
            else:
                target[rows] = values
        return not_written

    def rows(self, start: int, stop: int) -> list[RowBuffers]:
        """Returns, for each slot, the buffers of the worker that owns the rows from `start` to `stop`, exclusive."""
        own = slice(start, stop)

        def part(leaves: list[Any]) -> list[Any]:
            return [None if leaf is None else leaf[own] for leaf in leaves]

        final_obs = part(self.final_obs)
        return [
            RowBuffers(part(s.obs), final_obs, s.reward[own], s.flags[:, own], s.returns[own], s.lengths[own])
            for s in self.slots
        ]

    def reserve_slot(self) -> int:
        """Returns the index of a slot that `free_slot` does not return any more."""
        self._result_slots = self._result_slots[:-1]
        return len(self.slots) - 1

    def free_slot(self) -> int:
        """Returns the index of a free slot, or 0 if none is free. Rows of slot 0 must be copied."""
        for index in self._result_slots:
            if self.slots[index].free:
                return index
        return 0


class _LeaseMemory(np.ndarray):
    """The memory of leases, which are its plain views.

    NumPy sets the `base` of a view to the array that owns the memory, but stops at an array of another class. The
    `base` of a lease is of this class, so a view of a lease has the lease as its `base`, and keeps it alive.
    """


def _as_lease_memory(array: np.ndarray) -> np.ndarray:
    return array.view(_LeaseMemory)[...]  # its `base` has this class too, since NumPy looks that far


def _views_refer_to_leases() -> bool:
    """Returns whether this version of NumPy stops at leases. If it does not, all results are copied."""
    lease = _as_lease_memory(np.zeros(2)[:]).view(np.ndarray)
    return lease[:].base is lease and lease[:][1:].view("i8").base is lease


_HAS_LEASES = _views_refer_to_leases()


def anonymous_file() -> int:
    """Returns the descriptor of an empty file without a name. The file is freed with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("vecrl", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _shared_specs(obs: Layout, action: Layout, n: int) -> list[_ArraySpec | None]:
    return [*_leaf_specs(action, n), *_leaf_specs(obs, n), ((n,), np.dtype(bool))]


def _slot_specs(obs: Layout, n: int) -> list[_ArraySpec | None]:
    entries: list[_ArraySpec | None] = [
        ((n,), np.dtype("f8")),
        ((3, n), np.dtype(bool)),
        ((n,), np.dtype("f8")),
        ((n,), np.dtype("i8")),
    ]
    return [*entries, *_leaf_specs(obs, n)]


def _leaf_specs(layout: Layout, n: int) -> list[_ArraySpec | None]:
    return [None if leaf.dtype is None else ((n, *leaf.shape), leaf.dtype) for leaf in layout.leaves]


def _aligned_size(spec: _ArraySpec | None) -> int:
    if spec is None:
        return 0
    shape, dtype = spec
    return -(-int(np.prod(shape, dtype=np.int64)) * dtype.itemsize // _ALIGN) * _ALIGN


def _size(specs: Sequence[_ArraySpec | None]) -> int:
    return sum(map(_aligned_size, specs)) or _ALIGN


def _memory_block(memory: mmap.mmap | None, start: int, size: int) -> np.ndarray:
    if memory is None:
        return np.zeros(size, np.uint8)
    return np.frombuffer(memory, np.uint8, size, start)


def _array_views(block: np.ndarray, specs: Sequence[_ArraySpec | None]) -> list[Any]:
    arrays: list[Any] = []
    start = 0
    for spec in specs:
        if spec is None:
            arrays.append(None)
            continue
        shape, dtype = spec
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays.append(block[start : start + count].view(dtype).reshape(shape))
        start += _aligned_size(spec)
    return arrays
