"""`Rollout`: the trajectories of several environments. Workers record them step by step, and the caller joins them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.space_layout import Layout, LeafRows, Tree
from ..engine.transition import Transition


@dataclass(frozen=True, slots=True)
class Rollout:
    """The trajectories of n environments over T steps.

    Attributes:
        obs: the observations that the policy acted on, a tree of arrays `[T, n, ...]`.
        action: the actions, a tree of arrays `[T, n, ...]`.
        reward: `[T, n]` float64.
        terminated, truncated: `[T, n]` bool. An environment is reset in the step that ends its episode.
        last_obs: the observations to act on next, a tree of arrays `[n, ...]`.
        ends: `[e, 2]` int64, step and environment of each of the e episodes that ended, in the order of the steps.
        final_obs: the final observations of these episodes, a tree of arrays `[e, ...]`; None if e is 0.
        returns: `[e]` float64, the returns of these episodes, including steps before the rollout.
        lengths: `[e]` int64, the lengths of these episodes, including steps before the rollout.
    """

    obs: Tree
    action: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    last_obs: Tree
    ends: np.ndarray
    final_obs: Tree
    returns: np.ndarray
    lengths: np.ndarray


class RolloutRecorder:
    """Records the steps of environments that are reset in the step that ends their episode."""

    def __init__(self, obs_layout: Layout, action_layout: Layout, steps: int):
        self._obs_layout = obs_layout
        self._obs, self._actions = _TreeBuffer(obs_layout, steps), _TreeBuffer(action_layout, steps)
        self._transitions: list[Transition] = []
        self._ends: list[tuple[int, int]] = []
        self._final_obs: list[list[Tree]] = []

    def record(self, obs: Tree, action: Tree, transition: Transition) -> None:
        """Records the step from `obs` by `action`; `transition.obs` is set to None, which frees its memory."""
        step, done_ids = len(self._transitions), transition.episodes.ids
        self._obs.store(step, obs)
        self._actions.store(step, action)
        self._transitions.append(transition)
        self._ends += [(step, env_id) for env_id in done_ids.tolist()]
        if len(done_ids) > len(transition.final_rows):  # excluded environments are not reset
            self._final_obs.append(rows_of(self._obs_layout, transition.next_obs, done_ids))
        elif len(done_ids):
            self._final_obs.append(self._obs_layout.split(transition.final_obs))
        transition.obs = None  # frees the slot of the batch buffers

    def rollout(self, last_obs: Tree) -> Rollout:
        """Returns all steps as a rollout that ends with `last_obs`."""
        transitions = self._transitions
        return Rollout(
            obs=self._obs.tree(),
            action=self._actions.tree(),
            reward=np.stack([t.reward for t in transitions]),
            terminated=np.stack([t.terminated for t in transitions]),
            truncated=np.stack([t.truncated for t in transitions]),
            last_obs=last_obs,
            ends=np.array(self._ends, np.int64).reshape(-1, 2),
            final_obs=concat_leaves(self._final_obs, self._obs_layout, 0) if self._final_obs else None,
            returns=np.concatenate([t.episodes.returns for t in transitions]),
            lengths=np.concatenate([t.episodes.lengths for t in transitions]),
        )


class _TreeBuffer:
    """Leaf arrays of T steps, written step by step."""

    def __init__(self, layout: Layout, steps: int):
        self._layout = layout
        self._steps = steps
        self._leaves: list[LeafRows] = []

    def store(self, step: int, tree: Tree) -> None:
        leaves = self._layout.split(tree)
        if not self._leaves:
            size = self._steps
            self._leaves = [
                np.empty((size, *leaf.shape), leaf.dtype) if isinstance(leaf, np.ndarray) else [None] * size
                for leaf in leaves
            ]
        for buffer, leaf in zip(self._leaves, leaves, strict=True):
            buffer[step] = leaf

    def tree(self) -> Tree:
        return self._layout.build([tuple(buffer) if isinstance(buffer, list) else buffer for buffer in self._leaves])


def concat_rollouts(
    parts: Sequence[Rollout], starts: Sequence[int], obs_layout: Layout, action_layout: Layout
) -> Rollout:
    """Joins the rollouts of all workers; `starts` has the number of each worker's first environment."""
    ends = np.concatenate([part.ends + np.array([0, start]) for part, start in zip(parts, starts, strict=False)])
    permutation = np.lexsort((ends[:, 1], ends[:, 0]))
    final_obs = None
    if final_obs_rows := [obs_layout.split(part.final_obs) for part in parts if len(part.ends)]:
        all_rows = concat_leaves(final_obs_rows, obs_layout, 0)
        final_obs = obs_layout.build(rows_of(obs_layout, all_rows, permutation))
    return Rollout(
        obs=concat_leaves([obs_layout.split(part.obs) for part in parts], obs_layout, 1),
        action=concat_leaves([action_layout.split(part.action) for part in parts], action_layout, 1),
        reward=np.concatenate([part.reward for part in parts], 1),
        terminated=np.concatenate([part.terminated for part in parts], 1),
        truncated=np.concatenate([part.truncated for part in parts], 1),
        last_obs=concat_leaves([obs_layout.split(part.last_obs) for part in parts], obs_layout, 0),
        ends=ends[permutation],
        final_obs=final_obs,
        returns=np.concatenate([part.returns for part in parts])[permutation],
        lengths=np.concatenate([part.lengths for part in parts])[permutation],
    )


def concat_leaves(parts: Sequence[Sequence[Tree]], layout: Layout, axis: int) -> Tree:
    """Concatenates trees, given by their leaves, along an axis."""
    leaves: list[Tree] = []
    for values in zip(*parts, strict=True):
        if isinstance(values[0], np.ndarray):
            leaves.append(np.concatenate(values, axis))
        elif axis == 0:
            leaves.append(tuple(itertools.chain.from_iterable(values)))
        else:
            leaves.append(tuple(tuple(itertools.chain.from_iterable(rows)) for rows in zip(*values, strict=True)))
    return layout.build(leaves)


def rows_of(layout: Layout, tree: Tree, rows: np.ndarray) -> list[Tree]:
    """Returns the leaves of selected rows of a tree."""
    leaves = layout.split(tree)
    return [leaf[rows] if isinstance(leaf, np.ndarray) else tuple(leaf[i] for i in rows) for leaf in leaves]
