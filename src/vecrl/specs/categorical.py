"""Specs of one choice as an index: `Categorical`, and `Binary` for bits."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import categorical_ops
from .base import Device, TensorSpec, as_device, as_dtype
from .one_hot import OneHot
from .shape_ops import ShapeOp, as_size, concrete
from .space_records import CategoricalBox


class Categorical(TensorSpec):
    """An index among `n` options.

    Args:
        n: the number of options; -1 if it is unknown. Values can then be drawn only after `set_provisional_n`.
        shape: of a value, () for a single index.
        device: None for torch's default device.
        dtype: of the indices.
        mask: which options are allowed, of a shape that expands to `(*shape, n)`; None for all.
        min: the least index; values are in `[min, min + n)`.

    >>> spec = Categorical(4, mask=torch.tensor([True, False, True, False]))
    >>> spec.is_in(torch.tensor(1)), spec.project(torch.tensor(3)), spec.to_one_hot(torch.tensor(2)).int()
    (False, tensor(2), tensor([0, 0, 1, 0], dtype=torch.int32))
    >>> spec.to_one_hot_spec().shape
    torch.Size([4])
    """

    _kind = "Categorical"
    domain = "discrete"

    def __init__(
        self,
        n: int,
        shape: Any = None,
        device: Device = None,
        dtype: torch.dtype | str = torch.int64,
        mask: Any = None,
        min: int = 0,  # noqa: A002
    ):
        self.n = int(n)
        if self.n < 1 and self.n != -1:
            raise SpaceError(f"Expected at least one option (or -1 for a number not known), got n={n}.")
        self.min = int(min)
        self.shape = as_size(() if shape is None else shape)
        self.device = as_device(device)
        self.dtype = as_dtype(dtype)
        self._provisional_n: int | None = None
        self.update_mask(mask)

    @property
    def space(self) -> CategoricalBox:
        return CategoricalBox(self.n)

    @property
    def mask(self) -> Tensor | None:
        """The mask of allowed options, bool of shape `(*shape, n)`, or None for all."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Sets the mask of allowed options in place; None for all."""
        self._mask = categorical_ops.as_mask(mask, torch.Size([*concrete(self.shape), self.n]), self.device)

    def set_provisional_n(self, n: int | None) -> None:
        """Sets the number of options for drawing values while the spec's own number is unknown."""
        self._provisional_n = n

    def _arguments(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "shape": self.shape,
            "device": self.device,
            "dtype": self.dtype,
            "mask": self._mask,
            "min": self.min,
        }

    def _with(self, **changes: Any) -> Self:
        spec = super()._with(**changes)
        spec._provisional_n = self._provisional_n
        return spec

    def _reshaped(self, op: ShapeOp) -> Self:
        mask = None if self._mask is None else op.apply_checked(self._mask, 1)
        return self._with(shape=op.out_shape, mask=mask)

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        n = self.n if self.n > 0 else self._provisional_n
        if n is None:
            raise SpaceError("Cannot draw from an unknown number of options. Call set_provisional_n(n) first.")
        assert self.device is not None
        if self._mask is None:
            low, high = self.min, self.min + n
            return torch.randint(low, high, sizes, dtype=self.dtype, device=self.device, generator=generator)
        return (categorical_ops.sample_index(n, self._mask, sizes, generator, self.device) + self.min).to(self.dtype)

    def _violation(self, val: Tensor) -> str | None:
        index = categorical_ops.to_integers(val) - self.min
        if val.is_floating_point() and not bool((index + self.min == val).all()):
            return "an index is not an integer"
        return categorical_ops.index_violation(index, self.n if self.n > 0 else 2**62, self._mask)

    def _project(self, val: Tensor) -> Tensor:
        index = categorical_ops.to_integers(val) - self.min
        return (categorical_ops.nearest_index(index, self.n if self.n > 0 else 2**62, self._mask) + self.min).to(
            self.dtype
        )

    def cardinality(self) -> int | float:
        return self.n if self.n > 0 else float("inf")

    def enumerate(self, use_mask: bool = False) -> Tensor:
        if self.n < 0:
            raise SpaceError("Cannot enumerate an unknown number of options.")
        index = torch.arange(self.min, self.min + self.n, device=self.device)
        if use_mask and self._mask is not None:
            index = index[categorical_ops.single_mask(self._mask, "Options")]
        shape = concrete(self.shape)
        return index.to(self.dtype).reshape(-1, *[1] * len(shape)).expand(-1, *shape).clone()

    def index(self, index: Tensor, tensor_to_index: Any) -> Any:
        """Selects an element along the last dimension of `tensor_to_index`, which keeps size 1, for each index."""
        return categorical_ops.gather_option(tensor_to_index, categorical_ops.to_integers(index) - self.min)

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Converts indices to one-hot rows; `safe` checks them with `assert_is_in` first."""
        if safe:
            self.assert_is_in(val)
        return categorical_ops.one_hot(categorical_ops.to_integers(val) - self.min, self.n, torch.bool)

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Returns the indices unchanged; `safe` checks them with `assert_is_in` first."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_one_hot_spec(self) -> OneHot:
        """Returns the spec of the same choice as one-hot rows."""
        return OneHot(self.n, (*self.shape, self.n), self.device, torch.bool, mask=self._mask, min=self.min)

    def to_categorical_spec(self) -> Categorical:
        """Returns a copy of this spec."""
        return self.clone()

    def _repr_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"n": self.n, **super()._repr_fields()}
        if self.min:
            fields["min"] = self.min
        if self._mask is not None:
            fields["mask"] = f"{int(self._mask.sum())} of {self._mask.numel()}"
        return fields


class Binary(Categorical):
    """Bits: zeros and ones.

    There are 2**n values for a last dimension of size n, and `enumerate` returns all. (TorchRL returns two.)

    Args:
        n: the number of bits, which is the last size of `shape`. Either of the two is enough.
        shape: of a value; (n,) by default.
        device: None for torch's default device.
        dtype: of the bits; int8 by default.

    >>> Binary(3).project(torch.tensor([0.2, 0.7, -2.0]))
    tensor([0, 1, 0], dtype=torch.int8)
    >>> Binary(2).enumerate().tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """

    _kind = "Binary"

    def __init__(
        self,
        n: int | None = None,
        shape: Any = None,
        device: Device = None,
        dtype: torch.dtype | str = torch.int8,
    ):
        if n is None and shape is None:
            raise SpaceError("Expected n or a shape, got neither. Give the number of bits, n, or a shape.")
        shape = as_size(n if shape is None else shape)
        if n is not None and (not shape or shape[-1] != n):
            raise SpaceError(f"Expected a shape that ends with n={n}, got {tuple(shape)}.")
        super().__init__(2, shape, device, dtype)

    def update_mask(self, mask: Any) -> None:
        """Accepts only None, since bits have no mask."""
        if mask is not None:
            raise SpaceError("Binary has no mask. Use Categorical(2, shape, mask=...) instead.")
        self._mask = None

    def _arguments(self) -> dict[str, Any]:
        return {"shape": self.shape, "device": self.device, "dtype": self.dtype}

    def _reshaped(self, op: ShapeOp) -> Self:
        return self._with(shape=op.out_shape)

    def cardinality(self) -> int | float:
        return 2 ** (self.shape[-1] if self.shape else 1)

    def enumerate(self, use_mask: bool = False) -> Tensor:
        num_bits = self.shape[-1] if self.shape else 1
        values = torch.arange(2**num_bits, device=self.device).unsqueeze(-1)
        rows = (values >> torch.arange(num_bits - 1, -1, -1, device=self.device)) & 1
        shape = concrete(self.shape)
        rows = rows.reshape(-1, *[1] * (len(shape) - 1), num_bits) if shape else rows.reshape(-1)
        return rows.to(self.dtype).expand(-1, *shape).clone()

    def to_one_hot_spec(self) -> OneHot:
        return OneHot(2, (*self.shape, 2), self.device, torch.bool)

    def _repr_fields(self) -> dict[str, Any]:
        return TensorSpec._repr_fields(self)
