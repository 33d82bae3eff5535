"""Operations on shapes as records: each computes the new shape and rearranges tensors of the old shape.

A spec has a shape and several tensors of this shape (bounds, masks, counts). Each operation of torch on shapes is one
`ShapeOp`, which is applied to the shape and to all these tensors, so no spec implements an operation twice.
Dimensions of size -1 are dynamic: the tensors of a spec have size 1 there. This module knows torch only, no specs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import index
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import SpaceError

Names = list[str | None]
ShapeLike = int | Sequence[int]

# A prime that replaces a dynamic size while torch computes a shape: multiples of it in the result are dynamic.
_PLACEHOLDER_SIZE = 65537


def concrete(shape: Sequence[int]) -> torch.Size:
    """Replaces every dynamic size in `shape` by 1: the shape of a spec's tensors and of what `rand` returns."""
    return torch.Size([1 if size == -1 else size for size in shape])


def shape_matches(actual: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether `actual` ends with `shape`, in which -1 stands for any size."""
    if len(actual) < len(shape):
        return False
    return all(a in (-1, b) for a, b in zip(shape, actual[len(actual) - len(shape) :], strict=True))


def as_size(shape: ShapeLike) -> torch.Size:
    """Converts an integer or a sequence of integers to a shape; -1 is a dynamic size."""
    try:
        size = torch.Size([shape] if isinstance(shape, int) else map(index, shape))
    except TypeError:
        size = None
    if size is None or any(part < -1 for part in size):
        raise SpaceError(f"Expected a shape: an int, or a sequence of ints (-1 for a dynamic size), got {shape!r:.80}.")
    return size


def sizes_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns the sizes of a call with variable arguments: `(2, 3)` for both `f(2, 3)` and `f((2, 3))`."""
    if len(args) == 1 and not isinstance(args[0], int):
        return tuple(as_size(args[0]))
    return tuple(int(arg) for arg in args)


def normalize_dim(dim: int, ndim: int, what: str) -> int:
    """Converts a negative `dim` to one counted from the front.

    Raises:
        IndexError: `dim` is out of range.
    """
    if not -ndim <= dim < ndim:
        raise IndexError(f"Expected a dimension in [{-ndim}, {ndim - 1}] to {what}, got {dim}.")
    return dim % ndim


@dataclass(frozen=True)
class ShapeOp:
    """One operation on the leading dimensions `in_shape` of tensors.

    Attributes:
        in_shape: the shape that is rearranged; dynamic sizes are -1.
        out_shape: the resulting shape.
    """

    in_shape: torch.Size
    verb: ClassVar[str] = "rearrange"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        """Rearranges `tensor`, which has `tail` more dimensions after those of `in_shape`."""
        raise NotImplementedError

    def merged_dims(self) -> Sequence[int]:
        """Returns the sizes that are merged or split. If one is dynamic, tensors must be uniform along it."""
        return ()

    def with_trailing(self, tail: Sequence[int]) -> ShapeOp:
        """Returns the same operation for shapes that have the dimensions `tail` after `in_shape`."""
        return WithTrailingDims(torch.Size([*self.in_shape, *tail]), self, len(tail))

    def names(self, names: Names) -> Names:
        """Returns the names of the resulting dimensions."""
        return [None] * len(self.out_shape)

    @cached_property
    def out_shape(self) -> torch.Size:
        sizes = [_PLACEHOLDER_SIZE if size == -1 else size for size in self.in_shape]
        try:
            shape = self.apply(torch.empty(sizes, device="meta"), 0).shape
        except IndexError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            arguments = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.name != "in_shape")
            raise SpaceError(
                f"Cannot {self.verb} a spec of shape {tuple(self.in_shape)} with {arguments}: the sizes do not fit."
            ) from error
        if -1 not in self.in_shape:
            return shape
        return torch.Size([-1 if size and size % _PLACEHOLDER_SIZE == 0 else size for size in shape])

    def apply_checked(self, tensor: Tensor, tail: int = 0) -> Tensor:
        """Rearranges a spec's tensor, which has size 1 in dynamic dimensions and `tail` more dimensions.

        Raises:
            SpaceError: the sizes do not fit, or the tensor is not uniform along a dynamic size that is merged or split.
        """
        out_shape = self.out_shape  # raises a SpaceError if the sizes do not fit
        if -1 not in self.merged_dims() or out_shape == self.in_shape:
            return self.apply(tensor, tail)
        flat = tensor.reshape(-1, *tensor.shape[tensor.ndim - tail :])
        if not bool((flat == flat[:1]).all()):
            raise SpaceError(
                f"Cannot {self.verb} a spec of the dynamic shape {tuple(self.in_shape)}, since bounds, counts or masks "
                f"differ along it."
            )
        return flat[0].expand(*concrete(out_shape), *flat.shape[1:])


@dataclass(frozen=True)
class WithTrailingDims(ShapeOp):
    """An operation on the leading dimensions of a shape that has `num_trailing` more."""

    inner: ShapeOp
    num_trailing: int

    @property
    def verb(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.verb

    @cached_property
    def out_shape(self) -> torch.Size:
        return torch.Size([*self.inner.out_shape, *self.in_shape[len(self.in_shape) - self.num_trailing :]])

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return self.inner.apply(tensor, tail + self.num_trailing)

    def apply_checked(self, tensor: Tensor, tail: int = 0) -> Tensor:
        return self.inner.apply_checked(tensor, tail + self.num_trailing)


@dataclass(frozen=True)
class Expand(ShapeOp):
    """Expands as `torch.Tensor.expand`; -1 keeps a size."""

    sizes: tuple[int, ...]
    verb: ClassVar[str] = "expand"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.expand((*self.sizes, *tensor.shape[tensor.ndim - tail :]))

    def names(self, names: Names) -> Names:
        return [None] * (len(self.out_shape) - len(names)) + names


@dataclass(frozen=True)
class Reshape(ShapeOp):
    """Reshapes as `torch.Tensor.reshape`; one -1 is inferred."""

    sizes: tuple[int, ...]
    verb: ClassVar[str] = "reshape"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.reshape((*self._inferred_sizes(), *tensor.shape[tensor.ndim - tail :]))

    def merged_dims(self) -> Sequence[int]:
        return self.in_shape

    def _inferred_sizes(self) -> tuple[int, ...]:
        if self.sizes.count(-1) != 1 or -1 in self.in_shape:
            return self.sizes
        known_size = -math.prod(self.sizes)
        inferred = math.prod(self.in_shape) // known_size if known_size else 0
        return tuple(inferred if size == -1 else size for size in self.sizes)


@dataclass(frozen=True)
class Flatten(ShapeOp):
    """Merges the dimensions `start` to `end`, counted from the front."""

    start: int
    end: int
    verb: ClassVar[str] = "flatten"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.flatten(self.start, self.end)

    def merged_dims(self) -> Sequence[int]:
        return self.in_shape[self.start : self.end + 1]

    def names(self, names: Names) -> Names:
        return [*names[: self.start], None, *names[self.end + 1 :]]


@dataclass(frozen=True)
class Unflatten(ShapeOp):
    """Splits the dimension `dim`, counted from the front."""

    dim: int
    sizes: tuple[int, ...]
    verb: ClassVar[str] = "unflatten"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.unflatten(self.dim, self.sizes)

    def merged_dims(self) -> Sequence[int]:
        return self.in_shape[self.dim : self.dim + 1]

    def names(self, names: Names) -> Names:
        return [*names[: self.dim], *[None] * len(self.sizes), *names[self.dim + 1 :]]


@dataclass(frozen=True)
class Squeeze(ShapeOp):
    """Removes the dimensions `dims`, all of size one."""

    dims: tuple[int, ...]
    verb: ClassVar[str] = "squeeze"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.squeeze(self.dims) if self.dims else tensor

    def names(self, names: Names) -> Names:
        return [name for dim, name in enumerate(names) if dim not in self.dims]


@dataclass(frozen=True)
class Unsqueeze(ShapeOp):
    """Inserts a dimension of size one before `dim`."""

    dim: int
    verb: ClassVar[str] = "unsqueeze"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.unsqueeze(self.dim)

    def names(self, names: Names) -> Names:
        return [*names[: self.dim], None, *names[self.dim :]]


@dataclass(frozen=True)
class Permute(ShapeOp):
    """Reorders the dimensions; `dims` are counted from the front."""

    dims: tuple[int, ...]
    verb: ClassVar[str] = "permute"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.permute(*self.dims, *range(tensor.ndim - tail, tensor.ndim))

    def names(self, names: Names) -> Names:
        return [names[dim] for dim in self.dims]


@dataclass(frozen=True)
class Index(ShapeOp):
    """Indexes as `tensor[index]`. A slice of a dynamic dimension stays dynamic."""

    items: tuple[Any, ...]
    verb: ClassVar[str] = "index"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor[self.items]

    def names(self, names: Names) -> Names:
        if any(isinstance(item, Tensor) for item in self.items):
            return [None] * len(self.out_shape)
        kept_names, remaining = Names(), iter(names)
        for item in self.items:
            name = None if item is None else next(remaining)
            if not isinstance(item, int):
                kept_names.append(name)
        return [*kept_names, *remaining]

    @classmethod
    def from_index(cls, index: Any, shape: torch.Size) -> Index:
        """Builds the operation from the argument of `__getitem__`.

        Raises:
            IndexError: `index` has too many items, several ellipses, or an item that is out of range or no index.
        """
        items: list[Any] = []
        for item in index if isinstance(index, tuple) else (index,):  # pyright: ignore[reportUnknownVariableType]
            items.extend(_index_items(item))
        num_missing = len(shape) - sum(item is not None and item is not Ellipsis for item in items)
        if num_missing < 0:
            raise IndexError(f"Too many indices for a spec of shape {tuple(shape)}: {index!r}.")
        ellipses = [position for position, item in enumerate(items) if item is Ellipsis]
        if len(ellipses) > 1:
            raise IndexError("An index can hold only one ellipsis ('...').")
        for position in ellipses:
            items[position : position + 1] = [slice(None)] * num_missing
        return cls(shape, tuple(_validate_items(items, shape)))


def _index_items(item: Any) -> list[Any]:
    """Converts one item of an index to integers, slices, None, Ellipsis and index tensors."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return [item]
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return [int(item)]
    try:
        tensor = torch.as_tensor(list(item) if isinstance(item, range) else item)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.ones(1)  # a float tensor, for which the error below is raised
    if tensor.dtype == torch.bool:
        return list(tensor.nonzero(as_tuple=True))
    if tensor.is_floating_point() and tensor.numel():
        raise IndexError(f"Expected integers, slices, masks, None or '...' as an index of a spec, got {item!r}.")
    return [tensor.long()]


def _validate_items(items: list[Any], shape: torch.Size) -> list[Any]:
    """Checks `items` against `shape`, and adapts those of dynamic dimensions to size 1."""
    validated: list[Any] = []
    sizes = iter(shape)
    for item in items:
        if item is None:
            validated.append(None)
            continue
        size = next(sizes)
        if size == -1:
            validated.append(slice(None) if isinstance(item, slice) else item * 0)
            continue
        lowest, highest = _index_range(item)
        if not (-size <= lowest and highest < size):
            raise IndexError(f"Expected an index below {size} for a spec of shape {tuple(shape)}, got {item}.")
        validated.append(item)
    return validated


def _index_range(item: Any) -> tuple[int, int]:
    """Returns the least and greatest index in an item; (0, -1) if no index can be out of range."""
    if isinstance(item, int):
        return item, item
    if isinstance(item, Tensor) and item.numel():
        return int(item.min()), int(item.max())
    return 0, -1


@dataclass(frozen=True)
class MakeDynamic(ShapeOp):
    """Makes the size of a dimension dynamic (-1)."""

    dim: int
    verb: ClassVar[str] = "make dynamic a dimension of"

    @cached_property
    def out_shape(self) -> torch.Size:
        return torch.Size([*self.in_shape[: self.dim], -1, *self.in_shape[self.dim + 1 :]])

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        first_slice = tensor.narrow(self.dim, 0, min(1, tensor.shape[self.dim]))
        if not bool((tensor == first_slice).all()):
            raise SpaceError(
                f"Cannot make dimension {self.dim} of shape {tuple(self.in_shape)} dynamic: bounds, counts or masks "
                f"differ along it."
            )
        return first_slice

    def names(self, names: Names) -> Names:
        return names
