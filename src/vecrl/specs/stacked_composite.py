"""`StackedComposite`: lazy stacks of Composites with unequal keys or entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import tensordict
import torch
from tensordict import LazyStackedTensorDict, is_tensor_collection
from torch import Generator

from ..errors import SpaceError
from . import shape_ops
from .composite import Composite
from .composite_mapping import MISSING, key_path
from .lazy_stack import LazyStack


class StackedComposite(LazyStack, Composite):
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

    def __init__(self, *specs: Any, dim: int):
        if not all(isinstance(spec, Composite) for spec in specs):
            raise SpaceError("StackedComposite holds Composites; Stacked holds leaf specs.")
        self._init_stack(specs, dim)
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

    def _entries(self) -> dict[str, Any]:
        first_entries, *other_entries = (spec._entries() for spec in self.specs)
        common_names = [name for name in first_entries if all(name in entries for entries in other_entries)]
        return {
            name: self._stack_entries([first_entries[name], *(entries[name] for entries in other_entries)])
            for name in common_names
        }

    def _stack_entries(self, entries: list[Any]) -> Any:
        if any(entry is None for entry in entries):
            return None
        if all(isinstance(entry, Composite) for entry in entries):
            return StackedComposite(*entries, dim=self.dim)  # also if they are equal, so that changes apply to them
        return torch.stack(entries, self.dim)

    def _set_entry(self, name: str, spec: Any) -> None:
        per_spec = [None] * len(self.specs) if spec is None else spec.unbind(self.dim)
        for sub_spec, spec_part in zip(self.specs, per_spec, strict=True):
            sub_spec.set(name, spec_part)

    def _delete_entry(self, name: str) -> None:
        for spec in self.specs:
            spec._delete_entry(name)

    def set(self, name: Any, spec: Any) -> Self:
        self._require_unlocked(f"{name!r}")
        key = key_path(name)
        spec = self._validated_entry(key[-1], spec)
        for sub_spec, spec_part in zip(
            self.specs, [None] * len(self.specs) if spec is None else spec.unbind(self.dim), strict=True
        ):
            sub_spec.set(key, spec_part)
        return self

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        self._require_unlocked(f"{key!r}")
        result = self.get(key, default)
        for spec in self.specs:
            spec.pop(key, None)
        return result

    def _copy_with_shape(self, shape: torch.Size, device: torch.device | None = None) -> Any:
        inner_shape = torch.Size([*shape[: self.dim], *shape[self.dim + 1 :]])
        return self._map_specs(
            lambda spec: spec._copy_with_shape(inner_shape if len(inner_shape) > spec.ndim else spec.shape, device)
        )

    @property
    def is_locked(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return any(spec.is_locked for spec in self.specs)

    def _set_lock(self, value: bool) -> Self:
        for spec in self.specs:
            spec._set_lock(value)
        return self

    def to(self, dest: Any) -> Self:
        return self if dest is None else self._map_specs(lambda spec: spec.to(dest))

    def clear_device_(self) -> Self:
        for spec in self.specs:
            spec.clear_device_()
        return self

    def empty(self) -> Any:
        return self._map_specs(lambda spec: spec.empty())

    def _stack_values(self, shape: Any, value_of: Callable[[Any], Any]) -> Any:
        num_extra_dims = 0 if shape is None else len(shape_ops.as_size(shape))
        return tensordict.lazy_stack([value_of(spec) for spec in self.specs], self.dim + num_extra_dims)

    def rand(self, shape: Any = None, *, generator: Generator | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: Any = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.zero(shape))

    def one(self, shape: Any = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.one(shape))

    def project(self, val: Any) -> Any:
        """Replaces the entries of `val` that are not in their specs by the nearest values, as `Composite.project`."""
        stacked, rows = is_tensor_collection(val), self._unstack(val)
        if stacked and val.is_locked:
            rows = [row.lock_() for row in rows]  # writes to a locked row go to the memory of `val`
        rows = [spec.project(row) for spec, row in zip(self.specs, rows, strict=True)]
        if not stacked:
            return tensordict.lazy_stack(rows, self.dim)
        dim = len(val.shape) - self._num_dims_behind()
        rows_are_views = isinstance(val, LazyStackedTensorDict) and val.stack_dim == dim
        return val if rows_are_views or val.is_locked else val.update(tensordict.lazy_stack(rows, dim))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Encodes one mapping or TensorDict per Composite and stacks the results lazily."""
        rows = zip(self.specs, self._unstack(val), strict=True)
        return tensordict.lazy_stack([spec.encode(row, ignore_device=ignore_device) for spec, row in rows], self.dim)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Converts to a list of nested dicts, one per Composite."""
        return [spec.to_numpy(row, safe) for spec, row in zip(self.specs, self._unstack(val), strict=True)]

    def type_check(self, value: Any, key: Any = None) -> None:
        for spec, row in zip(self.specs, self._unstack(value), strict=True):
            spec.type_check(row, key)

    def __repr__(self) -> str:
        body = ",\n".join(map(repr, self.specs)).replace("\n", "\n    ")
        return f"StackedComposite(\n    {body},\n    dim={self.dim})"
