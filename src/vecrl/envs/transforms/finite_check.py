"""Transforms that change nothing, and look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from .stateless import StatelessTransform


class FiniteTensorDictCheck(StatelessTransform):
    """Raises an error where a number is NaN or infinite, in what resets and steps give or in stored data.

    Raises:
        ValueError: which entries are not finite.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> FiniteTensorDictCheck()(TensorDict({"x": torch.tensor([0.0, torch.nan])}))
    Traceback (most recent call last):
    ...
    ValueError: Expected finite numbers alone, but some are NaN or infinite in 'x' (1 of 2).
    """

    elementwise = True

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        non_finite = [f"{key!r} ({count} of {size})" for key, count, size in _not_finite(next_tensordict)]
        if non_finite:
            raise ValueError(f"Expected finite numbers alone, but some are NaN or infinite in {', '.join(non_finite)}.")
        return next_tensordict


def _not_finite(td: TensorDictBase) -> Iterator[tuple[Any, int, int]]:
    """The entries with numbers that are not finite, how many of these there are, and how many in all."""
    if isinstance(td, LazyStackedTensorDict):  # whose entries may have no common shape
        for row in td.tensordicts:
            yield from _not_finite(row)
        return
    for key, value in td.items(include_nested=True, leaves_only=True):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            finite = value.isfinite()
            if not bool(finite.all()):
                yield key, int((~finite).sum()), value.numel()
