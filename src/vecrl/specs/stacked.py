"""Specs that are not equal, stacked along a dimension: `Stacked` for leaf specs, `StackedComposite` for Composites."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np
import tensordict
import torch
from tensordict import LazyStackedTensorDict, is_tensor_collection
from torch import Generator, Tensor

from ..errors import SpaceError
from . import shape_ops
from .base import Device, TensorSpec
from .composite import MISSING, Composite, copy_with_shape, entries_of, key_path
from .non_tensor import NonTensor
from .numeric import Unbounded
from .shape_methods import rearrange
from .shape_ops import ShapeLike, ShapeOp

S = TypeVar("S", bound=TensorSpec)
T = TypeVar("T")


class LazyStack(TensorSpec, Generic[S]):
    """Specs stacked along `dim`, without a common spec."""

    specs: list[S]
    dim: int

    def __init__(self, *specs: S, dim: int):
        if not specs:
            raise SpaceError("Expected at least one spec to stack.")
        properties = {(spec.ndim, spec.dtype, str(spec.device)) for spec in specs}
        if len(properties) > 1:
            raise SpaceError(
                "Expected specs of one number of dimensions, dtype and device to stack, got "
                f"{sorted(map(str, properties))}."
            )
        self.specs = list(specs)
        self.dim = shape_ops.normalize_dim(dim, specs[0].ndim + 1, "stack along")

    def _stacked_shape(self) -> torch.Size:
        shapes = [spec.shape for spec in self.specs]
        common_sizes = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
        return torch.Size([*common_sizes[: self.dim], len(self.specs), *common_sizes[self.dim :]])

    @property
    def stack_dim(self) -> int:
        """The dimension along which the specs are stacked."""
        return self.dim

    def _state(self) -> Sequence[object]:
        return LazyStack, self.specs, self.dim

    def _map_specs(self, function: Callable[[S], S]) -> Self:
        return type(self)(*map(function, self.specs), dim=self.dim)

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        return self._map_specs(lambda spec: spec.to(dest))

    def clone(self) -> Self:
        return self._map_specs(lambda spec: spec.clone())

    def __getitem__(self, index: object) -> Any:
        if isinstance(index, int) and self.dim == 0 and -len(self.specs) <= index < len(self.specs):
            return self.specs[index]  # a shortcut for the usual case
        return super().__getitem__(index)

    def _rearrange(self, op: ShapeOp) -> Any:
        if op.merges and op.out_shape == op.in_shape:
            return self
        position = self._position_after(op)
        count = len(self.specs)
        sizes = [max(size, 1) for size in shape_ops.concrete(op.in_shape)]  # so that no dimension is empty
        sizes[self.dim] = count
        spec_ids = op.apply(torch.arange(count).as_strided(sizes, [int(dim == self.dim) for dim in range(self.ndim)]))
        if position is None:
            return self._part(op, int(spec_ids.reshape(-1)[0]), None, 0)
        if not spec_ids.shape[position]:
            raise SpaceError("Expected an index that selects at least one spec of the lazy stack, got an empty one.")
        chosen = spec_ids.as_strided((spec_ids.shape[position],), (spec_ids.stride(position),))  # the others are equal
        parts: Any = [self._part(op, spec_id, position, item) for item, spec_id in enumerate(chosen.tolist())]
        return torch.stack(parts, position) if op.verb == "index" else type(self)(*parts, dim=position)

    def _position_after(self, op: ShapeOp) -> int | None:
        """Returns the stacked dimension of the result; None if `op` selects a single spec."""
        if self.dim in op.sources and op.dynamic_dim != self.dim:
            return op.sources.index(self.dim)
        if op.gathered is not None and op.gathered[0] == self.dim:
            return op.gathered[1]
        if op.verb == "index" and not op.keeps_names:
            raise SpaceError("A lazy stack can be indexed with a single tensor only, which must be a vector.")
        if op.merges or op.dynamic_dim == self.dim:
            raise SpaceError(
                f"Cannot {op.verb} a lazy stack of shape {tuple(self.shape)}: its specs differ along {self.dim}."
            )
        return None

    def _part(self, op: ShapeOp, spec_id: int, position: int | None, item: int) -> S:
        """Returns what a spec is in the result: the element `item` along `position`, or the whole result."""
        spec = self.specs[spec_id]
        part_op = op.for_slice(self.dim, len(self.specs), spec.shape, position, item)
        return spec if position is None and part_op.is_identity else rearrange(spec, part_op)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        dim = shape_ops.normalize_dim(dim, self.ndim, "unbind")
        return tuple(self.specs) if dim == self.dim else super().unbind(dim)

    def _unstack(self, val: Any) -> list[Any]:
        """Splits a value of the stack, or a sequence, into one value per spec."""
        if isinstance(val, list | tuple):
            rows: list[Any] = list(val)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        elif isinstance(val, np.ndarray):
            rows = list(np.moveaxis(val, self.dim - self.ndim, 0))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(val, Tensor):
            rows = list(val.unbind(0 if val.is_nested else self.dim - self.ndim))
        else:
            rows = list(val.unbind(self._dim_in(val)))
        if len(rows) != len(self.specs):
            raise SpaceError(f"Expected {len(self.specs)} values along dimension {self.dim}, got {len(rows)}.")
        return rows

    def _dim_in(self, val: Any) -> int:
        """Returns the stacked dimension of `val`, which may have batch dimensions in front."""
        return len(val.shape) - self.ndim + self.dim

    def _map_rows(self, val: object, function: Callable[[S, Any], T]) -> list[T]:
        """Calls `function` with each spec and its value in `val`."""
        return [function(spec, row) for spec, row in zip(self.specs, self._unstack(val), strict=True)]

    def _stack_rows(self, rows: Sequence[Any], dim: int) -> Any:
        """Stacks one value per spec along `dim`."""
        return tensordict.lazy_stack(list(rows), dim)

    def _stack_values(self, shape: ShapeLike | None, value_of: Callable[[S], object]) -> Any:
        num_extra_dims = 0 if shape is None else len(shape_ops.as_size(shape))
        return self._stack_rows([value_of(spec) for spec in self.specs], self.dim + num_extra_dims)

    def rand(self, shape: ShapeLike | None = None, *, generator: Generator | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: ShapeLike | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.zero(shape))

    def one(self, shape: ShapeLike | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.one(shape))

    def encode(self, val: object, *, ignore_device: bool = False) -> Any:
        """Encodes one value per spec (a sequence, or an array along the stacked dimension) and stacks the results."""
        rows = self._map_rows(val, lambda spec, row: spec.encode(row, ignore_device=ignore_device))
        return self._stack_rows(rows, self.dim)

    def mismatch(self, val: object) -> str | None:
        try:
            rows = self._unstack(val)
        except (SpaceError, IndexError, AttributeError) as error:
            return str(error)
        problems = ((i, spec.mismatch(row)) for i, (spec, row) in enumerate(zip(self.specs, rows, strict=True)))
        return next((f"in element {i} of the stack: {problem}" for i, problem in problems if problem is not None), None)

    def cardinality(self) -> int | float:
        """Returns the product over the specs."""
        return math.prod(spec.cardinality() for spec in self.specs)

    def enumerate(self, use_mask: bool = False) -> Any:
        raise NotImplementedError("The values of a lazy stack cannot be enumerated. Enumerate those of its specs.")


@TensorSpec.implements_for_spec(torch.stack)
def stack_specs(tensors: Sequence[object], dim: int = 0, *, out: object = None) -> Any:
    """Returns the spec of values stacked along `dim`: an ordinary spec if the specs are equal, else a lazy stack.

    Raises:
        SpaceError: there are no specs, their dtypes, devices or numbers of dimensions differ, or `out` is given.
    """
    if out is not None:
        raise SpaceError("Specs cannot be stacked into an existing one. Omit `out`.")
    specs: list[Any] = list(tensors)
    if not specs:
        raise SpaceError("Expected at least one spec to stack.")
    if not all(isinstance(spec, TensorSpec) for spec in specs):
        raise SpaceError(f"Expected only specs to stack, got {', '.join(type(spec).__name__ for spec in specs)}.")
    first_spec = specs[0]
    if len({isinstance(spec, Composite) for spec in specs}) > 1:
        kinds = ", ".join(type(spec).__name__ for spec in specs)
        raise SpaceError(
            f"Expected only Composites or only other specs to stack, got {kinds}. Put all into Composites."
        )
    dim = shape_ops.normalize_dim(dim, first_spec.ndim + 1, "stack along")
    if all(spec == first_spec for spec in specs):
        try:
            sizes = [-1] * (first_spec.ndim + 1)
            sizes[dim] = len(specs)
            return first_spec.unsqueeze(dim).expand(*sizes)
        except SpaceError:
            pass  # behind the dimension of a one-hot row, specs can only be stacked lazily
    return (StackedComposite if isinstance(first_spec, Composite) else Stacked)(*specs, dim=dim)


class Stacked(LazyStack[TensorSpec]):
    """A lazy stack of leaf specs of unequal shapes, bounds or classes.

    Sizes that differ are -1 in the shape. Values are ordinary tensors if the shapes are equal, else nested tensors.
    Values of a `StackedComposite` are lazily stacked TensorDicts instead.

    Args:
        specs: the specs to stack.
        dim: the position of the stacked dimension.

    >>> from vecrl.specs import Unbounded
    >>> spec = torch.stack([Unbounded((3,)), Unbounded((4,))])
    >>> spec.shape, spec[1].shape, [value.shape[0] for value in spec.rand().unbind()]
    (torch.Size([2, -1]), torch.Size([4]), [3, 4])
    """

    def __init__(self, *specs: TensorSpec, dim: int):
        if any(isinstance(spec, Composite) for spec in specs):
            raise SpaceError("Stacked holds leaf specs; StackedComposite holds Composites.")
        super().__init__(*specs, dim=dim)
        self.shape = self._stacked_shape()
        self.dtype = self.specs[0].dtype
        self.device = self.specs[0].device
        domains = {spec.domain for spec in self.specs}
        self.domain = domains.pop() if len(domains) == 1 else None

    def _stack_rows(self, rows: Sequence[Any], dim: int) -> Any:
        if not isinstance(rows[0], Tensor):
            return super()._stack_rows(rows, dim)
        if len({row.shape for row in rows}) == 1:
            return torch.stack(list(rows), dim)
        if dim:
            raise SpaceError(
                f"Values of the unequal shapes {[tuple(row.shape) for row in rows]} can only be nested along the "
                f"first dimension, not along {dim}. Stack Composites instead: their values are lazy stacks."
            )
        with warnings.catch_warnings():  # torch warns that nested tensors are a prototype
            warnings.simplefilter("ignore", UserWarning)
            return torch.nested.nested_tensor(list(rows))

    def project(self, val: object) -> Any:
        """Returns `val` itself if it is in the spec, else the nearest values of the specs."""
        if self.is_in(val):
            return val
        rows = self._map_rows(val, lambda spec, row: spec.project(row))
        has_batch = isinstance(val, Tensor) and not val.is_nested
        return self._stack_rows(rows, self._dim_in(val) if has_batch else self.dim)

    def to_numpy(self, val: object, safe: bool | None = None) -> Any:
        """Converts to an array, or to a list of arrays if their shapes differ."""
        rows = self._map_rows(val, lambda spec, row: spec.to_numpy(row, safe))
        batch_dims = val.ndim - self.ndim if isinstance(val, Tensor) and not val.is_nested else 0
        return _stack_arrays(rows, self.dim + batch_dims)

    def type_check(self, value: Any, key: object = None) -> None:
        self.specs[0].type_check(value, key)

    def __repr__(self) -> str:
        return f"Stacked({', '.join(map(repr, self.specs))}, dim={self.dim})"


class StackedComposite(LazyStack[Composite], Composite):
    """A lazy stack of Composites with unequal keys or entries; the spec of a lazily stacked TensorDict.

    Its keys are those that all Composites have. `spec[i]` along the stacked dimension is the Composite itself, with all
    its keys, so changes and locks of it apply to the stack. Setting an entry sets one part of it in each Composite.

    Args:
        specs: the Composites to stack.
        dim: the position of the stacked batch dimension.

    >>> from vecrl.specs import Binary, Unbounded
    >>> spec = torch.stack([Composite(a=Unbounded((3,))), Composite(a=Unbounded((4,)), b=Binary(2))])
    >>> list(spec.keys()), spec["a"].shape, list(spec[1].keys())
    (['a'], torch.Size([2, -1]), ['a', 'b'])
    """

    def __init__(self, *specs: Composite, dim: int):
        if not all(isinstance(spec, Composite) for spec in specs):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpaceError("StackedComposite holds Composites; Stacked holds leaf specs.")
        super().__init__(*specs, dim=dim)
        self.data_cls = None
        self.step_mdp_static = all(spec.step_mdp_static for spec in self.specs)

    @property
    def shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
        """The batch shape, including the stacked dimension. It cannot be set."""
        return self._stacked_shape()

    @property
    def device(self) -> torch.device | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.specs[0].device

    @property
    def names(self) -> shape_ops.Names:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The names of the batch dimensions, None for the stacked one. They cannot be set."""
        names = self.specs[0].names
        return [*names[: self.dim], None, *names[self.dim :]]

    def _entries(self) -> dict[str, TensorSpec | None]:
        first_entries, *other_entries = (entries_of(spec) for spec in self.specs)
        common_names = [name for name in first_entries if all(name in entries for entries in other_entries)]
        return {
            name: self._stack_entries([first_entries[name], *(entries[name] for entries in other_entries)])
            for name in common_names
        }

    def _stack_entries(self, entries: Sequence[TensorSpec | None]) -> TensorSpec | None:
        if any(entry is None for entry in entries):
            return None
        composites = [entry for entry in entries if isinstance(entry, Composite)]
        if len(composites) == len(entries):
            return StackedComposite(*composites, dim=self.dim)  # also if they are equal, so that changes apply to them
        return stack_specs(entries, self.dim)

    def _set_entry(self, name: str, spec: TensorSpec | None) -> None:
        self._set_parts((name,), spec)

    def _set_parts(self, key: tuple[str, ...], spec: TensorSpec | None) -> None:
        parts = [None] * len(self.specs) if spec is None else spec.unbind(self.dim)
        for composite, part in zip(self.specs, parts, strict=True):
            composite.set(key, part)

    def _delete_entry(self, name: str) -> None:
        for spec in self.specs:
            spec.pop(name)

    def set(self, name: object, spec: object) -> Self:
        self._require_unlocked(f"{name!r}")
        key = key_path(name)
        self._set_parts(key, self._validated_entry(key[-1], spec))
        return self

    def pop(self, key: object, default: object = MISSING) -> Any:
        self._require_unlocked(f"{key!r}")
        result = self.get(key, default)
        for spec in self.specs:
            spec.pop(key, None)
        return result

    def __delitem__(self, key: object) -> None:
        """Removes an entry of the Composites that have it."""
        if all(key not in spec for spec in self.specs):
            raise KeyError(
                f"Expected a key of one of the stacked Composites, got {key!r}. See keys() of each one in `specs`."
            )
        self._require_unlocked(f"{key!r}")
        for spec in self.specs:
            spec.pop(key, None)

    def _copy_with_shape(self, shape: torch.Size, device: torch.device | None = None) -> Self:
        inner_shape = torch.Size([*shape[: self.dim], *shape[self.dim + 1 :]])
        return self._map_specs(
            lambda spec: copy_with_shape(spec, inner_shape if len(inner_shape) > spec.ndim else spec.shape, device)
        )

    @property
    def is_locked(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return any(spec.is_locked for spec in self.specs)

    def _nested(self) -> Sequence[Composite]:
        return self.specs

    def lock_(self, recurse: bool | None = None) -> Self:
        if recurse is not False:
            return super().lock_()
        for spec in self.specs:
            spec.lock_(recurse=False)
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        if recurse is not False:
            return super().unlock_()
        for spec in self.specs:
            spec.unlock_(recurse=False)
        return self

    def to(self, dest: Device | torch.dtype) -> Self:
        return self if dest is None else self._map_specs(lambda spec: spec.to(dest))

    def clear_device_(self) -> Self:
        for spec in self.specs:
            spec.clear_device_()
        return self

    def empty(self) -> Self:
        return self._map_specs(lambda spec: spec.empty())

    def project(self, val: Any) -> Any:
        """Replaces the entries of `val` that are not in their specs by the nearest values, as `Composite.project`."""
        stacked, rows = is_tensor_collection(val), self._unstack(val)
        if stacked and val.is_locked:
            rows = [row.lock_() for row in rows]  # writes to a locked row go to the memory of `val`
        rows = [spec.project(row) for spec, row in zip(self.specs, rows, strict=True)]
        if not stacked:
            return tensordict.lazy_stack(rows, self.dim)
        dim = self._dim_in(val)
        rows_are_views = isinstance(val, LazyStackedTensorDict) and val.stack_dim == dim
        return val if rows_are_views or val.is_locked else val.update(tensordict.lazy_stack(rows, dim))

    def __len__(self) -> int:
        """Returns the number of stacked Composites."""
        return len(self.specs)

    def _unstack(self, val: Any) -> list[Any]:
        if isinstance(val, dict):  # a result of `to_numpy`
            val = [_row_of(val, index, self.dim) for index in range(len(self.specs))]
        return super()._unstack(val)

    def to_numpy(self, val: object, safe: bool | None = None) -> Any:
        """Converts to a nested dict. Arrays of unequal shapes are in lists, with None where a key is missing."""
        batch_dims = self._dim_in(val) - self.dim if is_tensor_collection(val) else 0
        return _stack_arrays(self._map_rows(val, lambda spec, row: spec.to_numpy(row, safe)), self.dim + batch_dims)

    def type_check(self, value: object, key: object = None) -> None:
        for spec, row in zip(self.specs, self._unstack(value), strict=True):
            spec.type_check(row, key)

    def __repr__(self) -> str:
        body = ",\n".join(map(repr, self.specs)).replace("\n", "\n    ")
        return f"StackedComposite(\n    {body},\n    dim={self.dim})"


def _row_of(value: Any, index: int, dim: int) -> Any:
    """Returns one of the rows that `_stack_arrays` stacked along `dim`."""
    if isinstance(value, dict):
        rows = {name: _row_of(entry, index, dim) for name, entry in value.items()}  # pyright: ignore[reportUnknownVariableType]
        return {name: row for name, row in rows.items() if row is not None}  # pyright: ignore[reportUnknownVariableType]
    return value[index] if isinstance(value, list) else np.take(value, index, dim)  # pyright: ignore[reportUnknownVariableType]


def _stack_arrays(rows: Sequence[Any], dim: int) -> Any:
    """Stacks arrays, or nested dicts of arrays, along `dim`; returns a list if they do not fit together."""
    if all(isinstance(row, dict) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _stack_arrays([row.get(name) for row in rows], dim) for name in names}
    if all(isinstance(row, np.ndarray) for row in rows) and len({row.shape for row in rows}) == 1:
        return np.stack(list(rows), dim)
    return list(rows)


def consolidate_spec(spec: S, recurse_through_entries: bool = True, recurse_through_stack: bool = True) -> S:
    """Returns a copy in which all specs of a lazy stack have the same keys, so that no entry is exclusive.

    A missing entry becomes one of the same kind with sizes of 0. Entries without dimensions, and objects, are copied.

    Args:
        spec: the spec; a spec without lazy stacks is only copied.
        recurse_through_entries: whether to treat lazy stacks in the entries of Composites too.
        recurse_through_stack: whether to treat lazy stacks in the specs of a lazy stack too.

    >>> import torch
    >>> spec = torch.stack([Composite(a=Unbounded((3,))), Composite(a=Unbounded((4,)), b=Unbounded((2,)))])
    >>> consolidated = consolidate_spec(spec)
    >>> list(consolidated.keys()), consolidated[0]["b"].shape, list(spec.keys())
    (['a', 'b'], torch.Size([0]), ['a'])
    """
    copied = spec.clone()
    if isinstance(copied, StackedComposite):
        parts: list[Composite] = list(copied.specs)
        if recurse_through_stack:
            parts = [consolidate_spec(part, recurse_through_entries, True) for part in parts]
        _add_missing(parts)
        return type(copied)(*parts, dim=copied.dim)
    if isinstance(copied, Composite) and recurse_through_entries:
        for name, entry in list(copied.items()):
            if isinstance(entry, Composite):
                copied[name] = consolidate_spec(entry, True, recurse_through_stack)
    return copied


def _add_missing(parts: Sequence[Composite]) -> None:
    """Adds the entries that some Composites lack, in place."""
    names = dict.fromkeys(str(name) for part in parts for name in part.keys())  # noqa: SIM118 - a Composite is no dict
    for name in names:
        examples = [part[name] for part in parts if name in part.keys()]  # noqa: SIM118
        for part in parts:
            if name not in part.keys():  # noqa: SIM118
                part[name] = _empty_spec(examples[0], part.ndim)
        nested = [entry for part in parts if isinstance(entry := part[name], Composite)]
        if len(nested) == len(parts):
            _add_missing(nested)


def _empty_spec(spec: TensorSpec | None, batch_dims: int) -> TensorSpec | None:
    """Returns a spec of the same kind with sizes of 0 after the batch dimensions; None for None."""
    if spec is None:
        return None
    if isinstance(spec, Composite):
        entries = {str(name): _empty_spec(entry, batch_dims) for name, entry in spec.items()}
        return Composite(entries, shape=spec.shape[:batch_dims], device=spec.device)
    feature_dims = spec.ndim - batch_dims
    if feature_dims == 0 or isinstance(spec, NonTensor):
        return spec.clone()
    try:
        return spec[(slice(None),) * batch_dims + (slice(0, 0),) * feature_dims]
    except (SpaceError, IndexError):  # a dimension encodes one choice
        return Unbounded((*spec.shape[:batch_dims], *[0] * feature_dims), spec.device, spec.dtype)
