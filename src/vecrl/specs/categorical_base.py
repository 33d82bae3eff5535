"""What specs of choices share: masks, and the rules of their forms: indices (`IndexSpec`), rows (`OneHotSpec`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor

from . import categorical_ops
from .base import TensorSpec
from .categorical_ops import Counts
from .shape_ops import concrete, has_shape, shape_matches


class CategoricalSpec(TensorSpec):
    """One choice or several. Values are indices or one-hot rows, and can be converted to the other form."""

    domain = "discrete"
    dtype: torch.dtype  # pyright: ignore[reportIncompatibleVariableOverride]
    device: torch.device  # pyright: ignore[reportIncompatibleVariableOverride]
    _tensors = ("_mask",)
    _mask: Tensor | None

    @property
    def mask(self) -> Tensor | None:
        """The mask of allowed options in the form that the constructor takes, with its full shape. None for all."""
        return self._mask

    def update_mask(self, mask: object) -> None:
        """Sets the mask of allowed options in place, in the form that the constructor takes; None for all."""
        self._mask = categorical_ops.as_mask(mask, self._mask_shape(), self.device)

    def _mask_shape(self) -> torch.Size:
        raise NotImplementedError

    def _mask_field(self) -> dict[str, object]:
        """Returns the part of the representation for the mask."""
        return {} if self._mask is None else {"mask": f"{int(self._mask.sum())} of {self._mask.numel()}"}

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Converts indices to one-hot rows, which for several choices are concatenated. Rows are not changed.

        Args:
            val: a value of the spec.
            safe: whether to check `val` with `assert_is_in` first.
        """
        if safe:
            self.assert_is_in(val)
        return self._to_rows(val)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Converts one-hot rows to indices. Indices are not changed.

        Args:
            val: a value of the spec.
            safe: whether to check `val` with `assert_is_in` first.
        """
        if safe:
            self.assert_is_in(val)
        return self._to_index(val)

    def _to_rows(self, val: Tensor) -> Tensor:
        return val

    def _to_index(self, val: Tensor) -> Tensor:
        return val


class IndexSpec(CategoricalSpec):
    """Choices as indices."""

    def _bounds(self, device: torch.device) -> tuple[Tensor | int, Counts, Tensor | None]:
        """Returns the least indices, on `device`, the numbers of options and the mask."""
        raise NotImplementedError

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        minimum, counts, allowed = self._bounds(self.device)
        return (categorical_ops.sample_index(counts, allowed, sizes, generator, self.device) + minimum).to(self.dtype)

    def _violation(self, val: Tensor) -> str | None:
        minimum, counts, allowed = self._bounds(val.device)
        index = categorical_ops.to_integers(val) - minimum
        if val.is_floating_point() and not bool((index + minimum == val).all()):
            return "an index is not an integer"
        return categorical_ops.index_violation(index, counts, allowed)

    def _project(self, val: Tensor) -> Tensor:
        minimum, counts, allowed = self._bounds(val.device)
        index = categorical_ops.nearest_index(categorical_ops.to_integers(val) - minimum, counts, allowed)
        return (index + minimum).to(self.dtype)

    def _options(self, use_mask: bool) -> Tensor:
        """Returns all values of one element of the batch, counted from 0; with `use_mask`, the allowed ones."""
        raise NotImplementedError

    def enumerate(self, use_mask: bool = False) -> Tensor:
        options, shape = self._options(use_mask), concrete(self.shape)
        num_batch_dims = len(shape) - (options.ndim - 1)
        values = options.reshape(-1, *[1] * num_batch_dims, *options.shape[1:]).expand(-1, *shape)
        return (values + self._bounds(options.device)[0]).to(self.dtype)

    def to_categorical_spec(self) -> Self:
        """Returns a copy of this spec."""
        return self.clone()


class OneHotSpec(CategoricalSpec):
    """Choices as one-hot rows, concatenated along the last dimension."""

    _event_dims = 1
    _indices_have_dim: ClassVar[bool]
    """Whether indices of this choice, or of these choices, have a last dimension for the choices."""

    _choices: tuple[tuple[int, int], ...]
    """The number of options of each choice, and the index of its first one."""

    def _mask_shape(self) -> torch.Size:
        return concrete(self.shape)

    def _split(self, rows: Tensor) -> Sequence[Tensor]:
        """Splits rows, or a mask, into one tensor per choice."""
        return (rows,) if len(self._choices) == 1 else rows.split([n for n, _ in self._choices], -1)

    def _masks(self) -> Sequence[Tensor | None]:
        return (None,) * len(self._choices) if self._mask is None else self._split(self._mask)

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        rows: list[Tensor] = []
        for (n, _), mask in zip(self._choices, self._masks(), strict=True):
            index = categorical_ops.sample_index(n, mask, sizes[:-1], generator, self.device)
            rows.append(categorical_ops.index_to_one_hot(index, n, self.dtype))
        return categorical_ops.concatenate(rows)

    def _violation(self, val: Tensor) -> str | None:
        for i, (part, mask) in enumerate(zip(self._split(val), self._masks(), strict=True)):
            fault = categorical_ops.one_hot_violation(part, mask)
            if fault is not None:
                return f"in choice {i}, {fault}" if len(self._choices) > 1 else fault
        return None

    def _project(self, val: Tensor) -> Tensor:
        parts = zip(self._split(val), self._masks(), strict=True)
        rows = [categorical_ops.nearest_one_hot(part, mask, self.dtype) for part, mask in parts]
        return categorical_ops.concatenate(rows)

    def cardinality(self) -> int | float:
        return math.prod(n for n, _ in self._choices)

    def encode(self, val: object, *, ignore_device: bool = False) -> Tensor:
        """Converts indices to one-hot rows. Rows of the spec's shape are not changed.

        Args:
            val: indices, after any batch dimensions. Those of one choice have the spec's shape without its last
                dimension; those of several choices are along the last dimension.
            ignore_device: leave the result on the device of `val`.

        Raises:
            SpaceError: an index is out of range, or the shape does not fit.
        """
        tensor = self._as_tensor(val, None, ignore_device)
        if self._is_row(tensor):
            return tensor.to(self.dtype)
        index_shape = (*self.shape[:-1], len(self._choices)) if self._indices_have_dim else self.shape[:-1]
        return self._from_index(categorical_ops.reshape_indices(tensor, index_shape))

    def _is_row(self, tensor: Tensor) -> bool:
        """Whether a tensor is one-hot already, as opposed to indices."""
        if tensor.dtype == torch.bool:
            return shape_matches(tensor.shape, self.shape)
        return has_shape(tensor.shape, self.shape) and self.is_in(tensor.to(self.dtype))

    def _from_index(self, index: Tensor) -> Tensor:
        index = categorical_ops.to_integers(index)
        columns = index.unbind(-1) if self._indices_have_dim else (index,)
        return categorical_ops.one_hot_rows(columns, self._choices, self.dtype)

    def _to_index(self, val: Tensor) -> Tensor:
        val = val.to(torch.uint8) if val.dtype == torch.bool else val
        columns = [part.argmax(-1) for part in self._split(val)]
        columns = [index + first if first else index for index, (_, first) in zip(columns, self._choices, strict=True)]
        return torch.stack(columns, -1) if self._indices_have_dim else columns[0]

    def enumerate(self, use_mask: bool = False) -> Tensor:
        return self._from_index(self.to_categorical_spec().enumerate(use_mask))

    def to_categorical_spec(self) -> IndexSpec:
        """Returns the spec of the same choices as indices."""
        raise NotImplementedError

    def to_one_hot_spec(self) -> Self:
        """Returns a copy of this spec."""
        return self.clone()
