"""Collects the steps of a rollout leaf by leaf, and makes one TensorDict of them at the end.

Small leaves are kept in lists and stacked at the end, which is fastest. Large leaves are written into preallocated
memory, so that there are never two copies. This module must not know environments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import SpaceError

Path = tuple[str, ...]
_MIN_BLOCK_BYTES = 1 << 15  # bytes per step from which a leaf is preallocated; below, a second copy costs little
_MAX_PREALLOC_BYTES = 1 << 31  # bytes at most to preallocate for a leaf of a rollout that may end early


class Trajectory:
    """Collects steps and stacks them into one TensorDict.

    Args:
        dim: the dimension of the result along which steps are stacked.
        max_steps: the maximum number of steps.
        length_is_known: whether there are exactly `max_steps` steps.
        time_first: make time the first dimension in memory, for any `dim`; this is faster to write.
    """

    def __init__(self, dim: int, max_steps: int, length_is_known: bool, time_first: bool = False):
        self._dim, self._max_steps, self._length_is_known = dim, max_steps, length_is_known
        self._time_dim = 0 if time_first else dim  # where time is in memory
        self._columns: _NestedColumns | None = None
        self._device: torch.device | None = None
        self._names: list[str | None] = []
        self._count = 0

    def add(self, data: TensorDictBase) -> None:
        """Adds a step.

        Raises:
            SpaceError: if its entries differ from those of the first step, or the shape or dtype of one does.
        """
        if self._columns is None:
            self._device, self._names = data.device, list(data.names)
            self._columns = _NestedColumns(data, self._column)
        if not self._columns.append(data):
            changed = sorted(repr(".".join(path)) for path in set(self._columns.paths()) ^ set(_paths(data)))
            raise SpaceError(
                f"Expected all steps to have the same entries, got a change of {', '.join(changed)} at step "
                f"{self._count}. Return them in every step, or use return_contiguous=False."
            )
        self._count += 1

    def _column(self, value: Any) -> Any:
        size = value.numel() * value.element_size() if isinstance(value, Tensor) else 0
        if size < _MIN_BLOCK_BYTES or value.requires_grad:
            return []
        if not self._length_is_known and (value.device.type != "cpu" or size * self._max_steps > _MAX_PREALLOC_BYTES):
            return []
        return _PreallocatedColumn(value, self._time_dim, self._max_steps)

    def to_tensordict(self) -> TensorDict:
        """Returns all steps in one TensorDict, in which dimension `dim` is named "time"."""
        assert self._columns is not None
        data = self._build(self._columns)
        data.names = [*self._names[: self._dim], "time", *self._names[self._dim :]]
        return data

    def _build(self, branch: _NestedColumns, prefix: Path = ()) -> TensorDict:
        columns, size = branch.columns, branch.size
        values: dict[str, Any] = {}
        for name in list(columns):
            column = columns.pop(name)  # frees the memory of each column after stacking it
            path = (*prefix, name)
            values[name] = self._build(column, path) if type(column) is _NestedColumns else self._leaf(path, column)
        return TensorDict(values, [*size[: self._dim], self._count, *size[self._dim :]], device=self._device)

    def _leaf(self, path: Path, column: Any) -> Any:
        if isinstance(column, _PreallocatedColumn):
            return column.first_rows(self._count).movedim(self._time_dim, self._dim)
        stack: Any = torch.stack  # typed for tensors only, accepts TensorDicts and objects too
        try:
            if isinstance(column[0], Tensor):
                return stack(column, self._time_dim).movedim(self._time_dim, self._dim)
            return stack(column, self._dim)
        except RuntimeError as error:
            shapes = list(dict.fromkeys(tuple(value.shape) for value in column))
            if len(shapes) < 2:
                raise
            raise SpaceError(
                f"Expected equal shapes in all steps at {'.'.join(path)!r}, got {shapes[0]} and {shapes[1]}. Use "
                "return_contiguous=False if shapes vary, and -1 for these sizes in the spec."
            ) from error


class _NestedColumns:
    """One column per entry of a TensorDict; a collection of any other type is one entry.

    Args:
        data: the first step, which is not added yet.
        column: makes the column of a leaf: a list, or a `_PreallocatedColumn`.
    """

    __slots__ = ("columns", "size")

    def __init__(self, data: TensorDictBase, column: Callable[[Any], Any]):
        self.size = data.batch_size
        self.columns: dict[str, Any] = {
            name: _NestedColumns(value, column) if type(value) is TensorDict else column(value)
            for name, value in data.items()
        }

    def append(self, data: TensorDictBase) -> bool:
        """Adds the entries of a step; returns False if they differ from those of the first step."""
        columns, count = self.columns, 0
        for name, value in data.items():
            column = columns.get(name)
            if type(column) is list and type(value) is not TensorDict:
                column.append(value)
            elif type(column) is _NestedColumns and type(value) is TensorDict:
                if not column.append(value):
                    return False
            elif type(column) is not _PreallocatedColumn or type(value) is TensorDict:
                return False
            elif value.requires_grad:  # preallocated memory would lose the gradient
                columns[name] = [*column.rows(), value]
            else:
                column.append(value)
            count += 1
        return count == len(columns)

    def paths(self, prefix: Path = ()) -> Iterator[Path]:
        """Yields the paths of the columns."""
        for name, column in self.columns.items():
            if type(column) is _NestedColumns:
                yield from column.paths((*prefix, name))
            else:
                yield (*prefix, name)


class _PreallocatedColumn:
    """Preallocated memory for a leaf of all steps."""

    def __init__(self, example: Tensor, dim: int, steps: int):
        shape = (*example.shape[:dim], steps, *example.shape[dim:])
        self._buffer = torch.empty(shape, dtype=example.dtype, device=example.device)
        self._rows = self._buffer.unbind(dim)
        self._dim = dim
        self._count = 0

    def append(self, value: Tensor) -> None:
        row = self._rows[self._count]
        if value.shape != row.shape:
            raise SpaceError(f"Expected shape {tuple(row.shape)} in every step, got {tuple(value.shape)}.")
        if value.dtype != row.dtype:
            raise SpaceError(f"Expected {row.dtype} in every step, got {value.dtype}.")
        row.copy_(value)
        self._count += 1

    def rows(self) -> list[Tensor]:
        """Returns the steps so far, one tensor each."""
        return list(self._rows[: self._count])

    def first_rows(self, count: int) -> Tensor:
        if count == len(self._rows):
            return self._buffer
        return self._buffer.narrow(self._dim, 0, count).clone()


def _paths(data: Any, prefix: Path = ()) -> Iterator[Path]:
    """Yields the paths of the leaves of nested TensorDicts."""
    for name, value in data.items():
        if type(value) is TensorDict:
            yield from _paths(value, (*prefix, name))
        else:
            yield (*prefix, name)
