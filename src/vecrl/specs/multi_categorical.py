"""Specs of several choices: `MultiCategorical` as indices, `MultiOneHot` as concatenated one-hot rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import categorical_ops
from .base import Device, as_device, as_dtype
from .categorical_base import IndexSpec, OneHotSpec
from .categorical_ops import Counts
from .shape_ops import ShapeLike, ShapeOp, as_size, concrete
from .space_records import BoxList, CategoricalBox


def _parse_nvec(nvec: Any) -> Tensor:
    """Converts numbers of options to int64."""
    try:
        return torch.as_tensor([nvec] if isinstance(nvec, int) else nvec).to(torch.int64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpaceError(f"Expected a number of options for each choice, got {nvec!r:.80}.") from error


class MultiCategorical(IndexSpec):
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

    _kind = "MultiCategorical"
    _fields = ("_nvec", "shape", "device", "dtype", "_mask", "remove_singleton", "_min")

    def __init__(
        self,
        nvec: Sequence[int] | Tensor | int,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str | None = torch.int64,
        mask: Any = None,
        remove_singleton: bool = True,
        min: Any = 0,  # noqa: A002
    ):
        self.device = as_device(device)
        self.dtype = torch.int64 if dtype is None else as_dtype(dtype)
        self.remove_singleton = remove_singleton
        counts = _parse_nvec(nvec).to(self.device)
        self.shape = counts.shape if shape is None else as_size(shape)
        try:
            self._nvec = counts.expand(concrete(self.shape))
            self._min = torch.as_tensor(min, device=self.device).to(torch.int64).expand(concrete(self.shape))
        except RuntimeError as error:
            raise SpaceError(
                f"Expected a shape that ends with that of nvec (and of min), {tuple(counts.shape)}, got "
                f"{tuple(self.shape)}."
            ) from error
        if counts.numel() and not counts.is_meta and bool((counts < 1).any()):
            raise SpaceError(f"Expected at least one option for each element, got nvec={nvec}.")
        self.update_mask(mask)

    @property
    def nvec(self) -> Tensor:
        """The numbers of options along the last dimension; of the spec's shape if they differ along other ones."""
        if self._nvec.ndim < 2 or not self._nvec.numel():
            return self._nvec
        flat = self._nvec.reshape(-1, self._nvec.shape[-1])
        return flat[0] if bool((flat == flat[:1]).all()) else self._nvec

    @property
    def space(self) -> BoxList:
        return BoxList(tuple(CategoricalBox(n) for n in self.nvec.reshape(-1).tolist()))

    @property
    def mask(self) -> Tensor | None:
        """The mask of allowed options, concatenated over the indices, or None for all."""
        if self._mask is None:
            return None
        padded_mask = self._mask if self.shape else self._mask.unsqueeze(0)
        return torch.cat([padded_mask[..., i, :n] for i, n in enumerate(self._option_counts("A mask"))], -1)

    def update_mask(self, mask: Any) -> None:
        """Sets the mask of allowed options in place, in the form that the constructor takes; None for all."""
        if mask is None:
            self._mask = None
            return
        option_counts = self._option_counts("A mask")
        lead = concrete(self.shape[:-1])
        flat = categorical_ops.as_mask(mask, torch.Size([*lead, sum(option_counts)]), self.device)
        assert flat is not None
        padded = torch.zeros((*lead, len(option_counts), max(option_counts)), dtype=torch.bool, device=self.device)
        for i, part in enumerate(flat.split(option_counts, -1)):
            padded[..., i, : option_counts[i]] = part
        self._mask = padded if self.shape else padded.squeeze(0)

    def _option_counts(self, purpose: str) -> list[int]:
        nvec = self.nvec if self.shape else self.nvec.reshape(1)
        if nvec.ndim != 1:
            raise SpaceError(f"{purpose} needs numbers of options along one dimension, got shape {tuple(nvec.shape)}.")
        return nvec.tolist()

    def _with(self, **changes: Any) -> Self:
        padded_mask = changes.pop("mask", self._mask)
        spec = super()._with(mask=None, **changes)
        spec._mask = None if padded_mask is None else padded_mask.to(spec.device)
        return spec

    def _reshaped(self, op: ShapeOp) -> Self:
        padded_mask = None if self._mask is None else op.apply_checked(self._mask, 1)
        return self._with(
            nvec=op.apply_checked(self._nvec), min=op.apply_checked(self._min), shape=op.out_shape, mask=padded_mask
        )

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        assert self.device is not None
        index = categorical_ops.sample_index(self._nvec, self._mask, sizes, generator, self.device)
        return (index + self._min).to(self.dtype)

    def _choices(self, device: torch.device) -> tuple[Tensor, Counts, Tensor | None]:
        return self._min.to(device), self._nvec, self._mask

    def cardinality(self) -> int | float:
        return math.prod(self.nvec.reshape(-1).tolist())

    def enumerate(self, use_mask: bool = False) -> Tensor:
        option_counts = self._option_counts("Enumeration")
        rows = _cartesian_product([torch.arange(n, device=self.device) for n in option_counts])
        if use_mask and self._mask is not None:
            padded_mask = self._mask if self.shape else self._mask.unsqueeze(0)
            padded_mask = categorical_ops.single_mask(padded_mask.flatten(-2), "Options").unflatten(
                0, (len(option_counts), -1)
            )
            rows = rows[padded_mask[torch.arange(len(option_counts), device=self.device), rows].all(-1)]
        shape = concrete(self.shape)
        rows = rows.reshape(-1, *[1] * (len(shape) - 1), len(option_counts)) if shape else rows.reshape(-1)
        return (rows.expand(-1, *shape) + self._min).to(self.dtype)

    def _to_rows(self, val: Tensor) -> Tensor:
        index = categorical_ops.to_integers(val) - self._min.to(val.device)
        index = index if self.shape else index.unsqueeze(-1)
        rows = [
            categorical_ops.one_hot(index[..., i], n, torch.bool)
            for i, n in enumerate(self._option_counts("One-hot encoding"))
        ]
        return torch.cat(rows, -1)

    def to_one_hot_spec(self) -> MultiOneHot:
        """Returns the spec of the same choices as one-hot rows."""
        option_counts = self._option_counts("One-hot encoding")
        minimum = self._min.reshape(-1, len(option_counts))[0] if self._min.numel() else 0
        shape = (*self.shape[:-1], sum(option_counts))
        return MultiOneHot(option_counts, shape, self.device, torch.bool, mask=self.mask, min=minimum)

    def _repr_fields(self) -> dict[str, Any]:
        return {"nvec": self.nvec.tolist(), **super()._repr_fields()}


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

    _kind = "MultiOneHot"
    _fields = ("nvec", "shape", "device", "dtype", "_mask", "_min")

    def __init__(
        self,
        nvec: Sequence[int] | Tensor,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str | None = torch.bool,
        use_register: bool = False,
        mask: Any = None,
        min: Any = 0,  # noqa: A002
    ):
        if use_register:
            raise SpaceError("MultiOneHot has no register. Use a Composite of OneHot(..., use_register=True).")
        self.nvec = tuple(_parse_nvec(nvec).reshape(-1).tolist())
        total = sum(self.nvec)
        self.shape = as_size((total,) if shape is None else shape)
        self.device = as_device(device)
        self.dtype = torch.bool if dtype is None else as_dtype(dtype)
        if not self.nvec or any(n < 1 for n in self.nvec) or not self.shape or self.shape[-1] != total:
            raise SpaceError(
                f"Expected numbers of options >= 1 and a shape that ends with their sum, {total}, got nvec={nvec} "
                f"and shape={tuple(self.shape)}."
            )
        self._min = torch.as_tensor(min, device=self.device).to(torch.int64).expand(len(self.nvec))
        self.update_mask(mask)

    @property
    def space(self) -> BoxList:
        return BoxList(tuple(CategoricalBox(n) for n in self.nvec))

    def _masks(self) -> Sequence[Tensor | None]:
        return [None] * len(self.nvec) if self._mask is None else self._mask.split(self.nvec, -1)

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        assert self.device is not None
        assert self.dtype is not None
        rows = [
            categorical_ops.index_to_one_hot(
                categorical_ops.sample_index(n, mask, sizes[:-1], generator, self.device), n, self.dtype
            )
            for n, mask in zip(self.nvec, self._masks(), strict=True)
        ]
        return torch.cat(rows, -1)

    def _violation(self, val: Tensor) -> str | None:
        for i, (part, mask) in enumerate(zip(val.split(self.nvec, -1), self._masks(), strict=True)):
            fault = categorical_ops.one_hot_violation(part, mask)
            if fault is not None:
                return f"in choice {i}, {fault}"
        return None

    def _project(self, val: Tensor) -> Tensor:
        assert self.dtype is not None
        parts = zip(val.split(self.nvec, -1), self._masks(), strict=True)
        return torch.cat([categorical_ops.nearest_one_hot(part, mask, self.dtype) for part, mask in parts], -1)

    def cardinality(self) -> int | float:
        return math.prod(self.nvec)

    def enumerate(self, use_mask: bool = False) -> Tensor:
        rows = self.to_categorical_spec().enumerate(use_mask)
        return self.encode(rows)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Tensor:
        """Converts indices along the last dimension, after any batch dimensions, to one-hot rows.

        Rows of the spec's shape are not changed.

        Raises:
            SpaceError: an index is out of range, or the shape does not fit.
        """
        assert self.dtype is not None
        tensor = self._as_tensor(val, None, ignore_device)
        if self._is_row(tensor):
            return tensor.to(self.dtype)
        tensor = categorical_ops.reshape_indices(tensor, (*self.shape[:-1], len(self.nvec)))
        index = categorical_ops.to_integers(tensor) - self._min.to(tensor.device)
        return torch.cat([categorical_ops.one_hot(index[..., i], n, self.dtype) for i, n in enumerate(self.nvec)], -1)

    def to_numpy(self, val: Tensor, safe: bool | None = None) -> Any:
        """Converts one-hot rows to indices from `min` on."""
        return self.to_categorical(val, safe).detach().cpu().numpy()

    def _to_index(self, val: Tensor) -> Tensor:
        val = val.to(torch.uint8) if val.dtype == torch.bool else val
        return torch.stack([part.argmax(-1) for part in val.split(self.nvec, -1)], -1) + self._min.to(val.device)

    def to_categorical_spec(self) -> MultiCategorical:
        """Returns the spec of the same choices as indices."""
        shape = (*self.shape[:-1], len(self.nvec))
        return MultiCategorical(self.nvec, shape, self.device, mask=self._mask, min=self._min)

    def _repr_fields(self) -> dict[str, Any]:
        return {"nvec": list(self.nvec), **super()._repr_fields()}


def _cartesian_product(ranges: list[Tensor]) -> Tensor:
    """Returns all combinations; the last one varies fastest."""
    grids = torch.meshgrid(*ranges, indexing="ij")
    return torch.stack([grid.reshape(-1) for grid in grids], -1)
