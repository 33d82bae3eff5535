"""Rollouts of one environment whose actions are known beforehand, written into arrays as they happen.

No TensorDict is made until the end: that is what a rollout of a quick environment would spend its time on. Knows
gymnasium's `reset` and `step`, layouts and arrays, not TensorDicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.layout import Layout, Leaf
from .tuples import fitted

_ROOM = 1024  # steps that a rollout of unknown length has room for at first


@dataclass(frozen=True, slots=True)
class Tape:
    """What happened in n steps.

    Attributes:
        obs: leaf arrays `[n, ...]`, what the actions were taken on.
        next_obs: leaf arrays `[n, ...]`, what followed, final observations included.
        reward: `[n]` float64.
        terminated, truncated: `[n]` bool.
    """

    obs: list[np.ndarray]
    next_obs: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def record(
    reset: Callable[[], Any], step: Callable[[Any], Any], actions: Sequence[Any], layout: Layout, stop: bool
) -> Tape:
    """Play through `actions`.

    Args:
        reset: returns an observation.
        step: takes an action and returns an observation, a reward, and whether it terminated or truncated the episode.
        actions: one a step.
        layout: of the observations, without opaque leaves.
        stop: end with the first episode; otherwise the next one begins with the next step.

    Raises:
        SpaceError: an observation that is not what the layout says.
    """
    room = min(len(actions), _ROOM) if stop else len(actions)
    after = layout.empty(room)
    rewards: list[float] = []
    ends: list[tuple[int, bool, bool]] = []
    begun = [(0, _copied(layout, reset()))]
    write = _writer(layout)
    for i, action in enumerate(actions):
        if i == room:
            room *= 2
            after = [np.concatenate([leaf, np.empty_like(leaf)]) for leaf in after]
        obs, reward, terminated, truncated = step(action)
        write(after, i, obs)
        rewards.append(reward)
        if terminated or truncated:
            ends.append((i, terminated, truncated))
            if stop:
                break
            if i + 1 < len(actions):
                begun.append((i + 1, _copied(layout, reset())))
    return _wound(after, rewards, ends, begun)


def _copied(layout: Layout, obs: Any) -> list[np.ndarray]:
    return [np.array(fitted(value, leaf)) for leaf, value in zip(layout.leaves, layout.split(obs), strict=True)]


def _writer(layout: Layout) -> Callable[[list[np.ndarray], int, Any], None]:
    takers = [_taker(leaf) for leaf in layout.leaves]

    def write_one(leaves: list[np.ndarray], row: int, obs: Any) -> None:
        leaves[0][row] = obs if type(obs) is np.ndarray and obs.shape == shape and obs.dtype == dtype else take(obs)

    def write(leaves: list[np.ndarray], row: int, obs: Any) -> None:
        for leaf, take_it, value in zip(leaves, takers, layout.split(obs), strict=True):
            leaf[row] = take_it(value)

    if not layout.flat:
        return write
    take, shape, dtype = takers[0], layout.leaves[0].shape, layout.leaves[0].dtype
    return write_one


def _taker(leaf: Leaf) -> Callable[[Any], Any]:
    """A function that lets pass what the leaf can take, for otherwise NumPy would spread it, or cut it short."""
    shape, dtype = leaf.shape, leaf.dtype
    assert dtype is not None
    plain = () if shape else (int, dtype.type) if dtype.kind == "i" else (dtype.type,)

    def take(value: Any) -> Any:
        if type(value) in plain or (type(value) is np.ndarray and value.shape == shape and value.dtype == dtype):
            return value
        return fitted(value, leaf)

    return take


def wind(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], begun: Sequence[tuple[int, Any, Sequence[Any]]]
) -> None:
    """Write what was seen before each step: what followed the last one, or what an episode began with.

    Args:
        before: leaf arrays `[n, ...]`, written.
        after: leaf arrays `[n, ...]`, what followed each step.
        begun: the step, the rows (`...` for all there are) and the leaves of the first observations of episodes.
    """
    for index, leaf in enumerate(before):
        leaf[1:] = after[index][:-1]
        for t, rows, values in begun:
            leaf[t, rows] = values[index]


def _wound(
    after: list[np.ndarray],
    rewards: list[float],
    ends: list[tuple[int, bool, bool]],
    begun: list[tuple[int, list[Any]]],
) -> Tape:
    n = len(rewards)
    flags = np.zeros((2, n), bool)
    for row, terminated, truncated in ends:
        flags[:, row] = terminated, truncated
    after = [leaf if 2 * n >= len(leaf) else leaf[:n].copy() for leaf in after]
    after = [leaf[:n] for leaf in after]
    before = [np.empty_like(leaf) for leaf in after]
    wind(before, after, [(row, ..., first) for row, first in begun])
    return Tape(before, after, np.array(rewards, np.float64), *flags)
