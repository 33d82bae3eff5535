"""Plays rollouts of batches of gymnasium environments with given actions, and writes the results into arrays.

TensorDicts are created only at the end. `envs.gym_trajectory` does the same for one environment. This module knows
transitions and arrays. It must not know TensorDicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...engine.space_layout import Layout
from ...engine.transition import Transition
from ..gym_trajectory import fill_obs

_MAX_PREALLOC_BYTES = 1 << 31  # bytes; a rollout that may end early allocates memory for all its steps


@dataclass(frozen=True, slots=True)
class BatchTrajectory:
    """The results of T steps of a batch of environments.

    Attributes:
        obs: leaf arrays `[T, num_envs, ...]`, the observations before each step.
        next_obs: leaf arrays `[T, num_envs, ...]`, the observations after each step, with final observations.
        reward: `[T, num_envs]` float64.
        terminated, truncated: `[T, num_envs]` bool.
    """

    obs: list[np.ndarray]
    next_obs: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def fits_in_memory(layout: Layout, num_envs: int, steps: int, break_when_any_done: bool) -> bool:
    """Returns whether memory for all steps may be allocated."""
    row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in layout.leaves if leaf.dtype is not None)
    return not break_when_any_done or row_bytes * num_envs * steps <= _MAX_PREALLOC_BYTES


def play_rollout(
    first_transition: Transition,
    step: Callable[[Any, bool], Transition],
    actions: Sequence[Any],
    layout: Layout,
    break_when_any_done: bool,
) -> BatchTrajectory:
    """Steps all environments with given actions, and returns the results.

    Args:
        first_transition: the transition of a reset of all environments.
        step: a function of the actions of one step, and whether to reset ended environments in the same command.
        actions: for each step, the actions of all environments.
        layout: the layout of observations.
        break_when_any_done: whether to stop when the first episode ends. Otherwise ended environments are reset.
    """
    num_envs, max_steps = len(first_transition.ids), len(actions)
    next_obs = [_empty_array((max_steps, num_envs, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    reward = np.empty((max_steps, num_envs))
    flags = np.zeros((2, max_steps, num_envs), bool)
    resets: list[tuple[int, Any, list[np.ndarray]]] = [(0, slice(None), layout.split(first_transition.obs))]
    num_steps = max_steps
    for step_index, action in enumerate(actions):
        transition = step(action, not break_when_any_done and step_index + 1 < max_steps)
        obs_leaves = layout.split(transition.obs)
        for leaf, value in zip(next_obs, obs_leaves, strict=True):
            leaf[step_index] = value
        reward[step_index] = transition.reward
        if len(transition.done_rows):
            flags[0, step_index], flags[1, step_index] = transition.terminated, transition.truncated
            if break_when_any_done:
                num_steps = step_index + 1
                break
            if len(transition.final_rows):
                resets.append(
                    (step_index + 1, transition.final_rows, [value[transition.final_rows] for value in obs_leaves])
                )
                for leaf, final in zip(next_obs, layout.split(transition.final_obs), strict=True):
                    leaf[step_index, transition.final_rows] = final
    if num_steps < max_steps:
        next_obs = [leaf[:num_steps].copy() for leaf in next_obs]
    obs_before = [_empty_array(leaf.shape, leaf.dtype) for leaf in next_obs]
    fill_obs(obs_before, next_obs, resets)
    return BatchTrajectory(obs_before, next_obs, reward[:num_steps], *flags[:, :num_steps])


def _empty_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Returns an empty array in memory from torch, because NumPy requests huge pages, which are slow at first use."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    return torch.empty(shape, dtype=kind).numpy()
