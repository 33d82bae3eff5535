"""Steps of a rollout behind one another, leaf by leaf, without a TensorDict more than the result.

Small leaves are listed and stacked at the end, which is quickest; large ones are written where they are to stay, so
that nothing is held twice. Knows TensorDicts, not environments.
"""

from __future__ import annotations

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
        self._columns: dict[Path, Any] = {}
        self._sizes: dict[Path, torch.Size] = {}
        self._device: torch.device | None = None
        self._names: list[str | None] = []
        self._count = 0

    def add(self, data: TensorDictBase) -> None:
        """Take in a step.

        Raises:
            SpaceError: it has other entries than the first one, or one of another shape.
        """
        leaves: dict[Path, Any] = {}
        _flatten(data, (), leaves, None)
        if not self._count:
            _flatten(data, (), {}, self._sizes)
            self._device, self._names = data.device, list(data.names)
            self._columns = {path: self._column(value) for path, value in leaves.items()}
        elif leaves.keys() != self._columns.keys():
            changed = sorted(repr(".".join(path)) for path in leaves.keys() ^ self._columns.keys())
            raise SpaceError(
                f"Expected all steps to have the same entries, but {', '.join(changed)} came or went at step "
                f"{self._count}. Give them at every step, or keep steps as they are with return_contiguous=False."
            )
        for path, value in leaves.items():
            column = self._columns[path]
            if isinstance(column, _Block) and value.requires_grad:  # which memory that is written into cannot keep
                column = self._columns[path] = column.rows()
            column.append(value)
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
        data = self._nested(())
        data.names = [*self._names[: self._dim], "time", *self._names[self._dim :]]
        return data

    def _nested(self, place: Path) -> TensorDict:
        depth = len(place)
        values: dict[str, Any] = {}
        for path in [path for path in self._columns if path[:depth] == place]:
            name = path[depth]
            if len(path) > depth + 1:
                if name not in values:
                    values[name] = self._nested((*place, name))
            else:
                values[name] = self._leaf(path, self._columns.pop(path))
        size = self._sizes[place]
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


def _flatten(data: Any, place: Path, leaves: dict[Path, Any], sizes: dict[Path, torch.Size] | None) -> None:
    """The leaves of nested TensorDicts by path, and the batch sizes of these; other collections count as leaves."""
    if sizes is not None:
        sizes[place] = data.batch_size
    for name, value in data.items():
        if type(value) is TensorDict:
            _flatten(value, (*place, name), leaves, sizes)
        else:
            leaves[(*place, name)] = value
