"""The spec of one choice as a row with a single 1: `OneHot`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import categorical_ops
from .base import Device, TensorSpec, as_device, as_dtype
from .shape_ops import ShapeOp, as_size, concrete
from .space_records import CategoricalBox

if TYPE_CHECKING:
    from .categorical import Categorical


_MAX_SCAN_OPTIONS = 32  # up to this number of options, a loop in Python is faster than NumPy


class OneHot(TensorSpec):
    """One choice among `n` options as a row with a single 1, along the last dimension.

    Args:
        n: the number of options.
        shape: of a value, ends with n; (n,) by default.
        device: None for torch's default device.
        dtype: of the rows; bool by default.
        use_register: whether `encode` takes any hashable objects. Each new one gets the next free option.
        mask: which options are allowed, of a shape that expands to `shape`; None for all.
        min: the index of the first option: `encode(min)` returns the first row, and `to_numpy` converts it to `min`.

    >>> spec = OneHot(4)
    >>> spec.encode(2).int(), spec.to_numpy(spec.encode(2))
    (tensor([0, 0, 1, 0], dtype=torch.int32), array(2))
    >>> spec.project(torch.tensor([0.1, 0.3, 0.2, -1.0])).int()
    tensor([0, 1, 0, 0], dtype=torch.int32)
    """

    _kind = "OneHot"
    _event_dims = 1
    domain = "discrete"

    def __init__(
        self,
        n: int,
        shape: Any = None,
        device: Device = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: Any = None,
        min: int = 0,  # noqa: A002
    ):
        self.n = int(n)
        self.min = int(min)
        self.use_register = use_register
        self.shape = as_size((self.n,) if shape is None else shape)
        self.device = as_device(device)
        self.dtype = torch.bool if dtype is None else as_dtype(dtype)
        if self.n < 1 or not self.shape or self.shape[-1] != self.n:
            raise SpaceError(f"Expected n >= 1 options and a shape that ends with n={n}, got {tuple(self.shape)}.")
        self._register: list[Hashable] = []
        self.update_mask(mask)

    @property
    def space(self) -> CategoricalBox:
        return CategoricalBox(self.n)

    @property
    def mask(self) -> Tensor | None:
        """The mask of allowed options, of the spec's shape, or None for all."""
        return self._mask

    def update_mask(self, mask: Any) -> None:
        """Sets the mask of allowed options in place; None for all."""
        self._mask = categorical_ops.as_mask(mask, concrete(self.shape), self.device)

    def _arguments(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "shape": self.shape,
            "device": self.device,
            "dtype": self.dtype,
            "use_register": self.use_register,
            "mask": self._mask,
            "min": self.min,
        }

    def _with(self, **changes: Any) -> Self:
        spec = super()._with(**changes)
        spec._register = self._register  # shared, so that the copies encode the same objects as the same options
        return spec

    def _reshaped(self, op: ShapeOp) -> Self:
        mask = None if self._mask is None else op.apply_checked(self._mask, 1)
        return self._with(shape=(*op.out_shape, self.n), mask=mask)

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        assert self.device is not None
        assert self.dtype is not None
        index = categorical_ops.sample_index(self.n, self._mask, sizes[:-1], generator, self.device)
        return categorical_ops.index_to_one_hot(index, self.n, self.dtype)

    def _violation(self, val: Tensor) -> str | None:
        return categorical_ops.one_hot_violation(val, self._mask)

    def _project(self, val: Tensor) -> Tensor:
        assert self.dtype is not None
        return categorical_ops.nearest_one_hot(val, self._mask, self.dtype)

    def cardinality(self) -> int | float:
        return self.n

    def enumerate(self, use_mask: bool = False) -> Tensor:
        rows = torch.eye(self.n, dtype=self.dtype, device=self.device)
        if use_mask and self._mask is not None:
            rows = rows[categorical_ops.single_mask(self._mask, "Options")]
        shape = concrete(self.shape)
        return rows.reshape(-1, *[1] * (len(shape) - 1), self.n).expand(-1, *shape).clone()

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Converts indices to one-hot rows. Rows of the spec's shape are not changed.

        Args:
            val: indices from `min` on, of the spec's shape without its last dimension, after any batch dimensions;
                with `use_register`, a single hashable object.
            ignore_device: leave the result on the device of `val`.

        Raises:
            SpaceError: an index is out of range, the shape does not fit, or there are more objects than options.
        """
        assert self.dtype is not None
        if self.use_register:
            val = self._lookup(val)
        if self.ndim == 1 and isinstance(val, int | np.integer):  # a shortcut for the usual case
            row = torch.zeros(self.n, dtype=self.dtype, device=None if ignore_device else self.device)
            if not 0 <= val - self.min < self.n:
                raise SpaceError(f"Expected an index in [{self.min}, {self.min + self.n}), got {val}.")
            row[int(val) - self.min] = 1
            return row
        tensor = self._as_tensor(val, None, ignore_device)
        if self._is_row(tensor):
            return tensor.to(self.dtype)
        tensor = categorical_ops.reshape_indices(tensor, self.shape[:-1])
        return categorical_ops.one_hot(categorical_ops.to_integers(tensor) - self.min, self.n, self.dtype)

    def _lookup(self, obj: Any) -> int:
        obj = obj.item() if isinstance(obj, Tensor | np.ndarray) else obj
        if obj not in self._register:
            if len(self._register) == self.n:
                raise SpaceError(f"Expected at most {self.n} objects, got {obj!r} after {self._register}. Increase n.")
            self._register.append(obj)
        return self._register.index(obj) + self.min

    def to_numpy(self, val: Tensor, safe: bool | None = None) -> Any:
        """Converts one-hot rows to indices from `min` on; with `use_register`, to the objects that were encoded.

        Raises:
            SpaceError: the rows have another number of options, or a row selects none.
        """
        if safe:
            self.assert_is_in(val)
        if val.ndim == 1 and self.n <= _MAX_SCAN_OPTIONS and not val.is_floating_point():
            row: list[int] = val.tolist()
            largest = max(row, default=0)
            if not largest or len(row) != self.n:
                raise self._not_one_hot(val)
            index = np.asarray(row.index(largest) + self.min)
        else:
            rows = val.detach().cpu().numpy()
            if rows.shape[-1:] != (self.n,) or not np.logical_and.reduce(np.logical_or.reduce(rows, -1), None):
                raise self._not_one_hot(val)
            index = np.asarray(rows.argmax(-1) + self.min)
        if not self.use_register:
            return index
        objects = [self._register[i - self.min] for i in np.ravel(index)]
        return objects if index.ndim else objects[0]

    def _not_one_hot(self, val: Tensor) -> SpaceError:
        return SpaceError(
            f"Expected one-hot rows of {self.n} options, got {val!r:.80} of shape {tuple(val.shape)}. "
            "Use spec.encode to convert indices."
        )

    def index(self, index: Tensor, tensor_to_index: Any) -> Any:
        """Selects an element along the last dimension of `tensor_to_index`, which keeps size 1, for each row."""
        return categorical_ops.gather_option(tensor_to_index, index.to(torch.uint8).argmax(-1))

    def to_categorical(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Converts one-hot rows to indices; `safe` checks them with `assert_is_in` first."""
        if safe:
            self.assert_is_in(val)
        return val.to(torch.uint8 if val.dtype == torch.bool else val.dtype).argmax(-1) + self.min

    def to_one_hot(self, val: Tensor, safe: bool | None = None) -> Tensor:
        """Returns the rows unchanged; `safe` checks them with `assert_is_in` first."""
        if safe:
            self.assert_is_in(val)
        return val

    def to_categorical_spec(self) -> Categorical:
        """Returns the spec of the same choice as indices."""
        from .categorical import Categorical  # imported here, since the two modules import each other

        return Categorical(self.n, self.shape[:-1], self.device, mask=self._mask, min=self.min)

    def to_one_hot_spec(self) -> OneHot:
        """Returns a copy of this spec."""
        return self.clone()

    def _repr_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"n": self.n, **super()._repr_fields()}
        if self._mask is not None:
            fields["mask"] = f"{int(self._mask.sum())} of {self._mask.numel()}"
        return fields
