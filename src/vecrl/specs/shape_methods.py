"""`ShapeMethods`: torch's methods and functions for rearranging dimensions, each as one `ShapeOp`.

`torch.stack(specs)` is the spec of `torch.stack(values)`: implementations of such functions are registered here, and
the functions of torch in `_METHODS` call the method of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ..errors import SpaceError
from .shape_ops import (
    ShapeLike,
    ShapeOp,
    drop_full_slices,
    index_op,
    normalize_dim,
    reshape_op,
    shape_matches,
    shape_op,
    sizes_of,
)

TorchFunction = Callable[..., Any]
F = TypeVar("F", bound=TorchFunction)

_METHODS: dict[TorchFunction, str] = {
    torch.broadcast_to: "expand",
    torch.clone: "clone",
    torch.flatten: "flatten",
    torch.index_select: "index_select",
    torch.permute: "permute",
    torch.reshape: "reshape",
    torch.squeeze: "squeeze",
    torch.unbind: "unbind",
    torch.unflatten: "unflatten",
    torch.unsqueeze: "unsqueeze",
}
_IMPLEMENTATIONS: dict[TorchFunction, TorchFunction] = {}

S = TypeVar("S", bound="ShapeMethods")


def num_movable(spec: ShapeMethods) -> int:
    """Returns the number of dimensions of `spec`, from the first on, that can be rearranged."""
    return spec._num_movable()


def rearrange(spec: S, op: ShapeOp) -> S:
    """Returns the spec of values rearranged by `op`, an operation on the shape of `spec`."""
    return spec._rearrange(op)


def rearrange_batch(spec: S, op: ShapeOp) -> S:
    """Returns the spec of values rearranged by `op`, an operation on their batch shape."""
    batch_dims = len(op.in_shape)
    if num_movable(spec) < batch_dims:
        raise SpaceError(f"Cannot {op.verb} the batch of {spec!r}: one of its dimensions is one choice.")
    return rearrange(spec, op.with_trailing(spec.shape[batch_dims:]))


class ShapeMethods:
    """The shape methods of a spec, for classes that implement `_rearrange`."""

    shape: torch.Size

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def _num_movable(self) -> int:
        """Returns the number of dimensions, from the first on, that can be rearranged."""
        return self.ndim

    def _rearrange(self, op: ShapeOp) -> Self:
        """Returns the spec of values rearranged by `op`.

        Raises:
            SpaceError: `op` changes a dimension that cannot be rearranged.
        """
        raise NotImplementedError

    def expand(self, *shape: ShapeLike) -> Self:
        """Returns the spec of values expanded as by `torch.Tensor.expand`."""
        ndim, sizes, fixed = self.ndim, sizes_of(shape), self.shape[self._num_movable() :]
        if fixed and not shape_matches(fixed, sizes[-len(fixed) :]):
            raise SpaceError(f"Cannot expand {self!r} to {sizes}: its last dimension is one choice.")

        def apply(tensor: Tensor) -> Tensor:
            return tensor.expand((*sizes, *tensor.shape[ndim:]))

        sources = [*[None] * (len(sizes) - ndim), *range(ndim)]
        return self._rearrange(shape_op("expand", self.shape, apply, sources, sizes))

    def reshape(self, *shape: ShapeLike) -> Self:
        """Returns the spec of values reshaped as by `torch.reshape`."""
        return self._rearrange(reshape_op(self.shape, sizes_of(shape)))

    def view(self, *shape: ShapeLike) -> Self:
        """The same as `reshape`."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Returns the spec of values flattened as by `torch.flatten`."""
        if not self.ndim:
            return self.reshape(1)
        start, end = (normalize_dim(dim, self.ndim, "flatten") for dim in (start_dim, end_dim))
        sources = [*range(start), None, *range(end + 1, self.ndim)]
        op = shape_op("flatten", self.shape, lambda t: t.flatten(start, end), sources, (start, end), merges=True)
        return self._rearrange(op)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Returns the spec of values unflattened as by `torch.unflatten`."""
        dim, sizes = normalize_dim(dim, self.ndim, "unflatten"), tuple(sizes)
        sources = [*range(dim), *[None] * len(sizes), *range(dim + 1, self.ndim)]

        def apply(tensor: Tensor) -> Tensor:
            return tensor.unflatten(dim, sizes)

        return self._rearrange(shape_op("unflatten", self.shape, apply, sources, (dim, sizes), merges=True))

    def squeeze(self, dim: int | None = None) -> Self:
        """Returns the spec of values squeezed as by `torch.squeeze`: only dimensions of size one are removed."""
        if dim is None:
            dims = tuple(d for d in range(self._num_movable()) if self.shape[d] == 1)
        else:
            dims = (normalize_dim(dim, self.ndim, "squeeze"),)
            if self.shape[dims[0]] != 1:
                return self
        sources = [d for d in range(self.ndim) if d not in dims]

        def apply(tensor: Tensor) -> Tensor:
            return tensor.squeeze(dims) if dims else tensor

        return self._rearrange(shape_op("squeeze", self.shape, apply, sources))

    def unsqueeze(self, dim: int) -> Self:
        """Returns the spec of values unsqueezed as by `torch.unsqueeze`."""
        dim = normalize_dim(dim, self.ndim + 1, "unsqueeze")
        sources = [*range(dim), None, *range(dim, self.ndim)]
        return self._rearrange(shape_op("unsqueeze", self.shape, lambda t: t.unsqueeze(dim), sources))

    def permute(self, *dims: ShapeLike) -> Self:
        """Returns the spec of values permuted as by `torch.permute`."""
        ndim = self.ndim
        order = tuple(normalize_dim(dim, ndim, "permute") for dim in sizes_of(dims))

        def apply(tensor: Tensor) -> Tensor:
            return tensor.permute(*order, *range(ndim, tensor.ndim))

        return self._rearrange(shape_op("permute", self.shape, apply, order, order))

    def make_neg_dim(self, dim: int) -> Self:
        """Returns the spec with a dynamic size (-1) at `dim`."""
        dim = normalize_dim(dim, self.ndim, "make dynamic")

        def apply(tensor: Tensor) -> Tensor:
            return tensor.narrow(dim, 0, min(1, tensor.shape[dim]))

        verb = f"make dynamic dimension {dim} of"
        return self._rearrange(shape_op(verb, self.shape, apply, range(self.ndim), dynamic_dim=dim))

    def __getitem__(self, index: object) -> Any:
        movable, fixed = self.shape[: self._num_movable()], self.shape[self._num_movable() :]
        if not fixed:
            return self._rearrange(index_op(movable, index))
        try:
            op = index_op(movable, drop_full_slices(index, len(movable), len(fixed)))
        except IndexError as error:
            raise IndexError(f"{error} The last dimension of {self!r} is one choice, and cannot be indexed.") from error
        return self._rearrange(op.with_trailing(fixed))

    def index_select(self, dim: int, index: Tensor) -> Any:
        """Returns the spec of the values at the indices `index` along `dim`, as `torch.index_select` does."""
        dim = normalize_dim(dim, self.ndim, "index_select")
        return self[(slice(None),) * dim + (index,)]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Returns the specs of the values along `dim`, as `torch.unbind` does."""
        dim = normalize_dim(dim, self.ndim, "unbind")
        if self.shape[dim] == -1 or dim >= self._num_movable():
            raise SpaceError(f"Cannot unbind dimension {dim} of {self!r}: it is dynamic, or one choice.")
        return tuple(self[(slice(None),) * dim + (i,)] for i in range(self.shape[dim]))

    @classmethod
    def __torch_function__(
        cls, func: TorchFunction, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func in _IMPLEMENTATIONS:
            return _IMPLEMENTATIONS[func](*args, **keywords)
        if func in _METHODS:
            spec, *other_args = args or (keywords.pop("input"),)
            return getattr(spec, _METHODS[func])(*other_args, **keywords)
        supported = ", ".join(sorted(f.__name__ for f in (*_IMPLEMENTATIONS, *_METHODS)))
        name = getattr(func, "__name__", func)
        raise SpaceError(f"{name} does not take specs. These functions of torch do: {supported}.")

    @classmethod
    def implements_for_spec(cls, torch_function: TorchFunction) -> Callable[[F], F]:
        """Decorator that registers a function as the implementation of `torch_function` for specs."""

        def register(implementation: F) -> F:
            _IMPLEMENTATIONS[torch_function] = implementation
            return implementation

        return register
