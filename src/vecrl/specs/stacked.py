"""Specs that are not equal, stacked along a dimension: `Stacked` for leaf specs, `StackedComposite` for Composites."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import tensordict
import torch
from tensordict import LazyStackedTensorDict, is_tensor_collection
from torch import Tensor

from ..errors import SpaceError
from . import shape_ops
from .base import Device, TensorSpec
from .composite import Composite
from .composite_mapping import MISSING, copy_with_shape, entries_of, key_path
from .lazy_stack import LazyStack


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

    _kind = "Stacked"

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

    _kind = "StackedComposite"

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
