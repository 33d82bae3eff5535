"""Specs of several choices: `MultiCategorical` as indices, `MultiOneHot` as concatenated one-hot rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from . import categorical_ops
from .base import Device, as_device, as_dtype
from .categorical_base import IndexSpec, OneHotSpec
from .categorical_ops import Counts
from .shape_ops import ShapeLike, as_size, concrete
from .space_records import BoxList, CategoricalBox


def _parse_nvec(nvec: object) -> Tensor:
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
    _fields = ("counts", "shape", "device", "dtype", "_mask", "remove_singleton", "min")
    _tensors = ("counts", "min", "_mask")

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
        self.device = as_device(device)
        self.dtype = torch.int64 if dtype is None else as_dtype(dtype)
        self.remove_singleton = remove_singleton
        counts = _parse_nvec(nvec).to(self.device)
        self.shape = counts.shape if shape is None else as_size(shape)
        try:
            self.counts = counts.expand(concrete(self.shape))
            self.min = torch.as_tensor(min, device=self.device).to(torch.int64).expand(concrete(self.shape))
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
        if self.counts.ndim < 2 or not self.counts.numel():
            return self.counts
        flat = self.counts.reshape(-1, self.counts.shape[-1])
        return flat[0] if bool((flat == flat[:1]).all()) else self.counts

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

    def update_mask(self, mask: object) -> None:
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

    def _bounds(self, device: torch.device) -> tuple[Tensor, Counts, Tensor | None]:
        return self.min.to(device), self.counts, self._mask

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        """Draws one index after another, as MultiOneHot does, if their numbers of options are the same everywhere."""
        nvec = self.nvec
        if nvec.ndim != 1 or not sizes:
            return super()._sample(sizes, generator)
        columns = [
            categorical_ops.sample_index(
                n, None if self._mask is None else self._mask[..., i, :n], sizes[:-1], generator, self.device
            )
            for i, n in enumerate(nvec.tolist())
        ]
        return (torch.stack(columns, -1) + self.min).to(self.dtype)

    def cardinality(self) -> int | float:
        return math.prod(self.nvec.reshape(-1).tolist())

    def _options(self, use_mask: bool) -> Tensor:
        option_counts = self._option_counts("Enumeration")
        options = categorical_ops.combinations(option_counts, self.device)
        if use_mask and self._mask is not None:
            padded = self._mask if self.shape else self._mask.unsqueeze(0)
            allowed = categorical_ops.single_mask(padded.flatten(-2)).reshape(padded.shape[-2:])
            options = options[allowed[torch.arange(len(option_counts), device=self.device), options].all(-1)]
        return options if self.shape else options.squeeze(-1)

    def _to_rows(self, val: Tensor) -> Tensor:
        index = categorical_ops.to_integers(val) - self.min.to(val.device)
        columns = index.unbind(-1) if self.shape else (index,)
        choices = [(n, 0) for n in self._option_counts("One-hot encoding")]
        return categorical_ops.one_hot_rows(columns, choices, torch.bool)

    def to_one_hot_spec(self) -> MultiOneHot:
        """Returns the spec of the same choices as one-hot rows."""
        option_counts = self._option_counts("One-hot encoding")
        minimum = self.min.reshape(-1, len(option_counts))[0] if self.min.numel() else 0
        shape = (*self.shape[:-1], sum(option_counts))
        return MultiOneHot(option_counts, shape, self.device, torch.bool, mask=self.mask, min=minimum)

    def _repr_fields(self) -> dict[str, object]:
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
    _fields = ("_choices", "shape", "device", "dtype", "_mask")
    _indices_have_dim = True

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
        total = sum(self.nvec)
        self.shape = as_size((total,) if shape is None else shape)
        self.device = as_device(device)
        self.dtype = torch.bool if dtype is None else as_dtype(dtype)
        if not self.nvec or any(n < 1 for n in self.nvec) or not self.shape or self.shape[-1] != total:
            raise SpaceError(
                f"Expected numbers of options >= 1 and a shape that ends with their sum, {total}, got nvec={nvec} "
                f"and shape={tuple(self.shape)}."
            )
        first_indices = torch.as_tensor(min).to(torch.int64).expand(len(self.nvec))
        self._choices = tuple(zip(self.nvec, first_indices.tolist(), strict=True))
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
        for part, (_, least) in zip(self._split(val.detach().cpu()), self._choices, strict=True):
            first = categorical_ops.first_ones(part.numpy())
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
            self.nvec, shape, self.device, mask=self._mask, min=[first for _, first in self._choices]
        )

    def _repr_fields(self) -> dict[str, object]:
        return {"nvec": list(self.nvec), **super()._repr_fields()}
