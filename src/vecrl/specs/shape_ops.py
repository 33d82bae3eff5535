"""Operations on shapes: each computes the new shape and rearranges tensors of the old shape.

A spec has a shape and several tensors of this shape (bounds, masks, counts). Each operation of torch on shapes is one
`ShapeOp`: a function of tensors, and for each dimension of the result the dimension that it comes from. So no spec
implements an operation. Dimensions of size -1 are dynamic: the tensors of a spec have size 1 there. This module knows
torch only, no specs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index as as_int
from types import EllipsisType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SpaceError

Names = list[str | None]
ShapeLike = int | Sequence[int]
IndexItem = int | slice | Tensor | None
Sources = Sequence[int | None]

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


def has_shape(actual: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether `actual` is `shape`, in which -1 stands for any size."""
    return actual == shape or (len(actual) == len(shape) and shape_matches(actual, shape))


def _is_scalar(value: object) -> bool:
    """Returns whether this is a number of NumPy, or an array or tensor without dimensions."""
    return getattr(value, "ndim", None) == 0


def as_size(shape: ShapeLike) -> torch.Size:
    """Converts an integer or a sequence of integers to a shape; -1 is a dynamic size."""
    try:
        sizes: Any = (shape,) if isinstance(shape, int) or _is_scalar(shape) else shape
        size = torch.Size(map(as_int, sizes))
    except TypeError:
        size = None
    if size is None or any(part < -1 for part in size):
        raise SpaceError(f"Expected a shape: an int, or a sequence of ints (-1 for a dynamic size), got {shape!r:.80}.")
    return size


def concrete_size(name: str, value: ShapeLike) -> torch.Size:
    """Returns a batch size: an int, or a sequence of ints, without dynamic sizes.

    Raises:
        SpaceError: it is none; the message has the name of the argument.
    """
    try:
        size = as_size(value)
    except (SpaceError, ValueError, OverflowError):
        size = None
    if isinstance(value, bool | str) or size is None or min(size, default=0) < 0:
        raise SpaceError(f"Expected {name} to be an int of 0 or more, or a sequence of such ints, got {value!r:.80}.")
    return size


def sizes_of(args: Sequence[ShapeLike]) -> tuple[int, ...]:
    """Returns the sizes of a call with variable arguments: `(2, 3)` for both `f(2, 3)` and `f((2, 3))`."""
    if len(args) == 1 and not isinstance(args[0], int):
        return tuple(as_size(args[0]))
    return tuple(int(arg) for arg in args)  # pyright: ignore[reportArgumentType]


def normalize_dim(dim: int, ndim: int, what: str) -> int:
    """Converts a negative `dim` to one counted from the front.

    Raises:
        IndexError: `dim` is out of range.
    """
    if not -ndim <= dim < ndim:
        raise IndexError(f"Expected a dimension in [{-ndim}, {ndim - 1}] to {what}, got {dim}.")
    return dim % ndim


@dataclass(slots=True)
class ShapeOp:
    """One operation on the first dimensions of tensors.

    Attributes:
        verb: the name of the operation, for messages.
        in_shape: the shape that is rearranged; dynamic sizes are -1.
        out_shape: the resulting shape.
        apply: rearranges a tensor, which may have more dimensions after those of `in_shape`.
        sources: for each dimension of the result, the dimension of `in_shape` that it comes from; None if it is new,
            merged, split or gathered.
        merges: whether dimensions that are no sources are merged or split.
        gathered: if the operation indexes with a single vector, the indexed dimension and that of the result.
        keeps_names: whether the dimensions of the result have the names of their sources.
        dynamic_dim: the dimension that becomes dynamic.
    """

    verb: str
    in_shape: torch.Size
    out_shape: torch.Size
    apply: Callable[[Tensor], Tensor]
    sources: Sources
    merges: bool = False
    gathered: tuple[int, int] | None = None
    keeps_names: bool = True
    dynamic_dim: int | None = None

    @property
    def is_identity(self) -> bool:
        """Whether the operation changes nothing."""
        return self.out_shape == self.in_shape and list(self.sources) == list(range(len(self.in_shape)))

    def apply_checked(self, tensor: Tensor) -> Tensor:
        """Rearranges a spec's tensor, which has size 1 in dynamic dimensions.

        Raises:
            SpaceError: the tensor is not uniform along a dimension that becomes dynamic, or along the whole shape if a
                dynamic dimension is merged or split.
        """
        if self.merges and self.out_shape != self.in_shape and self._merges_dynamic_size():
            flat = tensor.reshape(-1, *tensor.shape[len(self.in_shape) :])
            self._require_uniform(flat, flat[:1])
            return flat[0].expand(*concrete(self.out_shape), *flat.shape[1:])
        result = self.apply(tensor)
        if self.dynamic_dim is not None:
            self._require_uniform(tensor, result)
        return result

    def _merges_dynamic_size(self) -> bool:
        return any(size == -1 and dim not in self.sources for dim, size in enumerate(self.in_shape))

    def _require_uniform(self, tensor: Tensor, first_slice: Tensor) -> None:
        if not bool((tensor == first_slice).all()):
            raise SpaceError(
                f"Cannot {self.verb} a spec of shape {tuple(self.in_shape)}: a dimension is dynamic, and bounds, "
                "counts or masks differ along it."
            )

    def names(self, names: Names) -> Names:
        """Returns the names of the resulting dimensions."""
        return [names[source] if self.keeps_names and source is not None else None for source in self.sources]

    def with_trailing(self, tail: Sequence[int]) -> ShapeOp:
        """Returns the same operation for shapes that have the dimensions `tail` after `in_shape`."""
        if not tail:
            return self
        ndim = len(self.in_shape)
        sources = [*self.sources, *range(ndim, ndim + len(tail))]
        return self._resize(torch.Size([*self.in_shape, *tail]), torch.Size([*self.out_shape, *tail]), sources)

    def without_trailing(self, count: int) -> ShapeOp | None:
        """Returns the same operation for shapes without the last `count` dimensions; None if it changes these."""
        start = len(self.in_shape) - count
        is_source = list(self.sources[-count:]) == list(range(start, len(self.in_shape)))
        if not is_source or self.out_shape[-count:] != self.in_shape[start:]:
            return None
        return self._resize(self.in_shape[:start], self.out_shape[:-count], self.sources[:-count])

    def _resize(self, in_shape: torch.Size, out_shape: torch.Size, sources: Sources) -> ShapeOp:
        flags = (self.merges, self.gathered, self.keeps_names, self.dynamic_dim)
        return ShapeOp(self.verb, in_shape, out_shape, self.apply, sources, *flags)

    def for_slice(self, dim: int, size: int, in_shape: torch.Size, position: int | None, item: int) -> ShapeOp:
        """Returns the operation on one slice of a tensor: what it does beside the dimension `dim`, of size `size`.

        Args:
            dim: a dimension that the operation does not merge.
            size: its size.
            in_shape: the shape of the slice. Its sizes may differ from those of this operation.
            position: the dimension of the result that corresponds to `dim`; None if the result has none.
            item: which element along `position` of the result the slice becomes.
        """

        def apply_to_slice(tensor: Tensor) -> Tensor:
            result = self.apply(tensor.unsqueeze(dim).expand((*tensor.shape[:dim], size, *tensor.shape[dim:])))
            return result if position is None else result.select(position, item)

        sources = [s if s is None else s - (s > dim) for out, s in enumerate(self.sources) if out != position]
        dynamic_dim = None if self.dynamic_dim is None else self.dynamic_dim - (self.dynamic_dim > dim)
        return shape_op(self.verb, in_shape, apply_to_slice, sources, dynamic_dim=dynamic_dim)


def shape_op(
    verb: str,
    in_shape: torch.Size,
    apply: Callable[[Tensor], Tensor],
    sources: Sources,
    arguments: object = "",
    *,
    merges: bool = False,
    gathered: tuple[int, int] | None = None,
    keeps_names: bool = True,
    dynamic_dim: int | None = None,
) -> ShapeOp:
    """Returns a `ShapeOp` with the shape that `apply` gives.

    Raises:
        SpaceError: `apply` fails for tensors of shape `in_shape`; the message has `arguments`.
    """
    probe = torch.empty([_PLACEHOLDER_SIZE if size == -1 else size for size in in_shape], device="meta")
    try:
        sizes = list(apply(probe).shape)
    except IndexError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise SpaceError(
            f"Cannot {verb} a spec of shape {tuple(in_shape)} with {arguments}: the sizes do not fit."
        ) from error
    if -1 in in_shape:
        sizes = [-1 if size and size % _PLACEHOLDER_SIZE == 0 else size for size in sizes]
    if dynamic_dim is not None:
        sizes[dynamic_dim] = -1
    return ShapeOp(verb, in_shape, torch.Size(sizes), apply, sources, merges, gathered, keeps_names, dynamic_dim)


def reshape_op(shape: torch.Size, sizes: Sequence[int]) -> ShapeOp:
    """Reshapes as `torch.Tensor.reshape`; one -1 is inferred."""
    resolved = list(sizes)
    if resolved.count(-1) == 1 and -1 not in shape:
        known_size = -math.prod(resolved)
        resolved[resolved.index(-1)] = math.prod(shape) // known_size if known_size else 0

    def apply(tensor: Tensor) -> Tensor:
        return tensor.reshape((*resolved, *tensor.shape[len(shape) :]))

    op = shape_op("reshape", shape, apply, (), tuple(sizes), merges=True, keeps_names=False)
    num_kept = 0  # of the last dimensions
    for before, after in zip(reversed(shape), reversed(op.out_shape), strict=False):
        if before != after or before == -1:
            break
        num_kept += 1
    op.sources = [*[None] * (len(op.out_shape) - num_kept), *range(len(shape) - num_kept, len(shape))]
    return op


def index_op(shape: torch.Size, argument: object) -> ShapeOp:
    """Indexes as `tensor[argument]`. A slice of a dynamic dimension stays dynamic.

    Raises:
        IndexError: `argument` has too many items, several ellipses, or an item that is out of range or no index.
    """
    items = _index_items(argument, shape)
    sources: list[int | None] = []
    tensors: list[Tensor] = []
    indexed: list[tuple[int, int]] = []  # for each tensor, its dimension, and how many dimensions are before it
    dim = 0
    for item in items:
        if isinstance(item, Tensor):
            tensors.append(item)
            indexed.append((dim, len(sources)))
        elif not isinstance(item, int):
            sources.append(None if item is None else dim)
        dim += item is not None
    sources += range(dim, len(shape))
    gathered = None
    if tensors:  # torch moves their dimensions to the front if there are others between them
        position = indexed[0][1] if len({before for _, before in indexed}) == 1 else 0
        sources[position:position] = [None] * max(tensor.ndim for tensor in tensors)
        gathered = (indexed[0][0], position) if [tensor.ndim for tensor in tensors] == [1] else None
    return shape_op(
        "index", shape, lambda tensor: tensor[items], sources, argument, gathered=gathered, keeps_names=not tensors
    )


def drop_full_slices(argument: object, num_movable: int, num_fixed: int) -> object:
    """Returns an index without the last `num_fixed` items, if it has an item for each dimension and these are `:`."""
    if not isinstance(argument, tuple):
        return argument
    num_indexed = sum(item is not None and item is not Ellipsis for item in argument)  # pyright: ignore[reportUnknownVariableType]
    last_items = argument[-num_fixed:]  # pyright: ignore[reportUnknownVariableType]
    is_full = all(isinstance(item, slice) and item == slice(None) for item in last_items)  # pyright: ignore[reportUnknownVariableType]
    return argument[:-num_fixed] if num_indexed == num_movable + num_fixed and is_full else argument  # pyright: ignore[reportUnknownVariableType]


def _index_items(argument: object, shape: torch.Size) -> tuple[IndexItem, ...]:
    """Converts the argument of `__getitem__` to one item per indexed or inserted dimension."""
    items: list[IndexItem | EllipsisType] = []
    for item in argument if isinstance(argument, tuple) else (argument,):  # pyright: ignore[reportUnknownVariableType]
        items.extend(_convert_item(item))
    num_missing = len(shape) - sum(item is not None and item is not Ellipsis for item in items)
    if num_missing < 0:
        raise IndexError(f"Too many indices for a spec of shape {tuple(shape)}: {argument!r}.")
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("An index can hold only one ellipsis ('...').")
    validated: list[IndexItem] = []
    dim = 0
    for item in items:
        if isinstance(item, EllipsisType):
            validated += [slice(None)] * num_missing
            dim += num_missing
        elif item is None:
            validated.append(None)
        else:
            validated.append(_validate_item(item, shape[dim], shape))
            dim += 1
    return tuple(validated)


def _convert_item(item: object) -> list[IndexItem | EllipsisType]:
    """Converts one item of an index to integers, slices, None, Ellipsis and index tensors."""
    if item is None or isinstance(item, slice | EllipsisType):
        return [item]
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return [int(item)]  # pyright: ignore[reportUnknownArgumentType]
    try:
        tensor = torch.as_tensor(list(item) if isinstance(item, range) else item)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.ones(1)  # a float tensor, for which the error below is raised
    if tensor.dtype == torch.bool:
        return list(tensor.nonzero(as_tuple=True))
    if tensor.is_floating_point() and tensor.numel():
        raise IndexError(f"Expected integers, slices, masks, None or '...' as an index of a spec, got {item!r}.")
    return [tensor.long()]


def _validate_item(item: int | slice | Tensor, size: int, shape: torch.Size) -> int | slice | Tensor:
    """Checks an item for a dimension of this size; for a dynamic dimension, adapts it to size 1."""
    if isinstance(item, slice):
        return slice(None) if size == -1 else item
    if size == -1:
        return item * 0
    lowest, highest = item, item
    if isinstance(item, Tensor):
        lowest, highest = (int(item.min()), int(item.max())) if item.numel() else (0, -1)
    if lowest < -size or highest >= size:
        raise IndexError(f"Expected an index below {size} for a spec of shape {tuple(shape)}, got {item}.")
    return item
