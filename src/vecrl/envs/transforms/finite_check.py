"""`FiniteTensorDictCheck`: raises an error for numbers that are not finite. It must not change values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from .base import StatelessTransform
from .ragged_entries import part_leaves

__all__ = ["FiniteTensorDictCheck"]


class FiniteTensorDictCheck(StatelessTransform):
    """Raises an error if a number in the output of a step or reset, or in stored data, is NaN or infinite.

    Raises:
        ValueError: some numbers are not finite; the message names their entries.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> FiniteTensorDictCheck()(TensorDict({"x": torch.tensor([0.0, torch.nan])}))
    Traceback (most recent call last):
    ...
    ValueError: Expected finite numbers, got NaN or infinite ones in 'x' (1 of 2).
    """

    elementwise = True

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        non_finite = [f"{key!r} ({count} of {size})" for key, count, size in _not_finite(next_tensordict)]
        if non_finite:
            raise ValueError(f"Expected finite numbers, got NaN or infinite ones in {', '.join(non_finite)}.")
        return next_tensordict


def _not_finite(td: TensorDictBase) -> Iterator[tuple[Any, int, int]]:
    """Yields each entry with numbers that are not finite: its key, the count of these numbers, and its size."""
    for _, key, value in part_leaves(td):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            finite = value.isfinite()
            if not bool(finite.all()):
                yield key, int((~finite).sum()), value.numel()
