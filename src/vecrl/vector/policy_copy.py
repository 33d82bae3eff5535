"""`PolicyCopy`: a worker's copy of a policy. It calls it, and keeps its hidden state and its random streams."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces

from ..engine.space_layout import Layout, Tree
from ..engine.trees import map_tree
from ..errors import SpaceError
from ..random_streams import RandomStreams
from ..seeding import seed_for, stream_for
from .rollout_data import concat_leaves, rows_of

_GLOBAL_STREAMS_LOCK = threading.RLock()  # held by the thread that has switched the process's global generators


class PolicyCopy:
    """A policy for the environments of one worker.

    Args:
        pickled: the policy, pickled by this process or its caller.
        obs_layout, action_layout: the layouts of the spaces of one environment.
        count: k, the number of environments.
        row_by_row: whether it is called once per environment, with random streams for each.

    Attributes:
        state: the hidden state `[k, ...]` for the next call, a tree of arrays or tensors; None if it has none.
    """

    def __init__(self, pickled: bytes, obs_layout: Layout, action_layout: Layout, count: int, *, row_by_row: bool):
        self._pickled = pickled
        self._obs_layout, self._action_layout = obs_layout, action_layout
        self._count, self._row_by_row = count, row_by_row
        self._streams: list[RandomStreams] = []
        self._seed = 0
        self._make()

    def _make(self) -> None:
        self._policy: Any = cloudpickle.loads(self._pickled)
        self.state: Tree = None

    @property
    def has_values(self) -> bool:
        """Whether the policy has a method `value`."""
        return callable(getattr(self._policy, "value", None))

    @property
    def has_state(self) -> bool:
        """Whether the policy has a method `initial_state`, and so a hidden state."""
        return callable(getattr(self._policy, "initial_state", None))

    # -- seeds and parameters ------------------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Seeds a policy with generators of its own."""
        self._seed = seed
        if callable(reseed := getattr(self._policy, "seed", None)):
            reseed(seed)

    def seed_streams(self, root: int, ids: Sequence[int], *, separate: bool) -> None:
        """Seeds the random streams that the global generators have during calls.

        Args:
            root: the seed of all streams.
            ids: the numbers of the environments.
            separate: whether the policy has streams of its own if it is not called row by row.
        """
        if self._row_by_row:
            self._streams = [RandomStreams(seed_for(stream_for(root, "rows"), i)) for i in ids]
        elif separate:
            self._streams = [RandomStreams(seed_for(root, ids[0]))]

    def reload(self, parameters: bytes | None) -> None:
        """Replaces the policy by a new copy, and loads the parameters if there are any."""
        self._make()
        self.seed(seed_for(self._seed, 1))
        if parameters is not None:
            self.load_parameters(parameters)

    def load_parameters(self, parameters: bytes) -> None:
        """Loads new parameters. (The bytes come from the process that made this worker, not from a file or network.)"""
        load: Any = getattr(self._policy, "set_parameters", None) or getattr(self._policy, "load_state_dict", None)
        if load is None:
            kind = type(self._policy).__name__
            raise TypeError(f"Expected a policy with set_parameters or load_state_dict, got {kind}, which has neither.")
        load(cloudpickle.loads(parameters))

    # -- hidden states -------------------------------------------------------------------------------

    def restart(self, rows: np.ndarray | None = None) -> None:
        """Gives rows their initial hidden state; all rows if it is None."""
        if not self.has_state:
            return
        if rows is None:
            self.state = self._initial_state(self._count)
        elif len(rows):
            self.state = map_tree(
                lambda old, new: _with_rows(old, rows, new), self.state, self._initial_state(len(rows))
            )

    def _initial_state(self, count: int) -> Tree:
        state = self._policy.initial_state(count)
        map_tree(lambda leaf: _check_rows("the policy's initial_state", leaf, count), state)
        return state

    def state_arrays(self) -> Tree:
        """Returns a copy of the hidden state, as arrays; None if it has none."""
        return None if self.state is None else map_tree(np.array, _as_arrays(self.state))

    # -- calls ---------------------------------------------------------------------------------------

    def act(self, obs: Tree) -> tuple[Tree, dict[str, np.ndarray]]:
        """Returns the actions for the observations of all environments, as they are played, and the extras."""
        if not self._row_by_row:
            action, extras, self.state = self._call(obs, self.state, self._count, *self._streams)
            return self._action_layout.build(action), extras
        results = [
            self._call(self._row(obs, row), _state_row(self.state, row), 1, *self._streams[row : row + 1])
            for row in range(self._count)
        ]
        actions, extras, states = zip(*results, strict=True)
        if self.has_state:
            self.state = map_tree(lambda *leaves: _concat(leaves), *states)
        joined = {name: np.concatenate([row[name] for row in extras]) for name in extras[0]}
        return concat_leaves(actions, self._action_layout, 0), joined

    def values(self, obs: Tree, state: Tree, count: int) -> np.ndarray:
        """Returns the policy's values of `count` observations, `[count]` float64."""
        if not self._row_by_row or count == 0:
            return self._values(obs, state, count)
        parts = [self._values(self._row(obs, row), _state_row(state, row), 1) for row in range(count)]
        return np.concatenate(parts)

    def _values(self, obs: Tree, state: Tree, count: int) -> np.ndarray:
        if count == 0:
            return np.empty(0)
        arguments = (obs,) if state is None else (obs, state)
        value = np.asarray(_as_arrays(self._policy.value(*arguments)), np.float64)
        if value.size != count:
            raise SpaceError(
                f"Expected one number per observation from the policy's method value, {count} in all, got an array of "
                f"shape {value.shape}."
            )
        return value.reshape(count)

    def _row(self, obs: Tree, row: int) -> Tree:
        return self._obs_layout.build(rows_of(self._obs_layout, obs, np.array([row])))

    def _call(
        self, obs: Tree, state: Tree, count: int, streams: RandomStreams | None = None
    ) -> tuple[list[Any], dict[str, np.ndarray], Tree]:
        """Returns the leaves of the actions, the extras, and the next hidden state, for `count` observations."""
        arguments = (obs,) if state is None else (obs, state)
        if streams is None:
            result = self._policy(*arguments)
        else:
            with _GLOBAL_STREAMS_LOCK, streams:
                result = self._policy(*arguments)
        action, extras, state = self._parse(result)
        extras = {str(name): np.asarray(_as_arrays(value)) for name, value in extras.items()}
        for name, value in extras.items():
            _check_rows(f"the policy's {name!r}", value, count)
        return _batch(self._action_layout, _as_arrays(action), count), extras, state

    def _parse(self, result: Any) -> tuple[Tree, Mapping[str, Any], Tree]:
        """Returns the actions, the extras and the hidden state of what the policy has returned."""
        state = None
        if self.has_state:
            if not isinstance(result, tuple) or len(result) not in (2, 3):
                raise SpaceError(
                    "Expected (action, state) or (action, extras, state) from a policy with initial_state, got "
                    f"{_describe(result)}."
                )
            *others, state = result
            map_tree(lambda leaf: _check_rows("the policy's state", leaf, None), state)
            result = others[0] if len(others) == 1 else tuple(others)
        found: Any = result
        space: Any = self._action_layout.space
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        if is_pair and not (isinstance(space, spaces.Tuple) and len(space) == 2 and isinstance(space[1], spaces.Dict)):
            return *result, state
        keys = found.keys() if hasattr(found, "keys") else ()
        if "action" in keys and not (isinstance(space, spaces.Dict) and "action" in space.spaces):
            return found["action"], {key: found[key] for key in keys if _is_extra(key, found[key])}, state
        return result, {}, state


def _as_arrays(tree: Tree) -> Tree:
    """Converts torch tensors in a tree to arrays; other values are returned unchanged."""
    return map_tree(lambda leaf: leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else leaf, tree)


def _batch(layout: Layout, actions: Tree, rows: int) -> list[Any]:
    """Returns the leaves of actions in the dtypes in which they are recorded, so that these are the ones played."""
    leaves = zip(layout.batch(actions, rows), layout.leaves, strict=True)
    return [values if leaf.dtype is None else np.asarray(values, leaf.dtype) for values, leaf in leaves]


def _state_row(state: Tree, row: int) -> Tree:
    return None if state is None else map_tree(lambda leaf: leaf[row : row + 1], state)


def _with_rows(old: Any, rows: np.ndarray, new: Any) -> Any:
    """Returns a copy of an array or tensor with new values in some rows."""
    result = old.detach().clone() if hasattr(old, "detach") else np.array(old)
    result[rows] = new
    return result


def _concat(leaves: Sequence[Any]) -> Any:
    if not hasattr(leaves[0], "detach"):
        return np.concatenate(leaves)
    import torch

    return torch.cat([*leaves])


def _check_rows(what: str, value: Any, count: int | None) -> None:
    """Raises a `SpaceError` if a value is no array or tensor with one row for each environment."""
    shape = getattr(value, "shape", None)
    if not shape or (count is not None and shape[0] != count):
        expected = "one row per environment" if count is None else f"{count} rows, one per environment"
        found = "none" if shape is None else f"the shape {tuple(shape)}"
        raise SpaceError(f"Expected {what} to be an array of {expected}, got {found} ({type(value).__name__}).")


def _is_extra(key: Any, value: Any) -> bool:
    """Returns whether an entry is an array or tensor beside the action: a TensorDict has others, and nested ones."""
    return key != "action" and hasattr(value, "shape") and not hasattr(value, "keys")


def _describe(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
