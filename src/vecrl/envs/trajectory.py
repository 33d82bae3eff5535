"""Steps of a rollout behind one another, leaf by leaf, without a TensorDict more than the result.

Small leaves are listed and stacked at the end, which is quickest; large ones are written where they are to stay, so
that nothing is held twice. Knows TensorDicts, not environments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ..errors import SpaceError

Path = tuple[str, ...]
_MIN_BLOCK_BYTES = 1 << 15  # bytes of a leaf in one step, from which on its second copy would be felt
_MAX_PREALLOC_BYTES = 1 << 31  # bytes that are set aside, though not used, for a leaf of a rollout that may end early


class Trajectory:
    """Takes steps in, and gives them back as one TensorDict.

    Args:
        dim: the dimension along which they are to lie.
        max_steps: so many steps will there be at most.
        length_is_known: so many will there be, come what may.
        time_first: let step lie behind step in memory, whatever the dimension: to put them side by side takes longer.
    """

    def __init__(self, dim: int, max_steps: int, length_is_known: bool, time_first: bool = False):
        self._dim, self._max_steps, self._length_is_known = dim, max_steps, length_is_known
        self._time_dim = 0 if time_first else dim  # where time is in memory
        self._columns: _NestedColumns | None = None
        self._device: torch.device | None = None
        self._names: list[str | None] = []
        self._count = 0

    def add(self, data: TensorDictBase) -> None:
        """Take in a step.

        Raises:
            SpaceError: it has other entries than the first one, or one of another shape.
        """
        if self._columns is None:
            self._device, self._names = data.device, list(data.names)
            self._columns = _NestedColumns(data, self._column)
        if not self._columns.append(data):
            changed = sorted(repr(".".join(path)) for path in set(self._columns.paths()) ^ set(_paths(data)))
            raise SpaceError(
                f"Expected all steps to have the same entries, but {', '.join(changed)} came or went at step "
                f"{self._count}. Give them at every step, or keep steps as they are with return_contiguous=False."
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
        """All steps, the last batch dimension of which is named "time"."""
        assert self._columns is not None
        data = self._build(self._columns)
        data.names = [*self._names[: self._dim], "time", *self._names[self._dim :]]
        return data

    def _build(self, branch: _NestedColumns, prefix: Path = ()) -> TensorDict:
        columns, size = branch.columns, branch.size
        values: dict[str, Any] = {}
        for name in list(columns):
            column = columns.pop(name)  # so that it is held no longer than it takes
            path = (*prefix, name)
            values[name] = self._build(column, path) if type(column) is _NestedColumns else self._leaf(path, column)
        return TensorDict(values, [*size[: self._dim], self._count, *size[self._dim :]], device=self._device)

    def _leaf(self, path: Path, column: Any) -> Any:
        if isinstance(column, _PreallocatedColumn):
            return column.first_rows(self._count).movedim(self._time_dim, self._dim)
        stack: Any = torch.stack  # which takes TensorDicts and objects too
        try:
            if isinstance(column[0], Tensor):
                return stack(column, self._time_dim).movedim(self._time_dim, self._dim)
            return stack(column, self._dim)
        except RuntimeError as error:
            shapes = list(dict.fromkeys(tuple(value.shape) for value in column))
            if len(shapes) < 2:
                raise
            raise SpaceError(
                f"Expected one shape in every step, but at {'.'.join(path)!r} {shapes[0]} and {shapes[1]} came. Sizes "
                "that vary are -1 in a spec's shape, and are not for return_contiguous=True."
            ) from error


class _NestedColumns:
    """The columns of a TensorDict's entries; of other collections than TensorDicts, each is an entry itself.

    Args:
        data: the first one; it is not taken in yet.
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
        """Take in the entries, unless they are others than those of before: whether they are not."""
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
            elif value.requires_grad:  # which memory that is written into cannot keep
                columns[name] = [*column.rows(), value]
            else:
                column.append(value)
            count += 1
        return count == len(columns)

    def paths(self, prefix: Path = ()) -> Iterator[Path]:
        """Where there are columns."""
        for name, column in self.columns.items():
            if type(column) is _NestedColumns:
                yield from column.paths((*prefix, name))
            else:
                yield (*prefix, name)


class _PreallocatedColumn:
    """Memory for a leaf of all steps."""

    def __init__(self, example: Tensor, dim: int, steps: int):
        shape = (*example.shape[:dim], steps, *example.shape[dim:])
        self._buffer = torch.empty(shape, dtype=example.dtype, device=example.device)
        self._rows = self._buffer.unbind(dim)
        self._dim = dim
        self._count = 0

    def append(self, value: Tensor) -> None:
        row = self._rows[self._count]
        if value.shape != row.shape:
            raise SpaceError(f"Expected shape {tuple(row.shape)} in every step, but {tuple(value.shape)} came.")
        if value.dtype != row.dtype:
            raise SpaceError(f"Expected {row.dtype} in every step, but {value.dtype} came.")
        row.copy_(value)
        self._count += 1

    def rows(self) -> list[Tensor]:
        """The steps so far, one by one."""
        return list(self._rows[: self._count])

    def first_rows(self, count: int) -> Tensor:
        if count == len(self._rows):
            return self._buffer
        return self._buffer.narrow(self._dim, 0, count).clone()


def _paths(data: Any, prefix: Path = ()) -> Iterator[Path]:
    """Where there are leaves in nested TensorDicts."""
    for name, value in data.items():
        if type(value) is TensorDict:
            yield from _paths(value, (*prefix, name))
        else:
            yield (*prefix, name)
