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
_LARGE = 1 << 15  # bytes of a leaf in one step, from which on its second copy would be felt
_ROOM = 1 << 31  # bytes that are set aside, though not used, for a leaf of a rollout that may end early


class Recording:
    """Takes steps in, and gives them back as one TensorDict.

    Args:
        dim: the dimension along which they are to lie.
        most: so many steps will there be at most.
        exactly: so many will there be, come what may.
        in_front: let step lie behind step in memory, whatever the dimension: to put them side by side takes longer.
    """

    def __init__(self, dim: int, most: int, exactly: bool, in_front: bool = False):
        self._dim, self._most, self._exactly = dim, most, exactly
        self._at = 0 if in_front else dim  # where time is in memory
        self._columns: _Branch | None = None
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
            self._columns = _Branch(data, self._column)
        if not self._columns.append(data):
            changed = sorted(repr(".".join(path)) for path in set(self._columns.paths()) ^ set(_paths(data)))
            raise SpaceError(
                f"Expected all steps to have the same entries, but {', '.join(changed)} came or went at step "
                f"{self._count}. Give them at every step, or keep steps as they are with return_contiguous=False."
            )
        self._count += 1

    def _column(self, value: Any) -> Any:
        size = value.numel() * value.element_size() if isinstance(value, Tensor) else 0
        if size < _LARGE or value.requires_grad:
            return []
        if not self._exactly and (value.device.type != "cpu" or size * self._most > _ROOM):
            return []
        return _Block(value, self._at, self._most)

    def stacked(self) -> TensorDict:
        """All steps, the last batch dimension of which is named "time"."""
        assert self._columns is not None
        data = self._nested(self._columns)
        data.names = [*self._names[: self._dim], "time", *self._names[self._dim :]]
        return data

    def _nested(self, branch: _Branch, place: Path = ()) -> TensorDict:
        columns, size = branch.columns, branch.size
        values: dict[str, Any] = {}
        for name in list(columns):
            column = columns.pop(name)  # so that it is held no longer than it takes
            here = (*place, name)
            values[name] = self._nested(column, here) if type(column) is _Branch else self._leaf(here, column)
        return TensorDict(values, [*size[: self._dim], self._count, *size[self._dim :]], device=self._device)

    def _leaf(self, path: Path, column: Any) -> Any:
        if isinstance(column, _Block):
            return column.filled(self._count).movedim(self._at, self._dim)
        stack: Any = torch.stack  # which takes TensorDicts and objects too
        try:
            if isinstance(column[0], Tensor):
                return stack(column, self._at).movedim(self._at, self._dim)
            return stack(column, self._dim)
        except RuntimeError as error:
            shapes = list(dict.fromkeys(tuple(value.shape) for value in column))
            if len(shapes) < 2:
                raise
            raise SpaceError(
                f"Expected one shape in every step, but at {'.'.join(path)!r} {shapes[0]} and {shapes[1]} came. Sizes "
                "that vary are -1 in a spec's shape, and are not for return_contiguous=True."
            ) from error


class _Branch:
    """The columns of a TensorDict's entries; of other collections than TensorDicts, each is an entry itself.

    Args:
        data: the first one; it is not taken in yet.
        column: makes the column of a leaf: a list, or a `_Block`.
    """

    __slots__ = ("columns", "size")

    def __init__(self, data: TensorDictBase, column: Callable[[Any], Any]):
        self.size = data.batch_size
        self.columns: dict[str, Any] = {
            name: _Branch(value, column) if type(value) is TensorDict else column(value) for name, value in data.items()
        }

    def append(self, data: TensorDictBase) -> bool:
        """Take in the entries, unless they are others than those of before: whether they are not."""
        columns, count = self.columns, 0
        for name, value in data.items():
            column = columns.get(name)
            if type(column) is list and type(value) is not TensorDict:
                column.append(value)
            elif type(column) is _Branch and type(value) is TensorDict:
                if not column.append(value):
                    return False
            elif type(column) is not _Block or type(value) is TensorDict:
                return False
            elif value.requires_grad:  # which memory that is written into cannot keep
                columns[name] = [*column.rows(), value]
            else:
                column.append(value)
            count += 1
        return count == len(columns)

    def paths(self, place: Path = ()) -> Iterator[Path]:
        """Where there are columns."""
        for name, column in self.columns.items():
            if type(column) is _Branch:
                yield from column.paths((*place, name))
            else:
                yield (*place, name)


class _Block:
    """Memory for a leaf of all steps."""

    def __init__(self, first: Tensor, dim: int, steps: int):
        shape = (*first.shape[:dim], steps, *first.shape[dim:])
        self._whole = torch.empty(shape, dtype=first.dtype, device=first.device)
        self._rows = self._whole.unbind(dim)
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

    def filled(self, count: int) -> Tensor:
        if count == len(self._rows):
            return self._whole
        return self._whole.narrow(self._dim, 0, count).clone()


def _paths(data: Any, place: Path = ()) -> Iterator[Path]:
    """Where there are leaves in nested TensorDicts."""
    for name, value in data.items():
        if type(value) is TensorDict:
            yield from _paths(value, (*place, name))
        else:
            yield (*place, name)
