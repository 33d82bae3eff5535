"""Records rollouts of one environment with known actions directly into arrays.

In rollouts of fast environments, most time is spent on TensorDicts, so none is made before the end. This module knows
gymnasium's `reset` and `step`, layouts and arrays; it must not know TensorDicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.space_layout import Layout, Leaf
from .gym_outputs import to_leaf_array

_INITIAL_CAPACITY = 1024  # number of steps allocated at first for a rollout of unknown length


@dataclass(frozen=True, slots=True)
class GymTrajectory:
    """The record of n steps.

    Attributes:
        obs: leaf arrays `[num_steps, ...]`, the observations before each step.
        next_obs: leaf arrays `[num_steps, ...]`, the observations after each step, final observations included.
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
    """Resets an environment, steps it with `actions` and returns the record.

    Args:
        reset: returns an observation.
        step: takes an action and returns an observation, a reward, terminated and truncated.
        actions: one per step.
        layout: the layout of the observations, without opaque leaves.
        break_when_any_done: stop at the end of the first episode; otherwise reset and go on.

    Raises:
        SpaceError: if an observation does not fit the layout.
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
    """Returns a function that checks and converts values, since NumPy would broadcast or truncate wrong ones."""
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
    """Fills the observations before each step from those after the step before, and from the resets.

    Args:
        obs: leaf arrays `[num_steps, ...]`, which are written.
        next_obs: leaf arrays `[num_steps, ...]`, the observations after each step.
        resets: per reset, the index of the next step, the rows (`...` for all) and the leaves of the first observation.
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
