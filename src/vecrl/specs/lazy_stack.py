"""The base class of lazy stacks: operations on shapes beside the stacked dimension, and values split along it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import tensordict
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import shape_ops
from .base import TensorSpec
from .shape_ops import ShapeLike, ShapeOp


class LazyStack(TensorSpec):
    """Specs stacked along `dim`, without a common spec."""

    specs: list[Any]
    dim: int

    def _init_stack(self, specs: tuple[Any, ...], dim: int) -> None:
        """Checks and stores the specs and the dimension."""
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

    def _rebuild(self, specs: Sequence[Any], dim: int) -> Self:
        make: Any = type(self)
        return make(*specs, dim=dim)

    def _map_specs(self, function: Callable[[Any], Any]) -> Self:
        return self._rebuild([function(spec) for spec in self.specs], self.dim)

    def _with(self, **changes: Any) -> Self:
        dest = changes.get("device", changes.get("dtype"))
        return self if dest is None else self._map_specs(lambda spec: spec.to(dest))

    def _arguments(self) -> dict[str, Any]:
        return {"specs": self.specs, "dim": self.dim}

    def clone(self) -> Self:
        return self._map_specs(lambda spec: spec.clone())

    def _reshaped(self, op: ShapeOp) -> Any:
        while isinstance(op, shape_ops.WithTrailingDims):
            op = op.inner
        match op:
            case shape_ops.Expand():
                return self._expand((*op.sizes, *[-1] * (self.ndim - len(op.in_shape))))
            case shape_ops.Unsqueeze():
                is_before = op.dim <= self.dim
                return self._rebuild(
                    [spec.unsqueeze(op.dim - (not is_before)) for spec in self.specs], self.dim + is_before
                )
            case shape_ops.Squeeze():
                return self._squeeze(op.dims)
            case shape_ops.Index():
                return self._index(list(op.items))
            case shape_ops.Flatten() if op.start != op.end:
                return self._apply_beside_stack_dim(op.start, op.end, "flatten", op.start - op.end)
            case shape_ops.Unflatten():
                return self._apply_beside_stack_dim(op.dim, op.dim, "unflatten", len(op.sizes) - 1, op.sizes)
            case shape_ops.MakeDynamic():
                return self._apply_beside_stack_dim(op.dim, op.dim, "make_neg_dim", 0)
            case _:
                if op.out_shape == op.in_shape:
                    return self
                raise SpaceError(
                    f"Cannot {op.verb} a lazy stack of shape {tuple(self.shape)}: its specs differ along {self.dim}."
                )

    def _apply_beside_stack_dim(self, start: int, end: int, method: str, shift: int, *extra_args: Any) -> Any:
        """Applies a method to the dimensions `start` to `end` of all specs, which must exclude the stacked one."""
        if start <= self.dim <= end:
            raise SpaceError(f"Cannot {method} the dimension {self.dim} of a lazy stack, along which its specs differ.")
        dim_offset = 1 if start > self.dim else 0
        dims = (start - dim_offset,) if method != "flatten" else (start - dim_offset, end - dim_offset)
        dim = self.dim + (shift if end < self.dim else 0)
        return self._rebuild([getattr(spec, method)(*dims, *extra_args) for spec in self.specs], dim)

    def _expand(self, sizes: tuple[int, ...]) -> Any:
        dim = self.dim + len(sizes) - self.ndim
        count = sizes[dim]
        specs = self.specs
        if count not in (-1, len(specs)):
            if len(specs) != 1:
                raise SpaceError(f"Cannot expand a lazy stack of {len(specs)} specs to {count} along dimension {dim}.")
            specs = specs * count
        inner = (*sizes[:dim], *sizes[dim + 1 :])
        return self._rebuild([spec.expand(*inner) for spec in specs], dim)

    def _squeeze(self, dims: tuple[int, ...]) -> Any:
        result: Any = self
        for dim in sorted(dims, reverse=True):
            if isinstance(result, LazyStack) and dim == result.dim:
                result = result.specs[0]
            elif isinstance(result, LazyStack):
                inner = dim - (dim > result.dim)
                result = result._rebuild(
                    [spec.squeeze(inner) for spec in result.specs], result.dim - (dim < result.dim)
                )
            else:
                result = result.squeeze(dim)
        return result

    def _index(self, items: list[Any]) -> Any:
        items += [slice(None)] * (self.dim + 1 - sum(item is not None for item in items))
        consumed = [position for position, item in enumerate(items) if item is not None]
        position = consumed[self.dim]
        stack_index, other_indices = items[position], (*items[:position], *items[position + 1 :])
        if any(isinstance(item, Tensor) for item in other_indices) or (
            isinstance(stack_index, Tensor) and stack_index.ndim != 1
        ):
            raise SpaceError("A lazy stack can be indexed with a tensor only along its stacked dimension, by a vector.")
        if isinstance(stack_index, int):
            is_whole = all(isinstance(item, slice) and item == slice(None) for item in other_indices)
            return self.specs[stack_index] if is_whole else self.specs[stack_index][other_indices]
        positions = stack_index.tolist() if isinstance(stack_index, Tensor) else range(len(self.specs))[stack_index]
        selected = [self.specs[i] for i in positions]
        dim = sum(not isinstance(item, int) for item in items[:position])
        if not selected:
            raise SpaceError("Expected an index that selects at least one spec of the lazy stack, got an empty one.")
        return torch.stack([spec[other_indices] for spec in selected], dim)

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

    def _map_rows(self, val: Any, function: Callable[[Any, Any], Any]) -> list[Any]:
        """Calls `function` with each spec and its value in `val`."""
        return [function(spec, row) for spec, row in zip(self.specs, self._unstack(val), strict=True)]

    def _stack_rows(self, rows: list[Any], dim: int) -> Any:
        """Stacks one value per spec along `dim`."""
        return tensordict.lazy_stack(rows, dim)

    def _stack_values(self, shape: ShapeLike | None, value_of: Callable[[Any], Any]) -> Any:
        num_extra_dims = 0 if shape is None else len(shape_ops.as_size(shape))
        return self._stack_rows([value_of(spec) for spec in self.specs], self.dim + num_extra_dims)

    def rand(self, shape: ShapeLike | None = None, *, generator: Generator | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: ShapeLike | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.zero(shape))

    def one(self, shape: ShapeLike | None = None) -> Any:
        return self._stack_values(shape, lambda spec: spec.one(shape))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Encodes one value per spec (a sequence, or an array along the stacked dimension) and stacks the results."""
        rows = self._map_rows(val, lambda spec, row: spec.encode(row, ignore_device=ignore_device))
        return self._stack_rows(rows, self.dim)

    def mismatch(self, val: Any) -> str | None:
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
