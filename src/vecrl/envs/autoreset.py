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

from .owner import Key, joined
from .partial import Masks, Prefix, aligned

Flags = Mapping[Prefix, Tensor]


class BegunThere:
    """The first observations of episodes that a simulator began within a step.

    Args:
        replace: put fillers in the place of the lost observations.
        fills: of floats, of integers (0 where the dtype does not have it) and of bools.
    """

    def __init__(self, replace: bool, fills: tuple[float, int, bool] = (math.nan, 0, False)):
        self._replace = replace
        self._fills = fills
        self._waiting: Flags = {}
        self._first: Any = None

    def take(
        self,
        following: TensorDictBase,
        ended: Flags,
        keys: Sequence[Key],
        stepped: Tensor | None = None,
        final: TensorDictBase | None = None,
    ) -> None:
        """Keep what a step observed at `keys` in the rows that ended.

        Args:
            following: what the step gave; changed in place.
            ended: the done flags, by place; none where nobody is done.
            keys: of the observations.
            stepped: who was stepped; None for all. What is kept of others stays.
            final: the true final observations of the rows that ended, as far as they are known.
        """
        before, old, first = self._waiting, self._first, following.select(*keys)
        self._waiting, left = ended, {}
        if stepped is not None:
            self._waiting = {place: done & aligned(stepped, done) for place, done in ended.items()}
            left = {place: mask & ~aligned(stepped, mask) for place, mask in before.items()}
        if _any(self._waiting):
            lost = self._instead(first, final)
            following.update(Masks(self._waiting, list(ended)).merge(lost, first))
        if _any(left):
            first = Masks(left, list(left)).merge(old.copy(), first)
            self._waiting = {place: mask | self._waiting.get(place, mask) for place, mask in left.items()}
        self._first = first

    def _instead(self, first: TensorDictBase, final: TensorDictBase | None) -> TensorDictBase:
        """What is to stand for final observations, in place of `first`."""
        instead = first.copy()
        for key in list(first.keys(include_nested=True, leaves_only=True)):
            value = None if final is None else final.get(key, None)
            if value is None and self._replace:
                value = torch.full_like(first.get(key), self._filler(first.get(key).dtype))
            if value is not None:
                instead.set(key, value)
        return instead

    def _filler(self, dtype: torch.dtype) -> float | int | bool:
        if dtype.is_floating_point or dtype.is_complex:
            return self._fills[0]
        if dtype == torch.bool:
            return self._fills[2]
        limits = torch.iinfo(dtype)
        return self._fills[1] if limits.min <= self._fills[1] <= limits.max else 0

    @property
    def waiting(self) -> bool:
        """Whether episodes that ended have not begun for the caller yet."""
        return _any(self._waiting)

    def begin(
        self,
        asked: TensorDictBase,
        prefixes: Sequence[Prefix],
        flags: Sequence[Key],
        reset: Callable[[TensorDictBase], TensorDictBase],
    ) -> TensorDictBase:
        """Begin the episodes that `asked` asks for.

        Args:
            asked: with masks "_reset"; without them, all rows are meant.
            prefixes: where done flags are.
            flags: all done flags.
            reset: really resets the rows of the masks in what it is given.

        Returns:
            What a reset gives: of rows that began anew by themselves their first observations and flags that are not
            set, of others what `reset` gives; of those that are not meant anything.
        """
        waiting, self._waiting = self._waiting, {}
        if not _any(waiting):
            return reset(asked)
        masks = Masks.read(asked, "_reset", prefixes).found
        masks = masks or {place: torch.ones_like(mask) for place, mask in waiting.items()}
        begun = {place: mask & _of(waiting, place, mask) for place, mask in masks.items()}
        self._waiting = {place: mask & ~_of(masks, place, mask) for place, mask in waiting.items()}
        first: Any = asked.select(*flags, strict=False).apply(torch.zeros_like)
        first.update(self._first)
        others = {place: mask & ~begun[place] for place, mask in masks.items()}
        if not _any(others):
            return first
        given = asked.copy()
        for place, mask in others.items():
            given.set(joined(place, "_reset"), mask)
        others_first = reset(given)
        return others_first.update(Masks(begun, prefixes).merge(first, others_first))


def _any(masks: Flags) -> bool:
    return any(bool(mask.any()) for mask in masks.values())


def _of(masks: Flags, place: Prefix, like: Tensor) -> Tensor:
    """Whom `masks` mean at a place, in a shape that broadcasts with `like`."""
    mask = Masks(masks, list(masks)).of(joined(place, "done"))
    return torch.zeros_like(like) if mask is None else aligned(mask, like)
