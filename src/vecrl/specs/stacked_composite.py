"""`StackedComposite`: Composites of unequal keys or entries, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import tensordict
import torch
from tensordict import LazyStackedTensorDict, is_tensor_collection
from torch import Generator

from ..errors import SpaceError
from . import data, moves, torch_functions
from .composite import Composite
from .lazy import LazyStack
from .mapping import MISSING


class StackedComposite(LazyStack, Composite):
    """Composites of unequal keys or entries, side by side; the spec of a lazily stacked TensorDict.

    Its keys are those that all of them have; `spec[i]` along the stacked dimension is one of them itself, with all of
    its keys, so edits and locks of it are edits and locks of the stack. To set an entry sets a part of it in each.

    Args:
        specs: what is stacked.
        dim: the batch dimension that comes in.

    >>> from vecrl.specs import Binary, Unbounded
    >>> spec = torch.stack([Composite(a=Unbounded((3,))), Composite(a=Unbounded((4,)), b=Binary(2))])
    >>> list(spec.keys()), spec["a"].shape, list(spec[1].keys())
    (['a'], torch.Size([2, -1]), ['a', 'b'])
    """

    _kind = "StackedComposite"

    def __init__(self, *specs: Any, dim: int):
        if not all(isinstance(spec, Composite) for spec in specs):
            raise SpaceError("StackedComposite holds Composites; Stacked holds leaf specs.")
        self._take(specs, dim)
        self.data_cls = None
        self.step_mdp_static = all(spec.step_mdp_static for spec in self.specs)

    @property
    def shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
        """The batch shape, with the stacked dimension. It cannot be set."""
        return self._stacked_shape()

    @property
    def device(self) -> torch.device | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.specs[0].device

    @property
    def names(self) -> moves.Names:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of the batch dimensions, None for the stacked one. They cannot be set."""
        names = self.specs[0].names
        return [*names[: self.dim], None, *names[self.dim :]]

    def _entries(self) -> dict[str, Any]:
        first, *rest = (spec._entries() for spec in self.specs)
        common = [name for name in first if all(name in entries for entries in rest)]
        return {name: self._entry([first[name], *(entries[name] for entries in rest)]) for name in common}

    def _entry(self, entries: list[Any]) -> Any:
        if any(entry is None for entry in entries):
            return None
        if all(isinstance(entry, Composite) for entry in entries):
            return StackedComposite(*entries, dim=self.dim)  # also of equal ones, so that edits reach them
        return torch_functions.stack(entries, self.dim)

    def _put(self, name: str, spec: Any) -> None:
        parts = [None] * len(self.specs) if spec is None else spec.unbind(self.dim)
        for own, part in zip(self.specs, parts, strict=True):
            own.set(name, part)

    def _drop(self, name: str) -> None:
        for spec in self.specs:
            spec._drop(name)

    def set(self, name: Any, spec: Any) -> Self:
        self._refuse_if_locked(f"{name!r}")
        key = data.path(name)
        spec = self._fitting(key[-1], spec)
        for own, part in zip(
            self.specs, [None] * len(self.specs) if spec is None else spec.unbind(self.dim), strict=True
        ):
            own.set(key, part)
        return self

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        self._refuse_if_locked(f"{key!r}")
        found = self.get(key, default)
        for spec in self.specs:
            spec.pop(key, None)
        return found

    def _copied(self, shape: torch.Size, device: torch.device | None = None) -> Any:
        inner = torch.Size([*shape[: self.dim], *shape[self.dim + 1 :]])
        return self._each(lambda spec: spec._copied(inner if len(inner) > spec.ndim else spec.shape, device))

    @property
    def is_locked(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return any(spec.is_locked for spec in self.specs)

    def _set_lock(self, value: bool) -> Self:
        for spec in self.specs:
            spec._set_lock(value)
        return self

    def to(self, dest: Any) -> Self:
        return self if dest is None else self._each(lambda spec: spec.to(dest))

    def clear_device_(self) -> Self:
        for spec in self.specs:
            spec.clear_device_()
        return self

    def empty(self) -> Any:
        return self._each(lambda spec: spec.empty())

    def _filled(self, shape: Any, value_of: Callable[[Any], Any]) -> Any:
        lead = 0 if shape is None else len(moves.as_size(shape))
        return tensordict.lazy_stack([value_of(spec) for spec in self.specs], self.dim + lead)

    def rand(self, shape: Any = None, *, generator: Generator | None = None) -> Any:
        return self._filled(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: Any = None) -> Any:
        return self._filled(shape, lambda spec: spec.zero(shape))

    def one(self, shape: Any = None) -> Any:
        return self._filled(shape, lambda spec: spec.one(shape))

    def project(self, val: Any) -> Any:
        """Replaces entries of `val` that are not in their specs by the nearest that are; see `Composite.project`."""
        stacked, rows = is_tensor_collection(val), self._rows(val)
        if stacked and val.is_locked:
            rows = [row.lock_() for row in rows]  # what is written into a locked row is written into `val`
        rows = [spec.project(row) for spec, row in zip(self.specs, rows, strict=True)]
        if not stacked:
            return tensordict.lazy_stack(rows, self.dim)
        dim = len(val.shape) - self._behind()
        own = isinstance(val, LazyStackedTensorDict) and val.stack_dim == dim
        return val if own or val.is_locked else val.update(tensordict.lazy_stack(rows, dim))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """As many mappings or TensorDicts as Composites, encoded and stacked lazily."""
        rows = zip(self.specs, self._rows(val), strict=True)
        return tensordict.lazy_stack([spec.encode(row, ignore_device=ignore_device) for spec, row in rows], self.dim)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """A list of nested dicts, one of each Composite."""
        return [spec.to_numpy(row, safe) for spec, row in zip(self.specs, self._rows(val), strict=True)]

    def type_check(self, value: Any, key: Any = None) -> None:
        for spec, row in zip(self.specs, self._rows(value), strict=True):
            spec.type_check(row, key)

    def __repr__(self) -> str:
        inner = ",\n".join(map(repr, self.specs)).replace("\n", "\n    ")
        return f"StackedComposite(\n    {inner},\n    dim={self.dim})"
