"""Transforms that change nothing, and look."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from .throughout import Throughout


class FiniteTensorDictCheck(Throughout):
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

    pointwise = True

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        bad: list[str] = []
        for key, value in next_tensordict.items(include_nested=True, leaves_only=True):
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                finite = value.isfinite()
                if not bool(finite.all()):
                    bad.append(f"{key!r} ({int((~finite).sum())} of {value.numel()})")
        if bad:
            raise ValueError(f"Expected finite numbers alone, but some are NaN or infinite in {', '.join(bad)}.")
        return next_tensordict
