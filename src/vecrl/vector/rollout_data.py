"""`Rollout`: the trajectories of several environments. Workers record them step by step, and the caller joins them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engine.space_layout import Layout, LeafRows, Tree
from ..engine.transition import Transition
from ..engine.trees import map_tree
from ..errors import SpaceError
from ..imports import require_extra


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
        extras: what the policy returned beside actions, arrays `[T, n, ...]` by their names.
        first_state, last_state: the hidden states of the policy before the first step and after the last one, trees of
            arrays `[n, ...]`; None if it has none. Rows in which an episode starts have its initial state.
        last_value: `[n]` float64, the policy's values of `last_obs`; None if it has no method `value`.
        final_value: `[e]` float64, its values of `final_obs`; None if it has no method `value`.
        env_ids: `[n]` int64, the numbers of the environments.
        version: how many times the policy had got parameters by `set_parameters` before.
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
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    first_state: Tree = None
    last_state: Tree = None
    last_value: np.ndarray | None = None
    final_value: np.ndarray | None = None
    env_ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    version: int = 0

    def next_value(self, name: str = "value") -> np.ndarray:
        """Returns the values of the observations after each step, `[T, n]` float64.

        Those are the values of the next step; where an episode ended, of its final observation; at the end, of
        `last_obs`. After a terminal state nothing is to be gained: multiply by `~terminated`.

        Args:
            name: the name of the values among the extras, `[T, n]` or `[T, n, 1]`.

        Raises:
            KeyError: the policy returned no such extra.
            ValueError: the policy has no method `value`.
        """
        if self.last_value is None or self.final_value is None:
            raise ValueError(
                "Expected a policy with a method value(obs), which gives the values of the last and the final "
                "observations, got one without. Define it."
            )
        value = self._extra(name).reshape(self.reward.shape)
        result = np.concatenate([value[1:], self.last_value[None]]).astype(np.float64)
        result[self.ends[:, 0], self.ends[:, 1]] = self.final_value
        return result

    def _extra(self, name: str) -> np.ndarray:
        if name not in self.extras:
            found = ", ".join(self.extras) or "none"
            raise KeyError(f"Expected a policy that returns {name!r} beside its actions, got these extras: {found}.")
        return self.extras[name]

    def next_obs(self) -> Tree:
        """Returns the observations after each step, a tree of arrays `[T, n, ...]`: the final one, where it ended one.

        Raises:
            ValueError: a leaf of the observations is no array.
        """

        def shifted(obs: Any, last: Any, final: Any) -> np.ndarray:
            result = np.concatenate([_array(obs)[1:], last[None]])
            if len(self.ends):
                result[self.ends[:, 0], self.ends[:, 1]] = final
            return result

        final = self.final_obs if len(self.ends) else map_tree(lambda _: None, self.obs)
        return map_tree(shifted, self.obs, self.last_obs, final)

    def flat(self) -> dict[str, Any]:
        """Returns observations, actions, rewards, flags and extras as batches of T·n rows, in the order of the steps.

        Raises:
            ValueError: a leaf of the observations or actions is no array.

        >>> rollout = Rollout(*[np.zeros((3, 2))] * 5, *[np.zeros(2)] * 5, extras={"value": np.ones((3, 2, 1))})
        >>> {name: batch.shape for name, batch in rollout.flat().items() if name != "obs"}
        {'action': (6,), 'reward': (6,), 'terminated': (6,), 'truncated': (6,), 'value': (6, 1)}
        """
        names = "obs", "action", "reward", "terminated", "truncated"
        trees = {**{name: getattr(self, name) for name in names}, **self.extras}
        return map_tree(lambda leaf: _array(leaf).reshape(-1, *leaf.shape[2:]), trees)

    def to_tensordict(self) -> Any:
        """Returns the steps as a TensorDict `[n, T]` with the keys of TorchRL's advantages, losses and buffers.

        It has "observation" (or the keys of a Dict space), "action", the extras, and under "next" the observation after
        the step, as `next_obs` gives it, and "reward", "done", "terminated" and "truncated", all `[n, T, 1]`. The extra
        "state_value" is `[n, T, 1]` too, and also under "next" if the policy has a method `value`; other extras keep
        their shapes, such as `[n, T]` of log-probabilities. Rewards and values are float32.

        Raises:
            VersionError: tensordict is not installed.
            ValueError: a leaf of the observations or actions is no array.
        """
        require_extra("tensordict", "Rollout.to_tensordict")
        import torch
        from tensordict import TensorDict

        def entries(obs: Tree) -> dict[str, Any]:
            return obs if isinstance(obs, dict) else {"observation": obs}

        def column(values: np.ndarray) -> np.ndarray:
            return (values.astype(np.float32) if values.dtype == np.float64 else values)[..., None]

        done = self.terminated | self.truncated
        after = {**entries(self.next_obs()), "reward": column(self.reward), "done": column(done)}
        after |= {"terminated": column(self.terminated), "truncated": column(self.truncated)}
        extras = dict(self.extras)
        if "state_value" in extras:
            extras["state_value"] = column(self._extra("state_value").reshape(done.shape))
            if self.last_value is not None:
                after["state_value"] = column(self.next_value("state_value"))
        trees = {**entries(self.obs), "action": self.action, **extras, "next": after}
        steps, rows = self.reward.shape
        tensors = map_tree(lambda leaf: torch.from_numpy(np.ascontiguousarray(_array(leaf).swapaxes(0, 1))), trees)
        return TensorDict(tensors, [rows, steps])


def _array(leaf: Any) -> np.ndarray:
    if not isinstance(leaf, np.ndarray):
        raise ValueError(f"Expected observations and actions of arrays, got {type(leaf).__name__} ({leaf!r:.40}).")
    return leaf


_FIELDS = {"obs", "action", "reward", "terminated", "truncated", "next"}  # of what `flat` and `to_tensordict` return


class RolloutRecorder:
    """Records the steps of environments that are reset in the step that ends their episode."""

    def __init__(self, obs_layout: Layout, action_layout: Layout, steps: int):
        self._obs_layout = obs_layout
        self._obs, self._actions = _TreeBuffer(obs_layout, steps), _TreeBuffer(action_layout, steps)
        self._extras: list[dict[str, np.ndarray]] = []
        self._final_values: list[np.ndarray] = []
        self._transitions: list[Transition] = []
        self._ends: list[tuple[int, int]] = []
        self._final_obs: list[list[Tree]] = []

    def record_obs(self, obs: Tree) -> None:
        """Records the observations of the next step, before the policy gets them, which may write to them."""
        self._obs.store(len(self._transitions), obs)

    def record(self, action: Tree, extras: dict[str, np.ndarray], transition: Transition) -> Tree:
        """Records the step by `action`; `transition.obs` is set to None, which frees its memory.

        Returns:
            The final observations of the episodes that it ended; None if there are none.
        """
        step, done_ids = len(self._transitions), transition.episodes.ids
        if not self._extras and (own := _FIELDS & extras.keys()):
            raise SpaceError(
                f"Expected extras of the policy with other names than a rollout's, got {min(own)!r}. Rename it."
            )
        if self._extras and extras.keys() != self._extras[0].keys():
            before = list(self._extras[0])
            raise SpaceError(f"Expected the policy to return the extras {before} in each step, got {list(extras)}.")
        self._extras.append(extras)
        self._actions.store(step, action)
        self._transitions.append(transition)
        self._ends += [(step, env_id) for env_id in done_ids.tolist()]
        if len(done_ids) > len(transition.final_rows):  # excluded environments are not reset
            self._final_obs.append(rows_of(self._obs_layout, transition.next_obs, done_ids))
        elif len(done_ids):
            self._final_obs.append(self._obs_layout.split(transition.final_obs))
        transition.obs = None  # frees the slot of the batch buffers
        return self._obs_layout.build(self._final_obs[-1]) if len(done_ids) else None

    def record_final_value(self, values: np.ndarray) -> None:
        """Records the values of the final observations that `record` has returned last."""
        self._final_values.append(values)

    def rollout(
        self, last_obs: Tree, first_state: Tree = None, last_state: Tree = None, last_value: np.ndarray | None = None
    ) -> Rollout:
        """Returns all steps as a rollout that ends with `last_obs`; the other arguments are its attributes."""
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
            extras={name: np.stack([extras[name] for extras in self._extras]) for name in self._extras[0]},
            first_state=first_state,
            last_state=last_state,
            last_value=last_value,
            final_value=None if last_value is None else np.concatenate([*self._final_values, np.empty(0)]),
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
    final_value = _concat_states([part.final_value for part in parts])
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
        extras={name: np.concatenate([part.extras[name] for part in parts], 1) for name in parts[0].extras},
        first_state=_concat_states([part.first_state for part in parts]),
        last_state=_concat_states([part.last_state for part in parts]),
        last_value=_concat_states([part.last_value for part in parts]),
        final_value=None if final_value is None else final_value[permutation],
    )


def _concat_states(states: Sequence[Tree]) -> Tree:
    """Concatenates trees of arrays `[k, ...]`, or Nones."""
    return None if states[0] is None else map_tree(lambda *leaves: np.concatenate(leaves), *states)


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
