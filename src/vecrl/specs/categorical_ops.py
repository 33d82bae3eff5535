"""Draws, checks and projects indices under numbers of options and masks, for all categorical specs.

`counts` is the number of options of each element. `allowed` is a mask of its shape plus a last dimension for the
options; None allows all. Both broadcast to the last dimensions of the values. This module knows tensors, no specs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from .shape_ops import shape_matches

Counts = Tensor | int
ROUNDING = 1e-3  # of floats in one-hot rows, since straight-through gradients add and subtract probabilities
_MAX_COMPARE_OPTIONS = 8  # up to this number of options, comparing with each is faster than `scatter_`


def sample_index(
    counts: Counts, allowed: Tensor | None, sizes: torch.Size, generator: Generator | None, device: torch.device
) -> Tensor:
    """Draws int64 indices of shape `sizes`, uniformly among the allowed options."""
    if allowed is not None:
        if not bool(allowed.any(-1).all()):
            raise SpaceError("Cannot draw under a mask that allows no option. Allow at least one.")
        weights = allowed.expand(*sizes, allowed.shape[-1]).reshape(-1, allowed.shape[-1]).float()
        if not weights.shape[0]:
            return torch.zeros(sizes, dtype=torch.int64, device=device)
        return torch.multinomial(weights, 1, generator=generator).reshape(sizes)
    if isinstance(counts, int):
        return torch.randint(0, counts, sizes, device=device, generator=generator)
    fraction = torch.rand(sizes, dtype=torch.float64, device=device, generator=generator)
    return torch.minimum((fraction * counts).to(torch.int64), counts - 1)


def index_violation(index: Tensor, counts: Counts, allowed: Tensor | None) -> str | None:
    """Returns why `index` is not valid, or None if it is."""
    in_range = (index >= 0) & (index < (counts if isinstance(counts, int) else counts.to(index.device)))
    if not bool(in_range.all()):
        return f"{int((~in_range).sum())} of {index.numel()} elements are not in range"
    if allowed is not None and index.numel():
        is_allowed = allowed.to(index.device).expand(*index.shape, allowed.shape[-1]).gather(-1, index.unsqueeze(-1))
        if not bool(is_allowed.all()):
            return f"{int((~is_allowed).sum())} of {index.numel()} elements are options that the mask forbids"
    return None


def nearest_index(index: Tensor, counts: Counts, allowed: Tensor | None) -> Tensor:
    """Returns the allowed options nearest to `index`; the lower one of two."""
    highest = torch.as_tensor(counts, device=index.device) - 1
    index = torch.minimum(index.clamp(min=0), highest)
    if allowed is None or not index.numel():
        return index
    allowed = allowed.to(index.device)
    distance = (torch.arange(allowed.shape[-1], device=index.device) - index.unsqueeze(-1)).abs()
    return distance.masked_fill(~allowed, allowed.shape[-1]).argmin(-1)


def to_integers(val: Tensor) -> Tensor:
    """Rounds `val` to int64; NaN becomes 0."""
    if val.is_floating_point():
        val = val.double().nan_to_num(nan=0.0).round().clamp(-(2.0**62), 2.0**62)
    return val.to(torch.int64)


def one_hot(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Converts each index to a row of `n` entries, 1 at the index and 0 elsewhere."""
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < n):
        raise SpaceError(f"Expected indices in [0, {n}), got indices from {index.min()} to {index.max()}.")
    return index_to_one_hot(index, n, dtype)


def index_to_one_hot(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Converts as `one_hot`, without the check of the range."""
    if n <= _MAX_COMPARE_OPTIONS:
        rows = torch.empty((*index.shape, n), dtype=dtype, device=index.device)
        return torch.eq(index.unsqueeze(-1), torch.arange(n, device=index.device), out=rows)
    rows = torch.zeros((*index.shape, n), dtype=dtype, device=index.device)
    return rows.scatter_(-1, index.unsqueeze(-1), 1)


def one_hot_rows(columns: Sequence[Tensor], choices: Sequence[tuple[int, int]], dtype: torch.dtype) -> Tensor:
    """Converts the indices of each choice to one-hot rows, which are concatenated.

    Args:
        columns: int64 indices, one tensor per choice.
        choices: the number of options of each choice, and the index of its first one.
        dtype: of the rows.
    """
    return concatenate([one_hot(index - first, n, dtype) for index, (n, first) in zip(columns, choices, strict=True)])


def concatenate(rows: Sequence[Tensor]) -> Tensor:
    """Concatenates along the last dimension; a single tensor is not copied."""
    return rows[0] if len(rows) == 1 else torch.cat(tuple(rows), -1)


def combinations(counts: Sequence[int], device: torch.device) -> Tensor:
    """Returns all combinations of one index below each count; the last index varies fastest."""
    grids = torch.meshgrid(*(torch.arange(n, device=device) for n in counts), indexing="ij")
    return torch.stack([grid.reshape(-1) for grid in grids], -1)


def single_mask(mask: Tensor) -> Tensor:
    """Returns the mask that all elements of the batch share."""
    flat = mask.reshape(-1, mask.shape[-1])
    if not bool((flat == flat[:1]).all()):
        raise SpaceError("Options cannot be enumerated under a mask that differs along the batch.")
    return flat[0]


def one_hot_violation(val: Tensor, mask: Tensor | None) -> str | None:
    """Returns why `val` is not one-hot along its last dimension under `mask`, or None if it is.

    This is the exact rule of a spec: a single 1, no rounding. `rounded_ones` is the rule of actions that are converted.
    """
    is_set = val != 0
    if not bool((is_set.sum(-1) == 1).all()) or not bool((val == is_set).all()):
        return "expected a single 1 among zeros along the last dimension"
    if mask is not None and bool((is_set & ~mask.to(val.device)).any()):
        return "an option is selected that the mask forbids"
    return None


def rounded_ones(rows: Any) -> Any:
    """Returns which entries of one-hot rows are 1; None if a row has no 1, or an entry other than 0 and 1.

    Args:
        rows: an array or a tensor `[..., options]`. Floats may differ from 0 and 1 by less than `ROUNDING`.

    Returns:
        bools of the class and shape of `rows`. A row may have several ones, of which the first counts.
    """
    is_float = rows.is_floating_point() if isinstance(rows, Tensor) else rows.dtype.kind == "f"
    if is_float:
        ones, zeros = abs(rows - 1) < ROUNDING, abs(rows) < ROUNDING
    else:
        ones, zeros = rows == 1, rows == 0
    return ones if bool((ones | zeros).all()) and bool(ones.any(-1).all()) else None


def first_ones(rows: np.ndarray) -> np.ndarray | None:
    """Returns the index of the first 1 of each row `[..., options]`; None where `rounded_ones` returns None."""
    ones = rounded_ones(rows)
    return None if ones is None else ones.argmax(-1)


def nearest_one_hot(val: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns one-hot rows that select the greatest allowed entries; the first of equal ones."""
    score = val.double().nan_to_num(nan=-(2.0**1000), posinf=2.0**1000, neginf=-(2.0**1000))
    if mask is not None:
        score = score.masked_fill(~mask.to(val.device), float("-inf"))
    return one_hot(score.argmax(-1), val.shape[-1], dtype)


def as_mask(mask: object, shape: torch.Size, device: torch.device | None) -> Tensor | None:
    """Converts `mask` to booleans and expands it to `shape`."""
    if mask is None:
        return None
    mask = torch.as_tensor(mask, device=device).to(torch.bool)
    try:
        return mask.expand(shape)
    except RuntimeError as error:
        raise SpaceError(
            f"Expected a mask that expands to {tuple(shape)}, one flag per option, got shape {tuple(mask.shape)}."
        ) from error


def gather_option(tensor: Any, index: Tensor) -> Any:
    """Selects with `index` along the last dimension of a tensor, or of all tensors of a TensorDict."""
    if isinstance(tensor, Tensor):
        return tensor.gather(-1, index.unsqueeze(-1))

    def choose(leaf: object) -> Tensor:
        return gather_option(leaf, index)

    return tensor.apply(choose)


def reshape_indices(index: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns `index` unchanged if its shape ends with `shape` (-1: any size), else reshaped to it.

    Raises:
        SpaceError: the number of indices does not fit.
    """
    if shape_matches(index.shape, shape):
        return index
    if -1 in shape or index.numel() != math.prod(shape):
        raise SpaceError(f"Expected indices of shape {tuple(shape)}, got {tuple(index.shape)}.")
    return index.reshape(tuple(shape))
