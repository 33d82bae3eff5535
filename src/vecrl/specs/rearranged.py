"""`Rearranged`: torch's ways of rearranging dimensions, as methods that all come down to one `Move`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from ..errors import SpaceError
from . import moves
from .moves import Move


class Rearranged:
    """What has a shape and follows a `Move` of it.

    The last `_depth` dimensions are one value together (a one-hot row), and cannot be rearranged.
    """

    shape: torch.Size
    _depth: int = 0

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def _moved(self, move: Move) -> Self:
        """The spec of the values rearranged by `move`, which speaks of all but the last `_depth` dimensions."""
        raise NotImplementedError

    def _lead(self) -> torch.Size:
        return self.shape[: self.ndim - self._depth] if self._depth else self.shape

    def _front(self, sizes: tuple[int, ...], verb: str) -> tuple[int, ...]:
        """`sizes` without the last `_depth`, which must be the spec's own."""
        if not self._depth:
            return sizes
        if len(sizes) < self._depth or any(
            a not in (-1, b) for a, b in zip(sizes[-self._depth :], self.shape[-self._depth :], strict=True)
        ):
            raise SpaceError(
                f"Cannot {verb} {self!r} to {sizes}: its last dimension is one choice and must stay "
                f"{self.shape[-self._depth]}."
            )
        return sizes[: -self._depth]

    def expand(self, *shape: Any) -> Self:
        """The spec of values expanded as by `torch.Tensor.expand`."""
        return self._moved(moves.Expand(self._lead(), self._front(moves.sizes_of(shape), "expand")))

    def reshape(self, *shape: Any) -> Self:
        """The spec of values reshaped as by `torch.reshape`."""
        return self._moved(moves.Reshape(self._lead(), self._front(moves.sizes_of(shape), "reshape")))

    def view(self, *shape: Any) -> Self:
        """The same as `reshape`."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The spec of values flattened as by `torch.flatten`."""
        if not self.ndim:
            return self.reshape(1)
        start = self._movable(start_dim, "flatten")
        end = self._movable(end_dim, "flatten")
        return self._moved(moves.Flatten(self._lead(), start, end))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """The spec of values unflattened as by `torch.unflatten`."""
        return self._moved(moves.Unflatten(self._lead(), self._movable(dim, "unflatten"), tuple(sizes)))

    def squeeze(self, dim: int | None = None) -> Self:
        """The spec of values squeezed as by `torch.squeeze`: a dimension of another size than one stays."""
        lead = self._lead()
        if dim is None:
            return self._moved(moves.Squeeze(lead, tuple(d for d, size in enumerate(lead) if size == 1)))
        dim = moves.nonnegative(dim, self.ndim, "squeeze")
        if self.shape[dim] != 1:
            return self
        return self._moved(moves.Squeeze(lead, (self._movable(dim, "squeeze"),)))

    def unsqueeze(self, dim: int) -> Self:
        """The spec of values unsqueezed as by `torch.unsqueeze`."""
        dim = moves.nonnegative(dim, self.ndim + 1, "unsqueeze")
        if dim > self.ndim - self._depth:
            raise SpaceError(f"Cannot unsqueeze {self!r} behind its last dimension, which is one choice.")
        return self._moved(moves.Unsqueeze(self._lead(), dim))

    def permute(self, *dims: Any) -> Self:
        """The spec of values permuted as by `torch.permute`."""
        order = tuple(moves.nonnegative(dim, self.ndim, "permute") for dim in moves.sizes_of(dims))
        front = self.ndim - self._depth
        if order[front:] != tuple(range(front, self.ndim)):
            raise SpaceError(
                f"Cannot permute {self!r} to {order}: its last dimension is one choice and must stay last."
            )
        return self._moved(moves.Permute(self._lead(), order[:front]))

    def make_neg_dim(self, dim: int) -> Self:
        """The spec with the size of `dim` left open (-1)."""
        return self._moved(moves.Forget(self._lead(), self._movable(dim, "make dynamic")))

    def _movable(self, dim: int, verb: str) -> int:
        dim = moves.nonnegative(dim, self.ndim, verb)
        if dim >= self.ndim - self._depth:
            raise SpaceError(f"Cannot {verb} dimension {dim} of {self!r}: it is one choice.")
        return dim

    def __getitem__(self, index: Any) -> Any:
        try:
            move = moves.Index.of(self._without_depth(index), self._lead())
        except IndexError as error:
            if not self._depth:
                raise
            raise IndexError(f"{error} The last dimension of {self!r} is one choice, and cannot be indexed.") from error
        return self._moved(move)

    def _without_depth(self, index: Any) -> Any:
        """`index` without the full slices that it may have for the dimensions of one choice."""
        if not self._depth or not isinstance(index, tuple):
            return index
        taken = sum(item is not None and item is not Ellipsis for item in index)  # pyright: ignore[reportUnknownVariableType]
        if taken == self.ndim and all(isinstance(i, slice) and i == slice(None) for i in index[-self._depth :]):  # pyright: ignore[reportUnknownVariableType]
            return index[: -self._depth]
        return index  # pyright: ignore[reportUnknownVariableType]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """The specs of the values along `dim`, as `torch.unbind`."""
        dim = self._movable(dim, "unbind")
        if self.shape[dim] == -1:
            raise SpaceError(f"Cannot unbind the dynamic dimension {dim} of {self!r}.")
        return tuple(self[(slice(None),) * dim + (i,)] for i in range(self.shape[dim]))
