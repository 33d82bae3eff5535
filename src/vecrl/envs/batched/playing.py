"""Rollouts of bare gymnasium environments whose actions are known beforehand, written into arrays as they happen.

What `envs.tape` is for one environment, for a batch of them: no TensorDict is made before the end. Knows transitions
and arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...engine.layout import Layout
from ...engine.transitions import Transition
from ..tape import wind

_ROOM = 1 << 31  # bytes that a rollout that may end early sets aside, though it does not use them


@dataclass(frozen=True, slots=True)
class Play:
    """What happened to n environments in T steps.

    Attributes:
        obs: leaf arrays `[T, n, ...]`, what the actions were taken on.
        next_obs: leaf arrays `[T, n, ...]`, what followed, final observations included.
        reward: `[T, n]` float64.
        terminated, truncated: `[T, n]` bool.
    """

    obs: list[np.ndarray]
    next_obs: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def fits(layout: Layout, num_envs: int, steps: int, stop: bool) -> bool:
    """Whether there is room to set aside for so many steps."""
    row = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in layout.leaves if leaf.dtype is not None)
    return not stop or row * num_envs * steps <= _ROOM


def play(
    first: Transition, step: Callable[[Any, bool], Transition], actions: Sequence[Any], layout: Layout, stop: bool
) -> Play:
    """Step through `actions`, of which each is one for all environments.

    Args:
        first: of a reset of all.
        step: takes actions and whether who ends begins anew at once.
        actions: one a step.
        layout: of the observations.
        stop: end with the first episode; otherwise who ends begins anew.
    """
    n, most = len(first.ids), len(actions)
    after = [_room((most, n, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    reward = np.empty((most, n))
    flags = np.zeros((2, most, n), bool)
    begun: list[tuple[int, Any, list[np.ndarray]]] = [(0, slice(None), layout.split(first.obs))]
    count = most
    for t, action in enumerate(actions):
        now = step(action, not stop and t + 1 < most)
        obs = layout.split(now.obs)
        for leaf, value in zip(after, obs, strict=True):
            leaf[t] = value
        reward[t] = now.reward
        if len(now.done_rows):
            flags[0, t], flags[1, t] = now.terminated, now.truncated
            if stop:
                count = t + 1
                break
            if len(now.ended):
                begun.append((t + 1, now.ended, [value[now.ended] for value in obs]))
                for leaf, final in zip(after, layout.split(now.final_obs), strict=True):
                    leaf[t, now.ended] = final
    if count < most:
        after = [leaf[:count].copy() for leaf in after]
    before = [_room(leaf.shape, leaf.dtype) for leaf in after]
    wind(before, after, begun)
    return Play(before, after, reward[:count], *flags[:, :count])


def _room(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Memory for large arrays: torch's, since NumPy asks for huge pages, which are slow to come by first."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    return torch.empty(shape, dtype=kind).numpy()
