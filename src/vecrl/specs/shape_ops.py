"""Rearrangements of a shape as values: what comes of the shape, and how tensors that lie along it follow.

A spec is a shape and a few tensors along it (bounds, masks, counts). Whatever torch does to shapes is one `ShapeOp`
here,
applied to all of them alike, so that no spec says twice how it is reshaped. Dimensions of size -1 are dynamic:
tensors along the shape have size 1 there. Knows torch only, no spec.
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

_PLACEHOLDER_SIZE = 65537  # a prime in the place of a dynamic size while torch works out the shape


def concrete(shape: Sequence[int]) -> torch.Size:
    """`shape` with 1 for every dynamic dimension: the size of what lies along it, and of what `rand` yields."""
    return torch.Size([1 if size == -1 else size for size in shape])


def shape_matches(actual: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether `found` ends with `shape`, of which -1 stands for any size."""
    if len(actual) < len(shape):
        return False
    return all(a in (-1, b) for a, b in zip(shape, actual[len(actual) - len(shape) :], strict=True))


def as_size(shape: Any) -> torch.Size:
    """A shape out of an integer or a sequence of them, in which -1 is a size that is not fixed."""
    try:
        size = torch.Size([shape] if isinstance(shape, int) else map(index, shape))
    except TypeError:
        size = None
    if size is None or any(part < -1 for part in size):
        raise SpaceError(
            f"Expected a shape, an int or a sequence of them (-1 for a size that is not fixed), but {shape!r:.80} came."
        )
    return size


def sizes_of(args: tuple[Any, ...]) -> tuple[int, ...]:
    """`(2, 3)` out of `f(2, 3)` as out of `f((2, 3))`."""
    if len(args) == 1 and not isinstance(args[0], int):
        return tuple(as_size(args[0]))
    return tuple(int(arg) for arg in args)


def normalize_dim(dim: int, ndim: int, what: str) -> int:
    """`dim` counted from the front."""
    if not -ndim <= dim < ndim:
        raise IndexError(f"Expected a dimension in [{-ndim}, {ndim - 1}] to {what}, but {dim} came.")
    return dim % ndim


@dataclass(frozen=True)
class ShapeOp:
    """One rearrangement of shapes that begin with `in_shape`.

    Attributes:
        in_shape: the shape that is rearranged, dynamic sizes as -1.
        out_shape: what becomes of it.
    """

    in_shape: torch.Size
    verb: ClassVar[str] = "rearrange"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        """`tensor`, of shape `in_shape` and `tail` more dimensions, rearranged."""
        raise NotImplementedError

    def merged_dims(self) -> Sequence[int]:
        """The sizes that are merged or split; tensors along a dynamic one then follow only if they are uniform."""
        return ()

    def with_trailing(self, tail: Sequence[int]) -> ShapeOp:
        """The same on a shape that has `tail` behind `in_shape`."""
        return WithTrailingDims(torch.Size([*self.in_shape, *tail]), self, len(tail))

    def names(self, names: Names) -> Names:
        """What becomes of the dimensions' names."""
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
        """A tensor that lies along `in_shape`, with `tail` more dimensions, rearranged."""
        out_shape = self.out_shape  # which raises where the move cannot be made
        if -1 not in self.merged_dims() or out_shape == self.in_shape:
            return self.apply(tensor, tail)
        flat = tensor.reshape(-1, *tensor.shape[tensor.ndim - tail :])
        if not bool((flat == flat[:1]).all()):
            raise SpaceError(
                f"Cannot {self.verb} a spec of the dynamic shape {tuple(self.in_shape)} whose bounds, counts or masks "
                f"differ along it."
            )
        return flat[0].expand(*concrete(out_shape), *flat.shape[1:])


@dataclass(frozen=True)
class WithTrailingDims(ShapeOp):
    """A move of the first dimensions of a shape that has `num_trailing` more."""

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
    """As `torch.Tensor.expand`; -1 keeps a size."""

    sizes: tuple[int, ...]
    verb: ClassVar[str] = "expand"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.expand((*self.sizes, *tensor.shape[tensor.ndim - tail :]))

    def names(self, names: Names) -> Names:
        return [None] * (len(self.out_shape) - len(names)) + names


@dataclass(frozen=True)
class Reshape(ShapeOp):
    """As `torch.Tensor.reshape`; one -1 is inferred."""

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
    """Dimensions `start` to `end`, counted from the front, become one."""

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
    """Dimension `dim`, counted from the front, becomes several."""

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
    """The given dimensions of size one go."""

    dims: tuple[int, ...]
    verb: ClassVar[str] = "squeeze"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.squeeze(self.dims) if self.dims else tensor

    def names(self, names: Names) -> Names:
        return [name for dim, name in enumerate(names) if dim not in self.dims]


@dataclass(frozen=True)
class Unsqueeze(ShapeOp):
    """A dimension of size one comes in before `dim`."""

    dim: int
    verb: ClassVar[str] = "unsqueeze"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.unsqueeze(self.dim)

    def names(self, names: Names) -> Names:
        return [*names[: self.dim], None, *names[self.dim :]]


@dataclass(frozen=True)
class Permute(ShapeOp):
    """Dimensions in another order; `dims` are counted from the front."""

    dims: tuple[int, ...]
    verb: ClassVar[str] = "permute"

    def apply(self, tensor: Tensor, tail: int) -> Tensor:
        return tensor.permute(*self.dims, *range(tensor.ndim - tail, tensor.ndim))

    def names(self, names: Names) -> Names:
        return [names[dim] for dim in self.dims]


@dataclass(frozen=True)
class Index(ShapeOp):
    """As `tensor[index]`. A slice of a dynamic dimension stays dynamic."""

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
        """The move that `index`, as Python hands it to `__getitem__`, makes of `shape`."""
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
    """One item of an index as integers, slices, None, Ellipsis and index tensors."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return [item]
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return [int(item)]
    try:
        tensor = torch.as_tensor(list(item) if isinstance(item, range) else item)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.ones(1)  # which is refused
    if tensor.dtype == torch.bool:
        return list(tensor.nonzero(as_tuple=True))
    if tensor.is_floating_point() and tensor.numel():
        raise IndexError(f"Expected integers, slices, masks, None or '...' as an index of a spec, but {item!r} came.")
    return [tensor.long()]


def _validate_items(items: list[Any], shape: torch.Size) -> list[Any]:
    """`items` checked against `shape`, and made fit for size 1 where it is dynamic."""
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
            raise IndexError(f"Expected an index below {size} for a spec of shape {tuple(shape)}, but {item} came.")
        validated.append(item)
    return validated


def _index_range(item: Any) -> tuple[int, int]:
    """The least and the greatest of the indices in an item, as far as they could be out of range."""
    if isinstance(item, int):
        return item, item
    if isinstance(item, Tensor) and item.numel():
        return int(item.min()), int(item.max())
    return 0, -1


@dataclass(frozen=True)
class MakeDynamic(ShapeOp):
    """The size of a dimension is no longer said: it becomes -1."""

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
