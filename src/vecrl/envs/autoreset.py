"""Simulators that begin anew by themselves: what they observe as an episode ends is the next one's first observation.

It is kept for the root of the next step, and something else is put in the place of the final observation that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .owner import Key
from .partial import Masks


class BegunThere:
    """The first observations of episodes that a simulator began within a step.

    Args:
        replace: put NaN, or zeros where there is none, in the place of the lost observations.
    """

    def __init__(self, replace: bool):
        self._replace = replace
        self._first: dict[Key, Tensor] = {}
        self._masks: Masks | None = None

    def take(self, following: TensorDictBase, masks: Masks, keys: Sequence[Key]) -> None:
        """Keep what a step observed at `keys` in the rows of `masks`, which ended."""
        self._masks = masks if masks else None
        self._first = {}
        if not masks:
            return
        for key in keys:
            value = following.get(key)
            self._first[key] = value
            if self._replace:
                following.set(key, torch.full_like(value, torch.nan if value.is_floating_point() else 0))
        lost = following.select(*keys)
        following.update(masks.merge(lost, following.select().update(self._first)))

    @property
    def waiting(self) -> bool:
        """Whether episodes that ended have not begun for the caller yet."""
        return self._masks is not None

    def put(self, root: TensorDictBase, flags: Sequence[Key]) -> TensorDictBase:
        """Begin the episodes of the rows that ended: their first observations, and none of their `flags` set."""
        if self._masks is None:
            return root
        first: Any = root.select(*flags).apply(torch.zeros_like)
        for key, value in self._first.items():
            first.set(key, value)
        masks, self._masks = self._masks, None
        return root.update(masks.merge(first, root))
