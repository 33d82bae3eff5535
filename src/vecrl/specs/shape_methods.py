"""`ShapeMethods`: torch's methods and functions for rearranging dimensions, each implemented by one `ShapeOp`.

`torch.stack(specs)` is the spec of `torch.stack(values)`: implementations of such functions are registered here, and
the functions of torch in `_METHODS` call the method of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import torch

from ..errors import SpaceError
from .shape_ops import (
    Expand,
    Flatten,
    Index,
    MakeDynamic,
    Permute,
    Reshape,
    ShapeOp,
    Squeeze,
    Unflatten,
    Unsqueeze,
    normalize_dim,
    sizes_of,
)

F = TypeVar("F", bound=Callable[..., Any])

_METHODS: dict[Callable[..., Any], str] = {
    torch.broadcast_to: "expand",
    torch.clone: "clone",
    torch.flatten: "flatten",
    torch.reshape: "reshape",
    torch.squeeze: "squeeze",
    torch.unbind: "unbind",
    torch.unflatten: "unflatten",
    torch.unsqueeze: "unsqueeze",
}
_IMPLEMENTATIONS: dict[Callable[..., Any], Callable[..., Any]] = {}


class ShapeMethods:
    """The shape methods of a spec, for classes that implement `_reshaped`.

    The last `_event_dims` dimensions form one value (a one-hot row) and cannot be rearranged.
    """

    shape: torch.Size
    _event_dims: int = 0

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def _reshaped(self, op: ShapeOp) -> Self:
        """Returns the spec of values rearranged by `op`, which excludes the last `_event_dims` dimensions."""
        raise NotImplementedError

    def _movable_shape(self) -> torch.Size:
        return self.shape[: self.ndim - self._event_dims] if self._event_dims else self.shape

    def _leading_sizes(self, sizes: tuple[int, ...], verb: str) -> tuple[int, ...]:
        """Returns `sizes` without the last `_event_dims`, which must equal those of the spec."""
        if not self._event_dims:
            return sizes
        if len(sizes) < self._event_dims or any(
            a not in (-1, b) for a, b in zip(sizes[-self._event_dims :], self.shape[-self._event_dims :], strict=True)
        ):
            raise SpaceError(
                f"Cannot {verb} {self!r} to {sizes}: its last dimension is one choice and must stay "
                f"{self.shape[-self._event_dims]}."
            )
        return sizes[: -self._event_dims]

    def expand(self, *shape: Any) -> Self:
        """Returns the spec of values expanded as by `torch.Tensor.expand`."""
        return self._reshaped(Expand(self._movable_shape(), self._leading_sizes(sizes_of(shape), "expand")))

    def reshape(self, *shape: Any) -> Self:
        """Returns the spec of values reshaped as by `torch.reshape`."""
        return self._reshaped(Reshape(self._movable_shape(), self._leading_sizes(sizes_of(shape), "reshape")))

    def view(self, *shape: Any) -> Self:
        """The same as `reshape`."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Returns the spec of values flattened as by `torch.flatten`."""
        if not self.ndim:
            return self.reshape(1)
        start = self._require_movable(start_dim, "flatten")
        end = self._require_movable(end_dim, "flatten")
        return self._reshaped(Flatten(self._movable_shape(), start, end))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Returns the spec of values unflattened as by `torch.unflatten`."""
        return self._reshaped(Unflatten(self._movable_shape(), self._require_movable(dim, "unflatten"), tuple(sizes)))

    def squeeze(self, dim: int | None = None) -> Self:
        """Returns the spec of values squeezed as by `torch.squeeze`: only dimensions of size one are removed."""
        movable_shape = self._movable_shape()
        if dim is None:
            return self._reshaped(Squeeze(movable_shape, tuple(d for d, size in enumerate(movable_shape) if size == 1)))
        dim = normalize_dim(dim, self.ndim, "squeeze")
        if self.shape[dim] != 1:
            return self
        return self._reshaped(Squeeze(movable_shape, (self._require_movable(dim, "squeeze"),)))

    def unsqueeze(self, dim: int) -> Self:
        """Returns the spec of values unsqueezed as by `torch.unsqueeze`."""
        dim = normalize_dim(dim, self.ndim + 1, "unsqueeze")
        if dim > self.ndim - self._event_dims:
            raise SpaceError(f"Cannot unsqueeze {self!r} after its last dimension, which is one choice.")
        return self._reshaped(Unsqueeze(self._movable_shape(), dim))

    def permute(self, *dims: Any) -> Self:
        """Returns the spec of values permuted as by `torch.permute`."""
        dims_order = tuple(normalize_dim(dim, self.ndim, "permute") for dim in sizes_of(dims))
        num_leading = self.ndim - self._event_dims
        if dims_order[num_leading:] != tuple(range(num_leading, self.ndim)):
            raise SpaceError(
                f"Cannot permute {self!r} to {dims_order}: its last dimension is one choice and must stay last."
            )
        return self._reshaped(Permute(self._movable_shape(), dims_order[:num_leading]))

    def make_neg_dim(self, dim: int) -> Self:
        """Returns the spec with a dynamic size (-1) at `dim`."""
        return self._reshaped(MakeDynamic(self._movable_shape(), self._require_movable(dim, "make dynamic")))

    def _require_movable(self, dim: int, verb: str) -> int:
        dim = normalize_dim(dim, self.ndim, verb)
        if dim >= self.ndim - self._event_dims:
            raise SpaceError(f"Cannot {verb} dimension {dim} of {self!r}: it is one choice.")
        return dim

    def __getitem__(self, index: Any) -> Any:
        try:
            op = Index.from_index(self._strip_event_index(index), self._movable_shape())
        except IndexError as error:
            if not self._event_dims:
                raise
            raise IndexError(f"{error} The last dimension of {self!r} is one choice, and cannot be indexed.") from error
        return self._reshaped(op)

    def _strip_event_index(self, index: Any) -> Any:
        """Returns `index` without the full slices for the dimensions of one choice, if it has them."""
        if not self._event_dims or not isinstance(index, tuple):
            return index
        num_consumed = sum(item is not None and item is not Ellipsis for item in index)  # pyright: ignore[reportUnknownVariableType]
        if num_consumed == self.ndim and all(
            isinstance(i, slice) and i == slice(None) for i in index[-self._event_dims :]
        ):  # pyright: ignore[reportUnknownVariableType]
            return index[: -self._event_dims]
        return index  # pyright: ignore[reportUnknownVariableType]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Returns the specs of the values along `dim`, as `torch.unbind` does."""
        dim = self._require_movable(dim, "unbind")
        if self.shape[dim] == -1:
            raise SpaceError(f"Cannot unbind the dynamic dimension {dim} of {self!r}.")
        return tuple(self[(slice(None),) * dim + (i,)] for i in range(self.shape[dim]))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _IMPLEMENTATIONS:
            return _IMPLEMENTATIONS[func](*args, **kwargs)
        if func in _METHODS:
            spec, *other_args = args or (kwargs.pop("input"),)
            return getattr(spec, _METHODS[func])(*other_args, **kwargs)
        supported = ", ".join(sorted(f.__name__ for f in (*_IMPLEMENTATIONS, *_METHODS)))
        name = getattr(func, "__name__", func)
        raise SpaceError(f"{name} does not take specs. These functions of torch do: {supported}.")

    @classmethod
    def implements_for_spec(cls, torch_function: Callable[..., Any]) -> Callable[[F], F]:
        """Decorator that registers a function as the implementation of `torch_function` for specs."""

        def register(implementation: F) -> F:
            _IMPLEMENTATIONS[torch_function] = implementation
            return implementation

        return register
