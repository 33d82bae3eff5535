"""What lazy stacks have in common: how dimensions move about the stacked one, and how values fall apart along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import SpaceError
from . import moves, torch_functions
from .base import TensorSpec
from .moves import Move


class LazyStack(TensorSpec):
    """Specs side by side along `dim`, as the classes of stacks keep them."""

    specs: list[Any]
    dim: int

    def _take(self, specs: tuple[Any, ...], dim: int) -> None:
        """Check and keep what is stacked."""
        if not specs:
            raise SpaceError("Expected at least one spec to stack.")
        looks = {(spec.ndim, spec.dtype, str(spec.device)) for spec in specs}
        if len(looks) > 1:
            raise SpaceError(
                "Expected specs of one number of dimensions, dtype and device to stack, but there are "
                f"{sorted(map(str, looks))}."
            )
        self.specs = list(specs)
        self.dim = moves.nonnegative(dim, specs[0].ndim + 1, "stack along")

    def _stacked_shape(self) -> torch.Size:
        shapes = [spec.shape for spec in self.specs]
        common = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
        return torch.Size([*common[: self.dim], len(self.specs), *common[self.dim :]])

    @property
    def stack_dim(self) -> int:
        """The dimension along which the specs lie side by side."""
        return self.dim

    def _anew(self, specs: Sequence[Any], dim: int) -> Any:
        make: Any = type(self)
        return make(*specs, dim=dim)

    def _each(self, function: Callable[[Any], Any]) -> Any:
        return self._anew([function(spec) for spec in self.specs], self.dim)

    def _with(self, **changes: Any) -> Self:
        dest = changes.get("device", changes.get("dtype"))
        return self if dest is None else self._each(lambda spec: spec.to(dest))

    def _arguments(self) -> dict[str, Any]:
        return {"specs": self.specs, "dim": self.dim}

    def clone(self) -> Self:
        return self._each(lambda spec: spec.clone())

    def _moved(self, move: Move) -> Any:
        while isinstance(move, moves.Under):
            move = move.move
        match move:
            case moves.Expand():
                return self._expanded((*move.sizes, *[-1] * (self.ndim - len(move.before))))
            case moves.Unsqueeze():
                before = move.dim <= self.dim
                return self._anew(
                    [s.unsqueeze(move.dim - (not before)) for s in self.specs], self.dim + (1 if before else 0)
                )
            case moves.Squeeze():
                return self._squeezed(move.dims)
            case moves.Index():
                return self._indexed(list(move.items))
            case moves.Flatten() if move.start != move.end:
                return self._beside(move.start, move.end, "flatten", move.start - move.end)
            case moves.Unflatten():
                return self._beside(move.dim, move.dim, "unflatten", len(move.sizes) - 1, move.sizes)
            case moves.Forget():
                return self._beside(move.dim, move.dim, "make_neg_dim", 0)
            case _:
                if move.after == move.before:
                    return self
                raise SpaceError(
                    f"Cannot {move.verb} a lazy stack of shape {tuple(self.shape)}: its specs differ along {self.dim}."
                )

    def _beside(self, start: int, end: int, method: str, shift: int, *more: Any) -> Any:
        """A method of the specs that concerns dimensions `start` to `end`, of which the stacked one is none."""
        if start <= self.dim <= end:
            raise SpaceError(f"Cannot {method} the dimension {self.dim} of a lazy stack, along which its specs differ.")
        down = 1 if start > self.dim else 0
        dims = (start - down,) if method != "flatten" else (start - down, end - down)
        dim = self.dim + (shift if end < self.dim else 0)
        return self._anew([getattr(spec, method)(*dims, *more) for spec in self.specs], dim)

    def _expanded(self, sizes: tuple[int, ...]) -> Any:
        dim = self.dim + len(sizes) - self.ndim
        count = sizes[dim]
        specs = self.specs
        if count not in (-1, len(specs)):
            if len(specs) != 1:
                raise SpaceError(f"Cannot expand a lazy stack of {len(specs)} specs to {count} along dimension {dim}.")
            specs = specs * count
        inner = (*sizes[:dim], *sizes[dim + 1 :])
        return self._anew([spec.expand(*inner) for spec in specs], dim)

    def _squeezed(self, dims: tuple[int, ...]) -> Any:
        result: Any = self
        for dim in sorted(dims, reverse=True):
            if isinstance(result, LazyStack) and dim == result.dim:
                result = result.specs[0]
            elif isinstance(result, LazyStack):
                inner = dim - (dim > result.dim)
                result = result._anew([s.squeeze(inner) for s in result.specs], result.dim - (dim < result.dim))
            else:
                result = result.squeeze(dim)
        return result

    def _indexed(self, items: list[Any]) -> Any:
        taken = [place for place, item in enumerate(items) if item is not None]
        if len(taken) <= self.dim:
            items += [slice(None)] * (self.dim + 1 - len(taken))
            taken = [place for place, item in enumerate(items) if item is not None]
        place = taken[self.dim]
        mine, others = items[place], (*items[:place], *items[place + 1 :])
        if any(isinstance(item, Tensor) for item in others) or (isinstance(mine, Tensor) and mine.ndim != 1):
            raise SpaceError("A lazy stack is indexed with tensors only along its stacked dimension, with a vector.")
        if isinstance(mine, int):
            spec = self.specs[mine]
            return spec if all(isinstance(item, slice) and item == slice(None) for item in others) else spec[others]
        chosen = [self.specs[i] for i in mine.tolist()] if isinstance(mine, Tensor) else self.specs[mine]
        dim = sum(not isinstance(item, int) for item in items[:place])
        if not chosen:
            raise SpaceError("Nothing would be left of the lazy stack under this index.")
        return torch_functions.stack([spec[others] for spec in chosen], dim)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        dim = moves.nonnegative(dim, self.ndim, "unbind")
        return tuple(self.specs) if dim == self.dim else super().unbind(dim)

    def _rows(self, val: Any) -> list[Any]:
        """The values of each spec out of a value of the stack, or a sequence of them."""
        if isinstance(val, list | tuple):
            rows: list[Any] = list(val)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        elif isinstance(val, np.ndarray):
            rows = list(np.moveaxis(val, self.dim - self.ndim, 0))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(val, Tensor) and val.is_nested:
            rows = list(val.unbind(0))
        else:
            rows = list(
                val.unbind(self.dim - self.ndim if isinstance(val, Tensor) else len(val.shape) - self._behind())
            )
        if len(rows) != len(self.specs):
            raise SpaceError(f"Expected {len(self.specs)} values along dimension {self.dim}, but {len(rows)} came.")
        return rows

    def _behind(self) -> int:
        return self.ndim - self.dim

    def mismatch(self, val: Any) -> str | None:
        try:
            rows = self._rows(val)
        except (SpaceError, IndexError, AttributeError) as error:
            return str(error)
        faults = ((i, spec.mismatch(row)) for i, (spec, row) in enumerate(zip(self.specs, rows, strict=True)))
        return next((f"in element {i} of the stack: {fault}" for i, fault in faults if fault is not None), None)

    def cardinality(self) -> int | float:
        """The product over the specs, of which each has a value of its own."""
        product: int | float = 1
        for spec in self.specs:
            product *= spec.cardinality()
        return product

    def enumerate(self, use_mask: bool = False) -> Any:
        raise NotImplementedError("The values of a lazy stack cannot be enumerated: enumerate those of its specs.")
