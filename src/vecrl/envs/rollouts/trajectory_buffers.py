"""Memory for the steps of a rollout: `ArrayBuffer` for leaves of known shapes, `TensorDictBuffer` for TensorDicts.

Large leaves are written into memory that is allocated in advance, so that they are not copied a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ..entries.records import Record

Path = tuple[str, ...]
StepEntries = TensorDictBase | dict[str, Any]
"""The entries of a step, "next" included."""
_BRANCHES = frozenset((TensorDict, Record, dict))
Leaves = Sequence[Any]
"""Arrays or tensors, one per leaf of an observation."""
_MIN_PREALLOC_BYTES = 1 << 15  # bytes per step from which a leaf is preallocated; below, a second copy costs little
_MAX_PREALLOC_BYTES = 1 << 31  # bytes at most to preallocate for a rollout that may end early, on the CPU
_MAX_DEVICE_BYTES = 1 << 28  # the same on a device, where unused memory is occupied too
_MIN_LARGE_PAGES = 1 << 22  # bytes from which NumPy asks for large pages
_BLOCK_STEPS = 32  # see `Column`
_STACKED_STEPS = 64  # see `TensorDictBuffer`
_MIN_BLOCK_ROWS = 256
_MAX_BLOCK_ROW_BYTES = 64


def allocate(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns uninitialized memory. On a CPU, large memory comes from NumPy, which asks Linux for large pages."""
    shape, size = tuple(shape), math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _MIN_LARGE_PAGES:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(size, np.uint8)).view(dtype).view(shape)


def _as_elements(memory: Tensor, dims: int) -> np.ndarray:
    """Returns contiguous memory on a CPU as an array of its first `dims` dimensions, with one element for all others.

    NumPy transposes such elements. torch would copy each number by itself, which takes two to four times as long.
    """
    size = math.prod(memory.shape[dims:]) * memory.itemsize
    kind = np.dtype(np.complex128 if size == 16 else f"V{size}")  # NumPy copies an element of either type at once
    return memory.view(-1).view(torch.uint8).numpy().view(kind).reshape(memory.shape[:dims])


def time_last(value: Tensor, dim: int) -> Tensor:
    """Returns `[time, *rows, ...]` as a contiguous tensor `[*rows, time, ...]`; `rows` has `dim` dimensions."""
    moved = value.movedim(0, dim) if dim else value
    if value.requires_grad or not (value.is_cpu and value.is_contiguous()) or moved.is_contiguous():
        return moved.contiguous()
    result = allocate(moved.shape, value.dtype, value.device)
    _as_elements(result, dim + 1)[...] = np.moveaxis(_as_elements(value, dim + 1), 0, -1)
    return result


class Column:
    """Memory for the values of one leaf in all steps: `column[t] = value` copies the value of step t.

    The values of many rows, of a few bytes each, are collected for a block of steps, since the caches of a CPU are too
    small for writing to so many places in each step. `flush` copies what was collected.

    Args:
        memory: `[*rows, steps, ...]`, the memory.
        dim: the dimension of the steps.

    Attributes:
        steps: the memory of each step, which is up to date after `flush`.
    """

    __slots__ = ("_block", "_block_elements", "_block_steps", "_elements", "_end", "_start", "dim", "memory", "steps")

    def __init__(self, memory: Tensor, dim: int = 0):
        self.memory, self.dim, self.steps = memory, dim, memory.unbind(dim)
        rows, row_bytes = math.prod(memory.shape[:dim]), math.prod(memory.shape[dim + 1 :]) * memory.itemsize
        self._block: Tensor | None = None
        self._start = self._end = 0  # the first step in the block, and the one after the last
        if memory.is_cpu and rows >= _MIN_BLOCK_ROWS and 0 < row_bytes <= _MAX_BLOCK_ROW_BYTES:
            step_shape = memory.shape[:dim] + memory.shape[dim + 1 :]
            self._block = allocate((_BLOCK_STEPS, *step_shape), memory.dtype, memory.device)
            self._block_steps = self._block.unbind(0)
            self._block_elements = _as_elements(self._block, dim + 1)
            self._elements = _as_elements(memory, dim + 1)

    def __setitem__(self, t: int, value: Tensor) -> None:
        if self._block is None:
            self.steps[t].copy_(value)
            return
        if t != self._end or t == self._start + _BLOCK_STEPS:
            self.flush()
            self._start = t
        self._block_steps[t - self._start].copy_(value)
        self._end = t + 1

    def flush(self) -> None:
        """Copies the values of the block into the memory."""
        count = self._end - self._start
        if count:
            self._elements[..., self._start : self._end] = np.moveaxis(self._block_elements[:count], 0, -1)
        self._start = self._end


def _first_steps(memory: Tensor, count: int, dim: int = 0) -> Tensor:
    """Returns the first `count` steps. If there is memory for more, it copies them, so that the rest is freed."""
    return memory if count == memory.shape[dim] else memory.narrow(dim, 0, count).clone()


# -- leaves of known shapes


@dataclass(frozen=True, slots=True)
class ArrayTrajectory:
    """T steps of n rows, or of a single environment, as contiguous tensors.

    Attributes:
        obs: leaves `[*rows, T, ...]`, the observations before the steps.
        next_obs: leaves `[*rows, T, ...]`, the observations after the steps, final observations included.
        reward: `[*rows, T]`.
        terminated, truncated: `[*rows, T]` bool.
    """

    obs: list[Tensor]
    next_obs: list[Tensor]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor

    def with_rows(self, rows: Sequence[int]) -> ArrayTrajectory:
        """Returns the same steps with rows of another shape, instead of n rows."""
        obs, next_obs = ([leaf.view(*rows, *leaf.shape[1:]) for leaf in leaves] for leaves in (self.obs, self.next_obs))
        flags = self.terminated, self.truncated
        return ArrayTrajectory(obs, next_obs, *(leaf.view(*rows, -1) for leaf in (self.reward, *flags)))


class ArrayBuffer:
    """Memory for the leaves of all steps.

    The observation before a step is that after the previous step, except after a reset. So it is copied at the end.

    Args:
        first_obs: the first observations of all rows, one array or tensor `[*rows, ...]` per leaf.
        rows: the shape of a reward.
        reward_dtype: the dtype of rewards.
        max_steps: the maximum number of steps.
        length_is_known: whether there are exactly `max_steps` steps.

    Attributes:
        next_obs: per leaf, the observations after the steps; `next_obs[i][t] = values` writes those of step t.
        reward: the rewards, which are written in the same way.
        capacity: the number of steps for which there is memory.
    """

    def __init__(
        self,
        first_obs: Leaves,
        rows: Sequence[int],
        reward_dtype: torch.dtype,
        max_steps: int,
        length_is_known: bool,
    ):
        self._num_leaves, self._dim = len(first_obs), len(rows)
        self._uses_numpy = not any(isinstance(leaf, Tensor) for leaf in first_obs)
        self._device = torch.device("cpu") if self._uses_numpy else first_obs[0].device
        formats = [
            (leaf.shape, torch.from_numpy(np.empty(0, leaf.dtype)).dtype if self._uses_numpy else leaf.dtype)
            for leaf in first_obs
        ]
        if not self._uses_numpy:  # on a device, all observations before a step may be written one by one
            formats = [*formats, *formats]
        formats.append((rows, reward_dtype))
        self.capacity = max_steps
        if not length_is_known:
            step_bytes = 1 + sum(math.prod(shape) * dtype.itemsize for shape, dtype in formats) + 2 * math.prod(rows)
            limit = _MAX_PREALLOC_BYTES if self._device.type == "cpu" else _MAX_DEVICE_BYTES
            self.capacity = min(max_steps, max(1, limit // step_bytes))
        memory = [
            allocate((*shape[: self._dim], self.capacity, *shape[self._dim :]), dtype, self._device)
            for shape, dtype in formats
        ]
        flags = torch.zeros((2, self.capacity, *rows), dtype=torch.bool, device=self._device)
        self._set_memory(memory, flags)
        self._num_obs = 0  # the number of steps with an observation before the step that is written already
        self._resets: list[tuple[int, Any, Leaves]] = []
        self.add_first_obs(0, ..., first_obs)

    def _set_memory(self, memory: list[Tensor], flags: Tensor) -> None:
        self._memory, self._flags = memory, flags
        columns: list[Any] = [
            self._time_first(leaf) if self._uses_numpy else Column(leaf, self._dim) for leaf in memory
        ]
        *obs, self.reward = self._columns = columns
        self._obs, self.next_obs = obs[: -self._num_leaves], obs[-self._num_leaves :]
        # Few steps have flags, so these are transposed at the end
        self._terminated, self._truncated = flags.numpy() if self._uses_numpy else map(Column, flags)

    def _time_first(self, leaf: Tensor) -> np.ndarray:
        array = leaf.numpy()
        return np.moveaxis(array, self._dim, 0) if self._dim else array

    def _flush(self) -> None:
        if not self._uses_numpy:
            for column in self._columns:
                column.flush()

    def grow(self) -> None:
        """Doubles the memory."""
        self._flush()
        memory = [torch.cat([leaf, torch.empty_like(leaf)], self._dim) for leaf in self._memory]
        self._set_memory(memory, torch.cat([self._flags, torch.zeros_like(self._flags)], 1))
        self.capacity *= 2

    def add_flags(self, t: int, terminated: Any, truncated: Any) -> None:
        """Writes the flags of step t, which are otherwise False."""
        self._terminated[t], self._truncated[t] = terminated, truncated

    def add_first_obs(self, t: int, rows: object, leaves: Leaves) -> None:
        """Adds the observations of `rows` (`...` for all) before step t, if they are not those after step t - 1."""
        if rows is ... and self._obs and self._num_obs == t:
            self._num_obs += 1
            for column, leaf in zip(self._obs, leaves, strict=True):
                column[t] = leaf
        else:
            self._resets.append((t, rows, leaves))

    def to_trajectory(self, num_steps: int) -> ArrayTrajectory:
        """Returns the first `num_steps` steps, which are all that were written."""
        self._flush()
        dim = self._dim
        *leaves, reward = (_first_steps(leaf, num_steps, dim) for leaf in self._memory)
        obs, next_obs = leaves[: -self._num_leaves], leaves[-self._num_leaves :]
        obs = obs or [allocate(leaf.shape, leaf.dtype, leaf.device) for leaf in next_obs]
        start = max(1, min(self._num_obs, num_steps))
        obs_steps: list[Any]
        next_steps: list[Any]
        obs_steps, next_steps = (
            [self._time_first(leaf) if self._uses_numpy else leaf.movedim(dim, 0) for leaf in leaves]
            for leaves in (obs, next_obs)
        )
        for leaf, next_leaf in zip(obs_steps, next_steps, strict=True):
            leaf[start:] = next_leaf[start - 1 : -1]
        for t, rows, first_obs in self._resets:
            for leaf, values in zip(obs_steps, first_obs, strict=True):
                if self._uses_numpy:
                    leaf[t, rows] = values
                else:
                    leaf[t].index_copy_(0, rows, values)
        return ArrayTrajectory(obs, next_obs, reward, *(time_last(flag[:num_steps], dim) for flag in self._flags))


# -- TensorDicts


class TensorDictBuffer:
    """Collects steps leaf by leaf and stacks them into one TensorDict.

    Small leaves are kept in lists, which are stacked after every 64 steps: a tensor of one number takes 500 bytes, so
    those of a long rollout would leave the caches.

    Args:
        dim: the dimension of the result along which steps are stacked.
        max_steps: the maximum number of steps.
        length_is_known: whether there are exactly `max_steps` steps.
    """

    def __init__(self, dim: int, max_steps: int, length_is_known: bool):
        self._dim, self._max_steps, self._length_is_known = dim, max_steps, length_is_known
        self._columns: _NestedColumns | None = None
        self._device: torch.device | None = None
        self._names: list[str | None] = []
        self._count = 0

    def add(self, data: StepEntries) -> None:
        """Adds a step. The first one is a TensorDict.

        Raises:
            SpaceError: if its entries differ from those of the first step, or the shape or dtype of one does.
        """
        if self._columns is None:
            assert isinstance(data, TensorDictBase)
            self._device, self._names = data.device, list(data.names)
            self._columns = _NestedColumns(data, self._column)
        if not self._columns.append(data):
            changed = sorted(repr(".".join(path)) for path in set(self._columns.paths()) ^ set(_paths(data)))
            raise SpaceError(
                f"Expected all steps to have the same entries, got a change of {', '.join(changed)} at step "
                f"{self._count}. Return them in every step, or use return_contiguous=False."
            )
        self._count += 1
        if not self._count % _STACKED_STEPS:
            self._columns.stack(self._dim)

    def _column(self, value: Any) -> Any:
        size = value.numel() * value.element_size() if isinstance(value, Tensor) else 0
        if size < _MIN_PREALLOC_BYTES or value.requires_grad:
            return []
        if not self._length_is_known and (value.device.type != "cpu" or size * self._max_steps > _MAX_PREALLOC_BYTES):
            return []
        return _CheckedColumn(value, self._dim, self._max_steps)

    def to_tensordict(self) -> TensorDict:
        """Returns all steps in one TensorDict, in which dimension `dim` is named "time"."""
        assert self._columns is not None
        data = self._build(self._columns)
        data.names = [*self._names[: self._dim], "time", *self._names[self._dim :]]
        return data

    def _build(self, branch: _NestedColumns) -> TensorDict:
        columns, size = branch.columns, branch.size
        values: dict[str, Any] = {}
        for name in list(columns):
            column = columns.pop(name)  # frees the memory of each column after stacking it
            if type(column) is _NestedColumns:
                values[name] = self._build(column)
            elif type(column) is _CheckedColumn:
                column.flush()
                values[name] = _first_steps(column.memory, self._count, self._dim)
            else:
                values[name] = branch.joined(name, column, self._dim)
        return TensorDict(values, [*size[: self._dim], self._count, *size[self._dim :]], device=self._device)


class _NestedColumns:
    """One column per entry of a TensorDict; a collection of any other type is one entry.

    Args:
        data: the first step, which is not added yet.
        column: makes the column of a leaf: a list, or a `_CheckedColumn`.
        path: the path of the TensorDict.
    """

    __slots__ = ("_blocks", "_path", "columns", "size")

    def __init__(self, data: TensorDictBase, column: Callable[[Any], object], path: Path = ()):
        self.size, self._path = data.batch_size, path
        self.columns: dict[str, Any] = {
            name: _NestedColumns(value, column, (*path, name)) if type(value) is TensorDict else column(value)
            for name, value in data.items()
        }
        self._blocks: dict[str, list[Tensor]] = {}  # of earlier steps, for columns that are lists

    def append(self, data: StepEntries) -> bool:
        """Adds the entries of a step; returns False if they differ from those of the first step."""
        columns, count = self.columns, 0
        value: Any
        for name, value in data.items():
            column = columns.get(name)
            is_branch = type(value) in _BRANCHES
            if type(column) is list and not is_branch:
                column.append(value)
            elif type(column) is _NestedColumns and is_branch:
                if not column.append(value):
                    return False
            elif type(column) is not _CheckedColumn or is_branch:
                return False
            elif value.requires_grad:  # preallocated memory would lose the gradient
                column.flush()
                columns[name] = [*column.steps[: column.count], value]
            else:
                column.append(value)
            count += 1
        return count == len(columns)

    def stack(self, dim: int) -> None:
        """Stacks the small tensors that are in lists along a new dimension of time.

        Raises:
            SpaceError: their shapes differ.
        """
        for name, column in self.columns.items():
            if type(column) is _NestedColumns:
                column.stack(dim)
            elif type(column) is list and isinstance(column[0], Tensor) and column[0].nbytes < _MIN_PREALLOC_BYTES:
                self._blocks.setdefault(name, []).append(self._stacked(name, column, dim))
                column.clear()

    def joined(self, name: str, column: list[Any], dim: int) -> Any:
        """Returns all values of a column that is a list, stacked along a new dimension of time.

        Raises:
            SpaceError: their shapes differ.
        """
        blocks = self._blocks.pop(name, [])
        if column:
            blocks.append(self._stacked(name, column, dim))
        if len(blocks) == 1:
            return blocks[0]
        self._check_equal(name, [block.select(dim, 0) if isinstance(block, Tensor) else block for block in blocks])
        return torch.cat(blocks, dim)

    def _stacked(self, name: str, values: list[Any], dim: int) -> Any:
        stack: Any = torch.stack  # typed for tensors only, accepts TensorDicts and objects too
        try:
            return stack(values, dim)
        except (AttributeError, RuntimeError):
            self._check_equal(name, values)
            raise

    def _check_equal(self, name: str, values: list[Any]) -> None:
        """Checks that values are tensors, or that none is, and that their shapes are equal."""
        path = ".".join((*self._path, name))
        if len({isinstance(value, Tensor) for value in values}) > 1:
            raise SpaceError(
                f"Expected tensors in all steps at {path!r}, or in none, got both. Use return_contiguous=False."
            )
        shapes = list(dict.fromkeys(tuple(value.shape) for value in values))
        if len(shapes) > 1:
            raise SpaceError(
                f"Expected equal shapes in all steps at {path!r}, got {shapes[0]} and {shapes[1]}. Use "
                "return_contiguous=False if shapes vary, and -1 for these sizes in the spec."
            )

    def paths(self) -> Iterator[Path]:
        """Yields the paths of the columns."""
        for name, column in self.columns.items():
            if type(column) is _NestedColumns:
                yield from column.paths()
            else:
                yield (*self._path, name)


class _CheckedColumn(Column):
    """A column for values of one shape and dtype, which are appended."""

    __slots__ = ("count",)

    def __init__(self, example: Tensor, dim: int, steps: int):
        super().__init__(
            allocate((*example.shape[:dim], steps, *example.shape[dim:]), example.dtype, example.device), dim
        )
        self.count = 0

    def append(self, value: Tensor) -> None:
        row = self.steps[self.count]
        if value.shape != row.shape:
            raise SpaceError(f"Expected shape {tuple(row.shape)} in every step, got {tuple(value.shape)}.")
        if value.dtype != row.dtype:
            raise SpaceError(f"Expected {row.dtype} in every step, got {value.dtype}.")
        self[self.count] = value
        self.count += 1


def _paths(data: StepEntries, prefix: Path = ()) -> Iterator[Path]:
    """Yields the paths of the leaves of nested TensorDicts or dicts."""
    value: Any
    for name, value in data.items():
        if type(value) in _BRANCHES:
            yield from _paths(value, (*prefix, name))
        else:
            yield (*prefix, name)
