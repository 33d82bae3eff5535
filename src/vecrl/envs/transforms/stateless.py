"""Transforms that treat resets like steps: base classes, and `FiniteTensorDictCheck`, which changes nothing.

They must keep nothing between steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from ..spec_container import Key
from .base import Transform

__all__ = ["FiniteTensorDictCheck", "ObservationTransform"]


class StatelessTransform(Transform):
    """The base of transforms that apply `_call` to the outputs of both steps and resets."""

    preserves_done = True

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call_allow_missing(tensordict_reset)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """Applies the inverse to the input of a reset, since stateless environments may start from it."""
        if tensordict is None or not self._has_inverse:
            return tensordict
        allow_missing, self._allow_missing = self._allow_missing, True
        try:
            return self._inv_call(tensordict.copy())
        finally:
            self._allow_missing = allow_missing

    @property
    def supports_rollout(self) -> bool:
        return self.elementwise and self._has_no_step_hooks

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        super()._apply_to_rollout(root, next_td, is_first)


class ObservationTransform(StatelessTransform):
    """The base of transforms of observations. The default `in_keys` are all observations of the environment.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: as in `Transform`.

    Raises:
        ValueError: on use with stored data, if there are neither `in_keys` nor an environment.
    """

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return [] if parent is None else list(parent.observation_keys)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_keys()
        return self._call(tensordict)

    def _check_keys(self) -> None:
        if self._in_keys is None and self.container is None:
            raise ValueError(
                f"Expected {type(self).__name__} outside an environment to have in_keys, got none. Give in_keys."
            )


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
    if isinstance(td, LazyStackedTensorDict):  # its entries may have different shapes by row
        for row in td.tensordicts:
            yield from _not_finite(row)
        return
    for key, value in td.items(include_nested=True, leaves_only=True):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            finite = value.isfinite()
            if not bool(finite.all()):
                yield key, int((~finite).sum()), value.numel()
