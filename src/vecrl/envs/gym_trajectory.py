"""Rollouts of one environment whose actions are known beforehand, written into arrays as they happen.

No TensorDict is made until the end: that is what a rollout of a quick environment would spend its time on. Knows
gymnasium's `reset` and `step`, layouts and arrays, not TensorDicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.space_layout import Layout, Leaf
from .gym_outputs import to_leaf_array

_INITIAL_CAPACITY = 1024  # steps that a rollout of unknown length has room for at first


@dataclass(frozen=True, slots=True)
class GymTrajectory:
    """What happened in n steps.

    Attributes:
        obs: leaf arrays `[num_steps, ...]`, what the actions were taken on.
        next_obs: leaf arrays `[num_steps, ...]`, what followed, final observations included.
        reward: `[num_steps]` float64.
        terminated, truncated: `[num_steps]` bool.
    """

    obs: list[np.ndarray]
    next_obs: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def record_trajectory(
    reset: Callable[[], Any],
    step: Callable[[Any], Any],
    actions: Sequence[Any],
    layout: Layout,
    break_when_any_done: bool,
) -> GymTrajectory:
    """Play through `actions`.

    Args:
        reset: returns an observation.
        step: takes an action and returns an observation, a reward, and whether it terminated or truncated the episode.
        actions: one a step.
        layout: of the observations, without opaque leaves.
        break_when_any_done: end with the first episode; otherwise the next one begins with the next step.

    Raises:
        SpaceError: an observation that is not what the layout says.
    """
    capacity = min(len(actions), _INITIAL_CAPACITY) if break_when_any_done else len(actions)
    next_obs = layout.empty(capacity)
    rewards: list[float] = []
    end_steps: list[tuple[int, bool, bool]] = []
    resets = [(0, _copy_obs(layout, reset()))]
    write = _writer(layout)
    for i, action in enumerate(actions):
        if i == capacity:
            capacity *= 2
            next_obs = [np.concatenate([leaf, np.empty_like(leaf)]) for leaf in next_obs]
        obs, reward, terminated, truncated = step(action)
        write(next_obs, i, obs)
        rewards.append(reward)
        if terminated or truncated:
            end_steps.append((i, terminated, truncated))
            if break_when_any_done:
                break
            if i + 1 < len(actions):
                resets.append((i + 1, _copy_obs(layout, reset())))
    return _assemble(next_obs, rewards, end_steps, resets)


def _copy_obs(layout: Layout, obs: Any) -> list[np.ndarray]:
    return [np.array(to_leaf_array(value, leaf)) for leaf, value in zip(layout.leaves, layout.split(obs), strict=True)]


def _writer(layout: Layout) -> Callable[[list[np.ndarray], int, Any], None]:
    converters = [_leaf_converter(leaf) for leaf in layout.leaves]

    def write_one(leaves: list[np.ndarray], row: int, obs: Any) -> None:
        leaves[0][row] = obs if type(obs) is np.ndarray and obs.shape == shape and obs.dtype == dtype else convert(obs)

    def write(leaves: list[np.ndarray], row: int, obs: Any) -> None:
        for leaf, convert_leaf, value in zip(leaves, converters, layout.split(obs), strict=True):
            leaf[row] = convert_leaf(value)

    if not layout.flat:
        return write
    convert, shape, dtype = converters[0], layout.leaves[0].shape, layout.leaves[0].dtype
    return write_one


def _leaf_converter(leaf: Leaf) -> Callable[[Any], Any]:
    """A function that lets pass what the leaf can take, for otherwise NumPy would spread it, or cut it short."""
    shape, dtype = leaf.shape, leaf.dtype
    assert dtype is not None
    accepted_types = () if shape else (int, dtype.type) if dtype.kind == "i" else (dtype.type,)

    def convert(value: Any) -> Any:
        if type(value) in accepted_types or (
            type(value) is np.ndarray and value.shape == shape and value.dtype == dtype
        ):
            return value
        return to_leaf_array(value, leaf)

    return convert


def fill_obs(
    obs: Sequence[np.ndarray], next_obs: Sequence[np.ndarray], resets: Sequence[tuple[int, Any, Sequence[Any]]]
) -> None:
    """Write what was seen before each step: what followed the last one, or what an episode began with.

    Args:
        obs: leaf arrays `[num_steps, ...]`, written.
        next_obs: leaf arrays `[num_steps, ...]`, what followed each step.
        resets: the step, the rows (`...` for all there are) and the leaves of the first observations of episodes.
    """
    for index, leaf in enumerate(obs):
        leaf[1:] = next_obs[index][:-1]
        for t, rows, values in resets:
            leaf[t, rows] = values[index]


def _assemble(
    next_obs: list[np.ndarray],
    rewards: list[float],
    end_steps: list[tuple[int, bool, bool]],
    resets: list[tuple[int, list[Any]]],
) -> GymTrajectory:
    num_steps = len(rewards)
    flags = np.zeros((2, num_steps), bool)
    for row, terminated, truncated in end_steps:
        flags[:, row] = terminated, truncated
    next_obs = [leaf if 2 * num_steps >= len(leaf) else leaf[:num_steps].copy() for leaf in next_obs]
    next_obs = [leaf[:num_steps] for leaf in next_obs]
    obs = [np.empty_like(leaf) for leaf in next_obs]
    fill_obs(obs, next_obs, [(row, ..., first_obs) for row, first_obs in resets])
    return GymTrajectory(obs, next_obs, np.array(rewards, np.float64), *flags)
