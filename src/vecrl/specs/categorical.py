"""Specs of one choice: `Categorical` as an index, `Binary` for bits, `OneHot` as a row with a single 1."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import categorical_ops
from .base import Device, as_device, as_dtype
from .categorical_base import IndexSpec, OneHotSpec
from .categorical_ops import Counts
from .shape_ops import ShapeLike, as_size, concrete
from .space_records import CategoricalBox

_MAX_SCAN_OPTIONS = 32  # up to this number of options, a loop in Python is faster than NumPy


class Categorical(IndexSpec):
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
    _fields = ("n", "shape", "device", "dtype", "_mask", "min")

    def __init__(
        self,
        n: int,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str = torch.int64,
        mask: object = None,
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

    def _mask_shape(self) -> torch.Size:
        return torch.Size([*concrete(self.shape), self.n])

    def set_provisional_n(self, n: int | None) -> None:
        """Sets the number of options for drawing values while the spec's own number is unknown."""
        self._provisional_n = n

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        n = self.n if self.n > 0 else self._provisional_n
        if n is None:
            raise SpaceError("Cannot draw from an unknown number of options. Call set_provisional_n(n) first.")
        if self._mask is None:
            low, high = self.min, self.min + n
            return torch.randint(low, high, sizes, dtype=self.dtype, device=self.device, generator=generator)
        return super()._sample(sizes, generator)

    def _bounds(self, device: torch.device) -> tuple[int, Counts, Tensor | None]:
        return self.min, self.n if self.n > 0 else 2**62, self._mask

    def cardinality(self) -> int | float:
        return self.n if self.n > 0 else float("inf")

    def _options(self, use_mask: bool) -> Tensor:
        if self.n < 0:
            raise SpaceError("Cannot enumerate an unknown number of options.")
        options = torch.arange(self.n, device=self.device)
        return options[categorical_ops.single_mask(self._mask)] if use_mask and self._mask is not None else options

    def index(self, index: Tensor, tensor_to_index: object) -> Any:
        """Selects an element along the last dimension of `tensor_to_index`, which keeps size 1, for each index."""
        return categorical_ops.gather_option(tensor_to_index, categorical_ops.to_integers(index) - self.min)

    def _to_rows(self, val: Tensor) -> Tensor:
        return categorical_ops.one_hot_rows((categorical_ops.to_integers(val),), ((self.n, self.min),), torch.bool)

    def to_one_hot_spec(self) -> OneHot:
        """Returns the spec of the same choice as one-hot rows."""
        return OneHot(self.n, (*self.shape, self.n), self.device, torch.bool, mask=self._mask, min=self.min)

    def _repr_fields(self) -> dict[str, object]:
        minimum = {"min": self.min} if self.min else {}
        return {"n": self.n, **super()._repr_fields(), **minimum, **self._mask_field()}


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
    _fields = ("shape", "device", "dtype")

    def __init__(
        self,
        n: int | None = None,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str = torch.int8,
    ):
        either = n if shape is None else shape
        if either is None:
            raise SpaceError("Expected n or a shape, got neither. Give the number of bits, n, or a shape.")
        shape = as_size(either)
        if n is not None and (not shape or shape[-1] != n):
            raise SpaceError(f"Expected a shape that ends with n={n}, got {tuple(shape)}.")
        super().__init__(2, shape, device, dtype)

    def update_mask(self, mask: object) -> None:
        """Accepts only None, since bits have no mask."""
        if mask is not None:
            raise SpaceError("Binary has no mask. Use Categorical(2, shape, mask=...) instead.")
        self._mask = None

    def cardinality(self) -> int | float:
        return 2 ** (self.shape[-1] if self.shape else 1)

    def _options(self, use_mask: bool) -> Tensor:
        bits = categorical_ops.combinations([2] * (self.shape[-1] if self.shape else 1), self.device)
        return bits if self.shape else bits.squeeze(-1)

    def to_one_hot_spec(self) -> OneHot:
        return OneHot(2, (*self.shape, 2), self.device, torch.bool)

    def _repr_fields(self) -> dict[str, object]:
        return {name: field for name, field in super()._repr_fields().items() if name != "n"}


class OneHot(OneHotSpec):
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
    _fields = ("n", "shape", "device", "dtype", "use_register", "_mask", "min")
    _indices_have_dim = False

    def __init__(
        self,
        n: int,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: object = None,
        min: int = 0,  # noqa: A002
    ):
        self._n = int(n)
        self.min = int(min)
        self.use_register = use_register
        self.shape = as_size((self.n,) if shape is None else shape)
        self.device = as_device(device)
        self.dtype = torch.bool if dtype is None else as_dtype(dtype)
        if self.n < 1 or not self.shape or self.shape[-1] != self.n:
            raise SpaceError(f"Expected n >= 1 options and a shape that ends with n={n}, got {tuple(self.shape)}.")
        self._choices = ((self.n, self.min),)
        self._register: list[Hashable] = []  # copies of the spec share it, and encode the same objects equally
        self.update_mask(mask)

    @property
    def n(self) -> int:
        """The number of options."""
        return self._n

    @property
    def space(self) -> CategoricalBox:
        return CategoricalBox(self.n)

    def encode(self, val: object, *, ignore_device: bool = False) -> Tensor:
        """Converts indices to one-hot rows. Rows of the spec's shape are not changed.

        Args:
            val: indices from `min` on, of the spec's shape without its last dimension, after any batch dimensions;
                with `use_register`, a single hashable object.
            ignore_device: leave the result on the device of `val`.

        Raises:
            SpaceError: an index is out of range, the shape does not fit, or there are more objects than options.
        """
        if self.use_register:
            val = self._lookup(val)
        if self.ndim == 1 and isinstance(val, int | np.integer):  # a shortcut for the usual case
            row = torch.zeros(self.n, dtype=self.dtype, device=None if ignore_device else self.device)
            if not 0 <= val - self.min < self.n:
                raise SpaceError(f"Expected an index in [{self.min}, {self.min + self.n}), got {val}.")
            row[int(val) - self.min] = 1
            return row
        return super().encode(val, ignore_device=ignore_device)

    def _lookup(self, obj: object) -> int:
        obj = obj.item() if isinstance(obj, Tensor | np.ndarray) else obj
        if obj not in self._register:
            if len(self._register) == self.n:
                raise SpaceError(f"Expected at most {self.n} objects, got {obj!r} after {self._register}. Increase n.")
            self._register.append(obj)
        return self._register.index(obj) + self.min

    def to_numpy(self, val: Tensor, safe: bool | None = None) -> list[object] | np.ndarray:
        """Converts one-hot rows to indices from `min` on; with `use_register`, to the objects that were encoded.

        If a row has several ones, such as that of equal Q-values, the first one counts, as in TorchRL.

        Raises:
            SpaceError: the rows have another number of options, or a row has no 1, or an entry other than 0 and 1.
        """
        if safe:
            self.assert_is_in(val)
        if val.ndim == 1 and self.n <= _MAX_SCAN_OPTIONS and not val.is_floating_point():
            row: list[int] = val.tolist()
            num_ones = row.count(1)
            if not num_ones or len(row) != self.n or row.count(0) + num_ones != self.n:
                raise self._not_one_hot(val)
            index = np.asarray(row.index(1) + self.min)
        else:
            rows = val.detach().cpu().numpy()
            first = categorical_ops.first_ones(rows) if rows.shape[-1:] == (self.n,) else None
            if first is None:
                raise self._not_one_hot(val)
            index = np.asarray(first + self.min)
        if not self.use_register:
            return index
        objects = [self._register[i - self.min] for i in np.ravel(index)]
        return objects if index.ndim else objects[0]

    def _not_one_hot(self, val: Tensor) -> SpaceError:
        return SpaceError(
            f"Expected one-hot rows of {self.n} options, got {val!r:.80} of shape {tuple(val.shape)}. "
            "Use spec.encode to convert indices."
        )

    def index(self, index: Tensor, tensor_to_index: object) -> Any:
        """Selects an element along the last dimension of `tensor_to_index`, which keeps size 1, for each row."""
        return categorical_ops.gather_option(tensor_to_index, index.to(torch.uint8).argmax(-1))

    def to_categorical_spec(self) -> Categorical:
        """Returns the spec of the same choice as indices."""
        return Categorical(self.n, self.shape[:-1], self.device, mask=self._mask, min=self.min)

    def _repr_fields(self) -> dict[str, object]:
        return {"n": self.n, **super()._repr_fields(), **self._mask_field()}
