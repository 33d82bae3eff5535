"""Lazy stacks of leaf specs: specs that are not equal, stacked along a dimension without a common spec."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensordict
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import shape_ops
from .base import TensorSpec
from .composite import Composite
from .lazy_stack import LazyStack
from .stacked_composite import StackedComposite


@TensorSpec.implements_for_spec(torch.stack)
def stack_specs(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Returns the spec of values stacked along `dim`: an ordinary spec if the specs are equal, else a lazy stack.

    Raises:
        SpaceError: there are no specs, their dtypes, devices or numbers of dimensions differ, or `out` is given.
    """
    if out is not None:
        raise SpaceError("Specs cannot be stacked into an existing one. Omit `out`.")
    specs = list(tensors)
    if not specs:
        raise SpaceError("Expected at least one spec to stack.")
    invalid = next((spec for spec in specs if not isinstance(spec, TensorSpec)), None)
    if invalid is not None:
        raise SpaceError(f"Expected only specs to stack, got a {type(invalid).__name__} among them.")
    first_spec = specs[0]
    dim = shape_ops.normalize_dim(dim, first_spec.ndim + 1, "stack along")
    if all(spec == first_spec for spec in specs) and dim <= first_spec.ndim - first_spec._event_dims:
        sizes = [*first_spec.shape[:dim], len(specs), *first_spec.shape[dim:]]
        return first_spec.unsqueeze(dim).expand(*(-1 if i != dim else size for i, size in enumerate(sizes)))
    return (StackedComposite if isinstance(first_spec, Composite) else Stacked)(*specs, dim=dim)


class Stacked(LazyStack):
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

    def __init__(self, *specs: Any, dim: int):
        if any(isinstance(spec, Composite) for spec in specs):
            raise SpaceError("Stacked holds leaf specs; StackedComposite holds Composites.")
        self._init_stack(specs, dim)
        self.shape = self._stacked_shape()
        self.dtype = self.specs[0].dtype
        self.device = self.specs[0].device
        domains = {spec.domain for spec in self.specs}
        self.domain = domains.pop() if len(domains) == 1 else None

    def _stack_rows(self, rows: list[Any], dim: int) -> Any:
        if not isinstance(rows[0], Tensor):
            return tensordict.lazy_stack(rows, dim)
        if len({row.shape for row in rows}) == 1:
            return torch.stack(rows, dim)
        if dim:
            raise SpaceError(
                f"Values of the unequal shapes {[tuple(row.shape) for row in rows]} can only be nested along the "
                f"first dimension, not along {dim}. Stack Composites instead: their values are lazy stacks."
            )
        with warnings.catch_warnings():  # torch warns that nested tensors are a prototype
            warnings.simplefilter("ignore", UserWarning)
            return torch.nested.nested_tensor(rows)

    def _stack_values(self, shape: Any, value_of: Callable[[Any], Any]) -> Any:
        return self._stack_rows([value_of(spec) for spec in self.specs], self.dim + len(self._sizes(shape)) - self.ndim)

    def rand(self, shape: Any = None, *, generator: Generator | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: Any = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.zero(shape))

    def one(self, shape: Any = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.one(shape))

    def _restack(self, rows: list[Any], val: Any) -> Any:
        is_nested = not isinstance(val, Tensor) or val.is_nested
        return self._stack_rows(rows, self.dim if is_nested else self.dim - self.ndim + val.ndim)

    def project(self, val: Any) -> Any:
        """Returns `val` itself if it is in the spec, else the nearest values of the specs."""
        if self.is_in(val):
            return val
        rows = zip(self.specs, self._unstack(val), strict=True)
        return self._restack([spec.project(row) for spec, row in rows], val)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Encodes one value per spec (a sequence, or an array along the stacked dimension) and stacks the results."""
        rows = zip(self.specs, self._unstack(val), strict=True)
        return self._stack_rows([spec.encode(row, ignore_device=ignore_device) for spec, row in rows], self.dim)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Converts to an array, or to a list of arrays if their shapes differ."""
        rows = [spec.to_numpy(row, safe) for spec, row in zip(self.specs, self._unstack(val), strict=True)]
        if all(isinstance(row, np.ndarray) for row in rows) and len({row.shape for row in rows}) == 1:
            batch = val.ndim - self.ndim if isinstance(val, Tensor) and not val.is_nested else 0
            return np.stack(rows, self.dim + batch)
        return rows

    def type_check(self, value: Any, key: Any = None) -> None:
        self.specs[0].type_check(value, key)

    def __repr__(self) -> str:
        return f"Stacked({', '.join(map(repr, self.specs))}, dim={self.dim})"
