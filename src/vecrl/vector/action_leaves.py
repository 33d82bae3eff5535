"""Converts tensors of actions to the elements of one leaf of an action space; see `TorchWrapper`.

This module must not know environments or array libraries other than torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ..engine.space_layout import AnySpace
from ..errors import SpaceError
from .arrays import convert_to_torch
from .trees import is_nested

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ActionLeaf:
    """Converts the actions of one leaf of an action space.

    Args:
        space: the leaf, for one environment.
        num_envs: the number of rows; None for a single environment.
        takes_scores: whether actions of a `Discrete` are the arg max of scores `[..., n]`.
        clips: whether to clip actions of a `Box` to its bounds.

    Attributes:
        changes_values: whether actions are clipped or the arg max of scores.
    """

    def __init__(self, space: AnySpace, num_envs: int | None, takes_scores: bool, clips: bool):
        self._space, self._num_envs = space, num_envs
        self._dtype = convert_to_torch(np.empty(0, space.dtype)).dtype
        self._is_float_box = isinstance(space, spaces.Box) and self._dtype.is_floating_point
        self._num_scores = int(space.n) if takes_scores and isinstance(space, spaces.Discrete) else None
        self._bounds = _bounds(space) if clips else None
        self._shape = (() if num_envs is None else (num_envs,)) + (space.shape or ())
        self.changes_values = self._num_scores is not None or self._bounds is not None

    def convert(self, x: torch.Tensor, keeps_precision: bool = False) -> torch.Tensor:
        """Converts the tensor `x` to the shape and dtype of the space.

        Args:
            x: the actions.
            keeps_precision: whether numbers for a `Box` of floats keep their dtype, as in gymnasium.

        Raises:
            SpaceError: this is not possible.
        """
        space, n = self._space, self._num_envs
        if x.dtype == self._dtype and x.shape == self._shape and not self.changes_values:
            return x
        if n is not None and (x.ndim == 0 or x.shape[0] != n):
            raise SpaceError(f"Expected one action per environment ({n} environments), got shape {list(x.shape)}.")
        if self._num_scores is not None:
            x = self._argmax(x, self._num_scores)
        elif x.is_floating_point() and not isinstance(space, spaces.Box):
            raise SpaceError(
                f"Expected integer actions for {space}, got {x.dtype}. Round them, or set "
                "discrete_to_continuous_act=True to pass scores for a Discrete."
            )
        if self._bounds is not None:
            x = self._clip(x, *self._bounds)
        if isinstance(space, spaces.Discrete):
            shape = [] if n is None else [n]
            if x.numel() != math.prod(shape):
                raise SpaceError(f"Expected actions of shape {shape} for {space}, got {list(x.shape)}.")
            x = x.reshape(shape)
        return x if keeps_precision and self._is_float_box else x.to(self._dtype)

    def _argmax(self, scores: torch.Tensor, num_scores: int) -> torch.Tensor:
        expected = (num_scores,) if self._num_envs is None else (self._num_envs, num_scores)
        if scores.shape != expected:
            raise SpaceError(f"Expected scores of shape {list(expected)}, got {list(scores.shape)}.")
        return scores.argmax(-1) + int(self._space.start)  # type: ignore[attr-defined]

    def _clip(self, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Clips in the wider dtype: before a narrowing cast, so that integers do not wrap around, and after a widening
        cast, so that no value exceeds a bound by rounding."""
        if low.device != x.device:
            self._bounds = low, high = low.to(x.device), high.to(x.device)
        common_dtype = torch.promote_types(x.dtype, low.dtype)
        return x.to(common_dtype).clamp(low.to(common_dtype), high.to(common_dtype))


def _bounds(space: AnySpace) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns the bounds of a `Box` as tensors, and None for other spaces."""
    if not isinstance(space, spaces.Box):
        return None
    return convert_to_torch(space.low.copy()), convert_to_torch(space.high.copy())


def score_space(space: AnySpace) -> AnySpace:
    """Returns `space` with a `Box` of scores in place of each `Discrete`.

    >>> score_space(spaces.Tuple([spaces.Discrete(3)]))
    Tuple(Box(-inf, inf, (3,), float32))
    """
    if isinstance(space, spaces.Discrete):
        return spaces.Box(-np.inf, np.inf, (int(space.n),))
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: score_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([score_space(part) for part in space.spaces])
    return space


def array_space(space: Any) -> AnySpace:
    """Returns `space` if its elements are (nested) arrays; converts spaces of the old `gym` package to gymnasium's.

    Raises:
        SpaceError: any other space; the message contains it.
    """
    if isinstance(space, ARRAY_SPACES):
        return space
    kind = type(space)
    if is_nested(space):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            array_space(part)
        return space
    if kind.__module__.partition(".")[0] == "gym" and kind.__name__ in _GYM_SPACES:
        return _GYM_SPACES[kind.__name__](space)
    raise SpaceError(
        "Expected a Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict or Tuple of these, "
        f"got {space!r}. Encode it as one of them."
    )


_GYM_SPACES = {
    "Box": lambda space: spaces.Box(space.low, space.high, dtype=space.dtype),
    "Discrete": lambda space: spaces.Discrete(space.n, start=getattr(space, "start", 0)),
    "MultiDiscrete": lambda space: spaces.MultiDiscrete(space.nvec),
    "Dict": lambda space: spaces.Dict({key: array_space(part) for key, part in space.spaces.items()}),
    "Tuple": lambda space: spaces.Tuple([array_space(part) for part in space.spaces]),
}
