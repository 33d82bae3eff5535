"""Adapts simulators that reset themselves, so that the last step of an episode returns the next first observation.

The first observation is kept for the root of the next step. The step gets another final observation: the true one if
the simulator returns it, otherwise a fill value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .entries.keys import Key, join_key
from .entries.row_masks import Prefix, RowMasks, broadcast_mask

Flags = Mapping[Prefix, Tensor]


class SelfResetBuffer:
    """Keeps the first observations of episodes that a simulator started within a step.

    Args:
        replace: replace the lost final observations by fill values.
        fill_values: for floats, for integers (0 if the dtype cannot hold the value) and for bools.
    """

    def __init__(self, replace: bool, fill_values: tuple[float, int, bool] = (math.nan, -1, False)):
        self._replace = replace
        self._fill_values = fill_values
        self._pending: Flags = {}
        self._first_obs: Any = None

    def on_step(
        self,
        next_td: TensorDictBase,
        done_masks: Flags,
        keys: Sequence[Key],
        step_mask: Tensor | None = None,
        final: TensorDictBase | None = None,
    ) -> None:
        """Stores the first observations of rows that are done, and replaces them in the result of the step.

        Args:
            next_td: the result of the step; changed in place.
            done_masks: the done flags by prefix; empty if no row is done.
            keys: the keys of the observations.
            step_mask: the rows that were stepped; None for all. Stored observations of other rows are kept.
            final: the true final observations of the rows that are done, as far as they are known.
        """
        pending_before, first_obs_before, first_obs = self._pending, self._first_obs, next_td.select(*keys)
        self._pending, still_pending = done_masks, {}
        if step_mask is not None:
            self._pending = {prefix: done & broadcast_mask(step_mask, done) for prefix, done in done_masks.items()}
            still_pending = {prefix: mask & ~broadcast_mask(step_mask, mask) for prefix, mask in pending_before.items()}
        if _any_true(self._pending):
            replacement = self._final_obs(first_obs, final)
            next_td.update(RowMasks(self._pending, list(done_masks)).select(replacement, first_obs))
        if _any_true(still_pending):
            first_obs = RowMasks(still_pending, list(still_pending)).select(first_obs_before.copy(), first_obs)
            self._pending = {prefix: mask | self._pending.get(prefix, mask) for prefix, mask in still_pending.items()}
        self._first_obs = first_obs

    def _final_obs(self, first_obs: TensorDictBase, final: TensorDictBase | None) -> TensorDictBase:
        """Returns the entries to use as final observations in place of `first_obs`."""
        final_obs = first_obs.copy()
        for key in list(first_obs.keys(include_nested=True, leaves_only=True)):
            value = None if final is None else final.get(key, None)
            if value is None and self._replace:
                value = torch.full_like(first_obs.get(key), self._fill_value(first_obs.get(key).dtype))
            if value is not None:
                final_obs.set(key, value)
        return final_obs

    def _fill_value(self, dtype: torch.dtype) -> float | int | bool:
        if dtype.is_floating_point or dtype.is_complex:
            return self._fill_values[0]
        if dtype == torch.bool:
            return self._fill_values[2]
        limits = torch.iinfo(dtype)
        return self._fill_values[1] if limits.min <= self._fill_values[1] <= limits.max else 0

    @property
    def has_pending(self) -> bool:
        """Whether there are first observations that no reset has returned yet."""
        return _any_true(self._pending)

    def on_reset(
        self,
        tensordict: TensorDictBase | None,
        prefixes: Sequence[Prefix],
        flags: Sequence[Key],
        reset_fn: Callable[[Any], TensorDictBase],
    ) -> TensorDictBase:
        """Resets the rows that `tensordict` selects.

        Args:
            tensordict: has "_reset" masks; without them, all rows are reset. None resets all rows of the simulator,
                also those that have reset themselves.
            prefixes: the prefixes of done flags.
            flags: the keys of all done flags.
            reset_fn: resets the simulator's rows of the masks in its argument.

        Returns:
            The result of a reset: for rows that reset themselves, their stored first observations with done flags that
            are False; for other selected rows, the result of `reset_fn`. Rows that are not selected are undefined.
        """
        pending, self._pending = self._pending, {}
        if tensordict is None or not _any_true(pending):
            return reset_fn(tensordict)
        masks = RowMasks.from_tensordict(tensordict, "_reset", prefixes).masks
        masks = masks or {prefix: torch.ones_like(mask) for prefix, mask in pending.items()}
        self_reset = {prefix: mask & _mask_for(pending, prefix, mask) for prefix, mask in masks.items()}
        self._pending = {prefix: mask & ~_mask_for(masks, prefix, mask) for prefix, mask in pending.items()}
        first_obs: Any = tensordict.select(*flags, strict=False).apply(torch.zeros_like)
        first_obs.update(self._first_obs)
        remaining = {prefix: mask & ~self_reset[prefix] for prefix, mask in masks.items()}
        if not _any_true(remaining):
            return first_obs
        remaining_td = tensordict.copy()
        for prefix, mask in remaining.items():
            remaining_td.set(join_key(prefix, "_reset"), mask)
        remaining_obs = reset_fn(remaining_td)
        return remaining_obs.update(RowMasks(self_reset, prefixes).select(first_obs, remaining_obs))


def _any_true(masks: Flags) -> bool:
    return any(bool(mask.any()) for mask in masks.values())


def _mask_for(masks: Flags, prefix: Prefix, reference: Tensor) -> Tensor:
    """Returns the rows that `masks` select at a prefix, in a shape that broadcasts with `reference`."""
    mask = RowMasks(masks, list(masks)).for_key(join_key(prefix, "done"))
    return torch.zeros_like(reference) if mask is None else broadcast_mask(mask, reference)
