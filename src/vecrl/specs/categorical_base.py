"""What specs of choices share: the mask of allowed options, and their two forms, indices and one-hot rows."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from . import categorical_ops
from .base import TensorSpec
from .categorical_ops import Counts
from .shape_ops import ShapeOp, concrete


class CategoricalSpec(TensorSpec):
    """One choice or several. Values are indices or one-hot rows, and can be converted to the other form."""

    domain = "discrete"
    _mask: Tensor | None

    @property
    def mask(self) -> Tensor | None:
        """The mask of allowed options in the form that the constructor takes, with its full shape. None for all."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Sets the mask of allowed options in place, in the form that the constructor takes; None for all."""
        self._mask = categorical_ops.as_mask(mask, self._mask_shape(), self.device)

    def _mask_shape(self) -> torch.Size:
        raise NotImplementedError

    def _mask_field(self) -> dict[str, str]:
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

    def _choices(self, device: torch.device) -> tuple[Tensor | int, Counts, Tensor | None]:
        """Returns the least indices, on `device`, the numbers of options and the mask."""
        raise NotImplementedError

    def _violation(self, val: Tensor) -> str | None:
        minimum, counts, allowed = self._choices(val.device)
        index = categorical_ops.to_integers(val) - minimum
        if val.is_floating_point() and not bool((index + minimum == val).all()):
            return "an index is not an integer"
        return categorical_ops.index_violation(index, counts, allowed)

    def _project(self, val: Tensor) -> Tensor:
        minimum, counts, allowed = self._choices(val.device)
        index = categorical_ops.nearest_index(categorical_ops.to_integers(val) - minimum, counts, allowed)
        return (index + minimum).to(self.dtype)

    def to_categorical_spec(self) -> Self:
        """Returns a copy of this spec."""
        return self.clone()


class OneHotSpec(CategoricalSpec):
    """Choices as one-hot rows along the last dimension."""

    _event_dims = 1

    def _mask_shape(self) -> torch.Size:
        return concrete(self.shape)

    def _reshaped(self, op: ShapeOp) -> Self:
        mask = None if self._mask is None else op.apply_checked(self._mask, 1)
        return self._with(shape=(*op.out_shape, self.shape[-1]), mask=mask)

    def to_one_hot_spec(self) -> Self:
        """Returns a copy of this spec."""
        return self.clone()
