"""Simulators that begin anew by themselves: what they observe as an episode ends is the next one's first observation.

It is kept for the root of the next step, and something else is put in the place of the final observation: the true one
where the simulator tells it, or a filler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .row_masks import Prefix, RowMasks, broadcast_mask
from .spec_container import Key, join_key

Flags = Mapping[Prefix, Tensor]


class SelfResetBuffer:
    """The first observations of episodes that a simulator began within a step.

    Args:
        replace: put fillers in the place of the lost observations.
        fill_values: of floats, of integers (0 where the dtype does not have it) and of bools.
    """

    def __init__(self, replace: bool, fill_values: tuple[float, int, bool] = (math.nan, 0, False)):
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
        """Keep what a step observed at `keys` in the rows that ended.

        Args:
            next_td: what the step gave; changed in place.
            done_masks: the done flags, by place; none where nobody is done.
            keys: of the observations.
            step_mask: who was stepped; None for all. What is kept of others stays.
            final: the true final observations of the rows that ended, as far as they are known.
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
        """What is to stand for final observations, in place of `first_obs`."""
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
        """Whether episodes that ended have not begun for the caller yet."""
        return _any_true(self._pending)

    def on_reset(
        self,
        tensordict: TensorDictBase,
        prefixes: Sequence[Prefix],
        flags: Sequence[Key],
        reset_fn: Callable[[TensorDictBase], TensorDictBase],
    ) -> TensorDictBase:
        """Begin the episodes that `tensordict` asks for.

        Args:
            tensordict: with masks "_reset"; without them, all rows are meant.
            prefixes: where done flags are.
            flags: all done flags.
            reset_fn: really resets the rows of the masks in what it is given.

        Returns:
            What a reset gives: of rows that began anew by themselves their first observations and flags that are not
            set, of others what `reset_fn` gives; of those that are not meant anything.
        """
        pending, self._pending = self._pending, {}
        if not _any_true(pending):
            return reset_fn(tensordict)
        masks = RowMasks.from_tensordict(tensordict, "_reset", prefixes).masks
        masks = masks or {prefix: torch.ones_like(mask) for prefix, mask in pending.items()}
        served = {prefix: mask & _mask_for(pending, prefix, mask) for prefix, mask in masks.items()}
        self._pending = {prefix: mask & ~_mask_for(masks, prefix, mask) for prefix, mask in pending.items()}
        first_obs: Any = tensordict.select(*flags, strict=False).apply(torch.zeros_like)
        first_obs.update(self._first_obs)
        remaining = {prefix: mask & ~served[prefix] for prefix, mask in masks.items()}
        if not _any_true(remaining):
            return first_obs
        remaining_td = tensordict.copy()
        for prefix, mask in remaining.items():
            remaining_td.set(join_key(prefix, "_reset"), mask)
        remaining_obs = reset_fn(remaining_td)
        return remaining_obs.update(RowMasks(served, prefixes).select(first_obs, remaining_obs))


def _any_true(masks: Flags) -> bool:
    return any(bool(mask.any()) for mask in masks.values())


def _mask_for(masks: Flags, prefix: Prefix, reference: Tensor) -> Tensor:
    """Whom `masks` mean at a place, in a shape that broadcasts with `reference`."""
    mask = RowMasks(masks, list(masks)).for_key(join_key(prefix, "done"))
    return torch.zeros_like(reference) if mask is None else broadcast_mask(mask, reference)
