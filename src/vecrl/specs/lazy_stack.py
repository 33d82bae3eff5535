"""The base class of lazy stacks: operations on shapes beside the stacked dimension, and splitting values along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import SpaceError
from . import shape_ops
from .base import TensorSpec
from .shape_ops import ShapeOp


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

    def _rebuild(self, specs: Sequence[Any], dim: int) -> Any:
        make: Any = type(self)
        return make(*specs, dim=dim)

    def _map_specs(self, function: Callable[[Any], Any]) -> Any:
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
                stack_shift = op.dim <= self.dim
                return self._rebuild(
                    [spec.unsqueeze(op.dim - (not stack_shift)) for spec in self.specs],
                    self.dim + (1 if stack_shift else 0),
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
        consumed = [position for position, item in enumerate(items) if item is not None]
        if len(consumed) <= self.dim:
            items += [slice(None)] * (self.dim + 1 - len(consumed))
            consumed = [position for position, item in enumerate(items) if item is not None]
        position = consumed[self.dim]
        stack_index, other_indices = items[position], (*items[:position], *items[position + 1 :])
        if any(isinstance(item, Tensor) for item in other_indices) or (
            isinstance(stack_index, Tensor) and stack_index.ndim != 1
        ):
            raise SpaceError("A lazy stack can be indexed with a tensor only along its stacked dimension, by a vector.")
        if isinstance(stack_index, int):
            spec = self.specs[stack_index]
            return (
                spec
                if all(isinstance(item, slice) and item == slice(None) for item in other_indices)
                else spec[other_indices]
            )
        selected = (
            [self.specs[i] for i in stack_index.tolist()]
            if isinstance(stack_index, Tensor)
            else self.specs[stack_index]
        )
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
        elif isinstance(val, Tensor) and val.is_nested:
            rows = list(val.unbind(0))
        else:
            rows = list(
                val.unbind(
                    self.dim - self.ndim if isinstance(val, Tensor) else len(val.shape) - self._num_dims_behind()
                )
            )
        if len(rows) != len(self.specs):
            raise SpaceError(f"Expected {len(self.specs)} values along dimension {self.dim}, got {len(rows)}.")
        return rows

    def _num_dims_behind(self) -> int:
        return self.ndim - self.dim

    def mismatch(self, val: Any) -> str | None:
        try:
            rows = self._unstack(val)
        except (SpaceError, IndexError, AttributeError) as error:
            return str(error)
        problems = ((i, spec.mismatch(row)) for i, (spec, row) in enumerate(zip(self.specs, rows, strict=True)))
        return next((f"in element {i} of the stack: {problem}" for i, problem in problems if problem is not None), None)

    def cardinality(self) -> int | float:
        """Returns the product over the specs."""
        product: int | float = 1
        for spec in self.specs:
            product *= spec.cardinality()
        return product

    def enumerate(self, use_mask: bool = False) -> Any:
        raise NotImplementedError("The values of a lazy stack cannot be enumerated. Enumerate those of its specs.")
