"""Specs of choices: `Categorical`, `Binary`, `MultiCategorical` as indices, `OneHot`, `MultiOneHot` as rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import SpaceError
from ..validation import parse_int
from .base import Device, Leaf, TensorSpec, as_device
from .domains import UNKNOWN, Bits, EqualIndices, OneHotRows, UnequalIndices, to_integers
from .shape_ops import ShapeLike, as_size, concrete, has_shape, shape_matches

ROUNDING = 1e-3  # of floats in one-hot rows, since straight-through gradients add and subtract probabilities
_MAX_SCAN_OPTIONS = 32  # up to this number of options, a loop in Python is faster than NumPy


@dataclass(frozen=True, slots=True)
class CategoricalBox:
    """The number of options, `n`; -1 if it is unknown."""

    n: int


@dataclass(frozen=True, slots=True)
class BoxList:
    """The numbers of options of several choices."""

    boxes: tuple[CategoricalBox, ...]

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[CategoricalBox]:
        return iter(self.boxes)

    def __getitem__(self, index: int) -> CategoricalBox:
        return self.boxes[index]


class CategoricalSpec(Leaf):
    """One choice or several. Values are indices or one-hot rows, and can be converted to the other form."""

    domain = "discrete"
    dtype: torch.dtype  # pyright: ignore[reportIncompatibleVariableOverride]
    device: torch.device  # pyright: ignore[reportIncompatibleVariableOverride]
    _domain: Any  # `Indices` or `OneHotRows`
    _repr_fields = TensorSpec._repr_fields  # subclasses add the parameters under the names of their arguments

    @property
    def mask(self) -> Tensor | None:
        """The mask of allowed options in the form that the constructor takes, with its full shape. None for all."""
        return self._domain.mask

    def update_mask(self, mask: object) -> None:
        """Sets the mask of allowed options in place, in the form that the constructor takes; None for all."""
        self._domain = replace(self._domain, mask=_expand_mask(mask, self._mask_shape(), self.device))

    def _mask_shape(self) -> torch.Size:
        return concrete(self.shape)

    def _mask_field(self) -> dict[str, object]:
        """Returns the part of the representation for the mask."""
        mask = self._domain.mask
        return {} if mask is None else {"mask": f"{int(mask.sum())} of {mask.numel()}"}

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

    def to_categorical_spec(self) -> Any:
        """Returns the spec of the same choices as indices: for a spec of indices, a copy."""
        return self.clone()

    def to_one_hot_spec(self) -> Any:
        """Returns the spec of the same choices as one-hot rows: for a spec of rows, a copy."""
        return self.clone()


class Categorical(CategoricalSpec):
    """An index among `n` options.

    Args:
        n: the number of options; -1 if it is unknown. Values can then be sampled only after `set_provisional_n`.
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

    _domain: EqualIndices

    def __init__(
        self,
        n: int,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str = torch.int64,
        mask: object = None,
        min: int = 0,  # noqa: A002
    ):
        self.n = parse_int("n", n, -1, error=SpaceError)
        self.min = parse_int("min", min, error=SpaceError)
        if not self.n:
            raise SpaceError(f"Expected at least one option (or -1 for a number not known), got n={n}.")
        domain = EqualIndices(UNKNOWN if self.n == -1 else self.n, self.min)
        super().__init__(() if shape is None else shape, device, dtype, domain)
        self.update_mask(mask)

    @property
    def space(self) -> CategoricalBox:
        return CategoricalBox(self.n)

    def _mask_shape(self) -> torch.Size:
        return torch.Size([*concrete(self.shape), self.n])

    def set_provisional_n(self, n: int | None) -> None:
        """Sets the number of options for sampling values while the spec's own number is unknown."""
        self._domain = replace(self._domain, provisional=n)

    def index(self, index: Tensor, tensor_to_index: object) -> Any:
        """Selects an element along the last dimension of `tensor_to_index`, which keeps size 1, for each index."""
        return _gather_option(tensor_to_index, to_integers(index) - self.min)

    def _to_rows(self, val: Tensor) -> Tensor:
        return OneHotRows(((self.n, self.min),)).encode((to_integers(val),), torch.bool)

    def to_one_hot_spec(self) -> OneHot:
        """Returns the spec of the same choice as one-hot rows."""
        return OneHot(self.n, (*self.shape, self.n), self.device, torch.bool, mask=self.mask, min=self.min)

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

    def __init__(
        self,
        n: int | None = None,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str = torch.int8,
    ):
        n = None if n is None else parse_int("n", n, -1, error=SpaceError)
        either = n if shape is None else shape
        if either is None:
            raise SpaceError("Expected n or a shape, got neither. Give the number of bits, n, or a shape.")
        shape = as_size(either)
        if n is not None and (not shape or shape[-1] != n):
            raise SpaceError(f"Expected a shape that ends with n={n}, got {tuple(shape)}.")
        super().__init__(2, shape, device, dtype)
        self._domain = Bits()

    def update_mask(self, mask: object) -> None:
        """Accepts only None, since bits have no mask."""
        if mask is not None:
            raise SpaceError("Binary has no mask. Use Categorical(2, shape, mask=...) instead.")

    def _repr_fields(self) -> dict[str, object]:
        return {name: field for name, field in super()._repr_fields().items() if name != "n"}


class MultiCategorical(CategoricalSpec):
    """Indices along the last dimension, where each element has its own number of options.

    Any dimension can be rearranged, since every element keeps its number of options. (In TorchRL a spec of a single
    number has shape (1,) and values of shape (). Here values have the shape of the spec, and `remove_singleton` has no
    effect.)

    Args:
        nvec: the numbers of options; `shape` ends with its shape.
        shape: of a value; that of `nvec` by default.
        device: None for torch's default device.
        dtype: of the indices.
        mask: which options are allowed, concatenated over the indices, of a shape that expands to
            `(*shape[:-1], sum(nvec))`. None for all.
        remove_singleton: has no effect.
        min: the least index of each element, which broadcasts to `shape`.

    >>> spec = MultiCategorical((3, 2))
    >>> spec.is_in(torch.tensor([2, 1])), spec.is_in(torch.tensor([1, 2])), spec.cardinality()
    (True, False, 6)
    >>> spec.to_one_hot(torch.tensor([2, 1])).int()
    tensor([0, 0, 1, 0, 1], dtype=torch.int32)
    """

    _fields = ("remove_singleton",)
    _domain: UnequalIndices

    def __init__(
        self,
        nvec: Sequence[int] | Tensor | int,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str | None = torch.int64,
        mask: object = None,
        remove_singleton: bool = True,
        min: object = 0,  # noqa: A002
    ):
        device = as_device(device)
        counts = _parse_nvec(nvec).to(device)
        shape = counts.shape if shape is None else as_size(shape)
        try:
            sizes = concrete(shape)
            self.min = torch.as_tensor(min, device=device).to(torch.int64).expand(sizes)
            domain = UnequalIndices(counts.expand(sizes), self.min)
        except RuntimeError as error:
            raise SpaceError(
                f"Expected a shape that ends with that of nvec (and of min), {tuple(counts.shape)}, got {tuple(shape)}."
            ) from error
        if counts.numel() and not counts.is_meta and bool((counts < 1).any()):
            raise SpaceError(f"Expected at least one option for each element, got nvec={nvec}.")
        super().__init__(shape, device, torch.int64 if dtype is None else dtype, domain)
        self.remove_singleton = remove_singleton
        self.update_mask(mask)

    def _replace(self, **changes: object) -> Self:
        spec = super()._replace(**changes)
        spec.min = spec._domain.first
        return spec

    @property
    def nvec(self) -> Tensor:
        """The numbers of options along the last dimension; of the spec's shape if they differ along other ones."""
        return self._domain.nvec

    @property
    def space(self) -> BoxList:
        return BoxList(tuple(CategoricalBox(n) for n in self.nvec.reshape(-1).tolist()))

    @property
    def mask(self) -> Tensor | None:
        """The mask of allowed options, concatenated over the indices, or None for all."""
        mask = self._domain.mask
        if mask is None:
            return None
        padded_mask = mask if self.shape else mask.unsqueeze(0)
        option_counts = self._domain.option_counts("A mask")
        return torch.cat([padded_mask[..., i, :n] for i, n in enumerate(option_counts)], -1)

    def update_mask(self, mask: object) -> None:
        """Sets the mask of allowed options in place, in the form that the constructor takes; None for all."""
        if mask is not None:
            option_counts = self._domain.option_counts("A mask")
            lead = concrete(self.shape[:-1])
            flat = _expand_mask(mask, torch.Size([*lead, sum(option_counts)]), self.device)
            assert flat is not None
            padded = torch.zeros((*lead, len(option_counts), max(option_counts)), dtype=torch.bool, device=self.device)
            for i, part in enumerate(flat.split(option_counts, -1)):
                padded[..., i, : option_counts[i]] = part
            mask = padded if self.shape else padded.squeeze(0)
        self._domain = replace(self._domain, mask=mask)

    def _to_rows(self, val: Tensor) -> Tensor:
        index = to_integers(val) - self.min.to(val.device)
        columns = index.unbind(-1) if self.shape else (index,)
        choices = tuple((n, 0) for n in self._domain.option_counts("One-hot encoding"))
        return OneHotRows(choices).encode(columns, torch.bool)

    def to_one_hot_spec(self) -> MultiOneHot:
        """Returns the spec of the same choices as one-hot rows."""
        option_counts = self._domain.option_counts("One-hot encoding")
        minimum = self.min.reshape(-1, len(option_counts))[0] if self.min.numel() else 0
        shape = (*self.shape[:-1], sum(option_counts))
        return MultiOneHot(option_counts, shape, self.device, torch.bool, mask=self.mask, min=minimum)

    def _repr_fields(self) -> dict[str, object]:
        return {"nvec": self.nvec.tolist(), **super()._repr_fields()}


class OneHotSpec(CategoricalSpec):
    """Choices as one-hot rows, concatenated along the last dimension."""

    _domain: OneHotRows

    def encode(self, val: object, *, ignore_device: bool = False) -> Tensor:
        """Converts indices to one-hot rows. Rows of the spec's shape are not changed.

        Args:
            val: indices from `min` on, after any batch dimensions. Those of one choice have the spec's shape without
                its last dimension; those of several choices are along the last dimension. With `use_register`, a
                single hashable object.
            ignore_device: leave the result on the device of `val`.

        Raises:
            SpaceError: an index is out of range, the shape does not fit, or there are more objects than options.
        """
        tensor = self._as_tensor(val, None, ignore_device)
        if self._is_row(tensor):
            return tensor.to(self.dtype)
        index_shape = (*self.shape[:-1], len(self._domain.choices)) if self._domain.has_dim else self.shape[:-1]
        return self._from_index(_reshape_indices(tensor, index_shape))

    def _is_row(self, tensor: Tensor) -> bool:
        """Whether a tensor is one-hot already, as opposed to indices."""
        if tensor.dtype == torch.bool:
            return shape_matches(tensor.shape, self.shape)
        return has_shape(tensor.shape, self.shape) and self.is_in(tensor.to(self.dtype))

    def _from_index(self, index: Tensor) -> Tensor:
        index = to_integers(index)
        return self._domain.encode(index.unbind(-1) if self._domain.has_dim else (index,), self.dtype)

    def _to_index(self, val: Tensor) -> Tensor:
        columns = self._domain.decode(val)
        return torch.stack(columns, -1) if self._domain.has_dim else columns[0]

    def enumerate(self, use_mask: bool = False) -> Tensor:
        return self._from_index(self.to_categorical_spec().enumerate(use_mask))


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

    _fields = ("use_register",)

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
        n, self.min = parse_int("n", n, 1, error=SpaceError), parse_int("min", min, error=SpaceError)
        rows = OneHotRows(((n, self.min),))
        super().__init__((n,) if shape is None else shape, device, torch.bool if dtype is None else dtype, rows)
        if not self.shape or self.shape[-1] != n:
            raise SpaceError(f"Expected a shape that ends with n={n}, got {tuple(self.shape)}.")
        self.use_register = use_register
        self._register: list[Hashable] = []  # copies of the spec share it, and encode the same objects equally
        self.update_mask(mask)

    @property
    def n(self) -> int:
        """The number of options."""
        return self._domain.choices[0][0]

    @property
    def space(self) -> CategoricalBox:
        return CategoricalBox(self.n)

    def encode(self, val: object, *, ignore_device: bool = False) -> Tensor:
        if self.use_register:
            val = self._lookup(val)
        if self.ndim == 1 and isinstance(val, int | np.integer):  # a shortcut for the usual case
            n, first = self.n, self.min
            row = torch.zeros(n, dtype=self.dtype, device=None if ignore_device else self.device)
            if not 0 <= val - first < n:
                raise SpaceError(f"Expected an index in [{first}, {first + n}), got {val}.")
            row[int(val) - first] = 1
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
        n = self.n
        if val.ndim == 1 and n <= _MAX_SCAN_OPTIONS and not val.is_floating_point():
            row: list[int] = val.tolist()
            num_ones = row.count(1)
            if not num_ones or len(row) != n or row.count(0) + num_ones != n:
                raise self._not_one_hot(val)
            index = np.asarray(row.index(1) + self.min)
        else:
            rows = val.detach().cpu().numpy()
            first = first_ones(rows) if rows.shape[-1:] == (n,) else None
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
        return _gather_option(tensor_to_index, index.to(torch.uint8).argmax(-1))

    def to_categorical_spec(self) -> Categorical:
        """Returns the spec of the same choice as indices."""
        return Categorical(self.n, self.shape[:-1], self.device, mask=self.mask, min=self.min)

    def _repr_fields(self) -> dict[str, object]:
        return {"n": self.n, **super()._repr_fields(), **self._mask_field()}


class MultiOneHot(OneHotSpec):
    """Several choices as one-hot rows, concatenated along the last dimension.

    Args:
        nvec: the numbers of options.
        shape: of a value, ends with sum(nvec); (sum(nvec),) by default.
        device: None for torch's default device.
        dtype: of the rows; bool by default.
        use_register: must be False. Use a Composite of `OneHot(..., use_register=True)` instead of True.
        mask: which options are allowed, of a shape that expands to `shape`; None for all.
        min: the index of the first option of each choice, for `encode` and `to_numpy`.

    >>> spec = MultiOneHot((3, 2))
    >>> spec.encode([2, 1]).int(), spec.to_numpy(spec.encode([2, 1]))
    (tensor([0, 0, 1, 0, 1], dtype=torch.int32), array([2, 1]))
    """

    def __init__(
        self,
        nvec: Sequence[int] | Tensor,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: object = None,
        min: object = 0,  # noqa: A002
    ):
        if use_register:
            raise SpaceError("MultiOneHot has no register. Use a Composite of OneHot(..., use_register=True).")
        self.nvec = tuple(_parse_nvec(nvec).reshape(-1).tolist())
        first_indices = torch.as_tensor(min).to(torch.int64).expand(len(self.nvec)).tolist()
        rows = OneHotRows(tuple(zip(self.nvec, first_indices, strict=True)), has_dim=True)
        total = sum(self.nvec)
        super().__init__((total,) if shape is None else shape, device, torch.bool if dtype is None else dtype, rows)
        if not self.nvec or any(n < 1 for n in self.nvec) or not self.shape or self.shape[-1] != total:
            raise SpaceError(
                f"Expected numbers of options >= 1 and a shape that ends with their sum, {total}, got nvec={nvec} "
                f"and shape={tuple(self.shape)}."
            )
        self.update_mask(mask)

    @property
    def space(self) -> BoxList:
        return BoxList(tuple(CategoricalBox(n) for n in self.nvec))

    def to_numpy(self, val: Tensor, safe: bool | None = None) -> np.ndarray:
        """Converts one-hot rows to indices from `min` on. The first one counts in the row of each choice.

        Raises:
            SpaceError: the row of a choice has no 1, or an entry other than 0 and 1.
        """
        if safe:
            self.assert_is_in(val)
        columns: list[np.ndarray] = []
        for part, (_, least) in zip(self._domain.split(val.detach().cpu()), self._domain.choices, strict=True):
            first = first_ones(part.numpy())
            if first is None:
                raise SpaceError(
                    f"Expected a one-hot row for each of {self.nvec} options, got {val!r:.80}. "
                    "Use spec.encode to convert indices."
                )
            columns.append(first + least)
        return np.stack(columns, -1)

    def to_categorical_spec(self) -> MultiCategorical:
        """Returns the spec of the same choices as indices."""
        shape = (*self.shape[:-1], len(self.nvec))
        return MultiCategorical(
            self.nvec, shape, self.device, mask=self.mask, min=[first for _, first in self._domain.choices]
        )

    def _repr_fields(self) -> dict[str, object]:
        return {"nvec": list(self.nvec), **super()._repr_fields()}


def _parse_nvec(nvec: object) -> Tensor:
    """Converts numbers of options to int64."""
    try:
        counts = torch.as_tensor([nvec] if isinstance(nvec, int) else nvec)
        integers = counts.to(torch.int64)
        if not counts.is_meta and bool((counts != integers).any()):
            raise ValueError("fractions")
        return integers
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpaceError(f"Expected a number of options for each choice, got {nvec!r:.80}.") from error


def rounded_ones(rows: Tensor) -> Tensor | None:
    """Returns which entries of one-hot rows are 1; None if a row has no 1, or an entry other than 0 and 1.

    Args:
        rows: `[..., options]`. Floats may differ from 0 and 1 by less than `ROUNDING`.

    Returns:
        bools of the shape of `rows`. A row may have several ones, of which the first counts.
    """
    ones, zeros = _ones_and_zeros(rows, rows.is_floating_point())
    return ones if bool((ones | zeros).all()) and bool(ones.any(-1).all()) else None


def first_ones(rows: np.ndarray) -> np.ndarray | None:
    """Returns the index of the first 1 of each row `[..., options]`; None where `rounded_ones` returns None."""
    ones, zeros = _ones_and_zeros(rows, rows.dtype.kind == "f")
    first, count = ones.argmax(-1), np.count_nonzero  # which is faster than `all`
    is_one_hot = count(ones) + count(zeros) == rows.size and count(ones.any(-1)) == first.size
    return first if is_one_hot else None


def _ones_and_zeros(rows: Any, is_float: bool) -> tuple[Any, Any]:
    if is_float:
        return abs(rows - 1) < ROUNDING, abs(rows) < ROUNDING
    return rows == 1, rows == 0


def _expand_mask(mask: object, shape: torch.Size, device: torch.device | None) -> Tensor | None:
    """Converts `mask` to booleans and expands it to `shape`."""
    if mask is None:
        return None
    try:
        flags = torch.as_tensor(mask, device=device).to(torch.bool)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpaceError(f"Expected a mask of flags, one per option, got {mask!r:.80}.") from error
    try:
        return flags.expand(shape)
    except RuntimeError as error:
        raise SpaceError(
            f"Expected a mask that expands to {tuple(shape)}, one flag per option, got shape {tuple(flags.shape)}."
        ) from error


def _gather_option(tensor: Any, index: Tensor) -> Any:
    """Selects with `index` along the last dimension of a tensor, or of all tensors of a TensorDict."""
    if isinstance(tensor, Tensor):
        return tensor.gather(-1, index.unsqueeze(-1))

    def choose(leaf: object) -> Tensor:
        return _gather_option(leaf, index)

    return tensor.apply(choose)


def _reshape_indices(index: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns `index` unchanged if its shape ends with `shape` (-1: any size), else reshaped to it.

    Raises:
        SpaceError: the number of indices does not fit.
    """
    if shape_matches(index.shape, shape):
        return index
    if -1 in shape or index.numel() != math.prod(shape):
        raise SpaceError(f"Expected indices of shape {tuple(shape)}, got {tuple(index.shape)}.")
    return index.reshape(tuple(shape))
