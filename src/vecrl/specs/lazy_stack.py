"""The base class of lazy stacks: changes of shape beside the stacked dimension, and values split along it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np
import tensordict
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import shape_ops
from .base import TensorSpec
from .shape_methods import rearrange
from .shape_ops import ShapeLike, ShapeOp

S = TypeVar("S", bound=TensorSpec)
T = TypeVar("T")


class LazyStack(TensorSpec, Generic[S]):
    """Specs stacked along `dim`, without a common spec."""

    _fields = ("specs", "dim")
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
