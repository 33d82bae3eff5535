"""Converts transitions of the engine to Tianshou's format: stacked observations, and infos as an array of dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.infos import InfoDict
from ..engine.space_layout import Layout
from ..engine.transition import Transition
from ..errors import SpaceError
from ..simulators.heterogeneous import OBS, REWARD

Obs = Any
"""Observations of `m` environments: an array `[m, ...]`, or a dict of arrays."""


class ResultFormatter:
    """Converts the transitions of a pool to the results of `reset` and `step`.

    Args:
        layout: the layout of the observations.
        stack_dicts: whether dict observations become a dict of arrays instead of an array of dicts.
        shared: whether environments run in this process; infos are then copied, since environments may change them.
    """

    def __init__(self, layout: Layout, stack_dicts: bool, shared: bool):
        self._layout = layout
        self._stack_dicts = stack_dicts
        self._shared = shared

    def reset(self, transition: Transition) -> tuple[Obs, np.ndarray]:
        """Returns observations, and infos `[m]` as the environments returned them."""
        dicts = transition.infos.dicts_of(transition.ids.tolist(), self._shared)
        return self._obs(transition, _pop(dicts, OBS)), _info_array(dicts)

    def step(self, transition: Transition) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns observations, rewards, flags, and infos `[m]` with the id of each environment."""
        ids = transition.ids.tolist()
        reward = transition.reward
        if transition.infos:
            dicts = transition.infos.dicts_of(ids, self._shared)
            obs = self._obs(transition, _pop(dicts, OBS))
            if vector_rewards := _pop(dicts, REWARD):
                reward = stack([vector_rewards.get(row, number) for row, number in enumerate(reward)])
            for info, env_id in zip(dicts, ids, strict=True):
                info["env_id"] = env_id
        else:
            obs = self._obs(transition, {})
            dicts = [{"env_id": env_id} for env_id in ids]
        return obs, reward, transition.terminated, transition.truncated, _info_array(dicts)

    def _obs(self, transition: Transition, misfits: Mapping[int, object]) -> Obs:
        """Returns the observations of `m` environments.

        Args:
            transition: the transition.
            misfits: the observations that do not fit the declared spaces, by row.

        Returns:
            An array `[m, ...]`; an array `[m]` of objects if their shapes differ or they are dicts; a dict of
            arrays if they are dicts and `stack_dicts` is True.
        """
        if misfits:
            rows = self._layout.rows(self._layout.split(transition.obs), len(transition.ids))
            return self._stack_objects([misfits.get(row, obs) for row, obs in enumerate(rows)])
        if self._layout.is_array:
            return transition.obs
        if self._layout.flat:
            return self._stack_objects(transition.obs)
        leaves = self._layout.split(transition.obs)
        if self._stack_dicts:
            stacked = [leaf if isinstance(leaf, np.ndarray) else stack(leaf) for leaf in leaves]
            return self._layout.build(stacked)
        return object_array(self._layout.rows(leaves, len(transition.ids)))

    def _stack_objects(self, values: Sequence[Any]) -> Obs:
        if self._stack_dicts and values and isinstance(values[0], dict):
            keys = values[0].keys()
            if all(isinstance(value, dict) and value.keys() == keys for value in values):
                return {key: self._stack_objects([value[key] for value in values]) for key in keys}
        return stack(values)

    def empty_result(self) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the results of a step of no environments."""
        obs: Obs = np.empty(0, object)
        if self._layout.is_array or (self._stack_dicts and not self._layout.flat):
            obs = self._layout.build([np.asarray(leaf) for leaf in self._layout.empty(0)])
        flags = np.empty((2, 0), bool)
        return obs, np.empty(0), flags[0], flags[1], np.empty(0, object)


def stack(values: Sequence[object]) -> np.ndarray:
    """Stacks arrays or numbers of one shape to `[m, ...]`, and puts other values into an array `[m]` of objects.

    Raises:
        SpaceError: (a TypeError) one of the values is a tuple.

    >>> stack([1, 2]), stack([np.zeros(1), np.zeros(2)]).shape, stack(["a", "b"]).dtype
    (array([1, 2]), (2,), dtype('O'))
    """
    if any(isinstance(value, tuple) for value in values):
        raise SpaceError(NO_TUPLES)
    if not all(isinstance(value, np.ndarray | np.generic | int | float | list) for value in values):
        return object_array(values)
    try:
        array = np.stack([np.asarray(value) for value in values]) if len(values) else np.empty(0, object)
    except ValueError:  # the shapes differ
        return object_array(values)
    return array if array.dtype.kind in "biufc" else object_array(values)


NO_TUPLES = (
    "Expected observations to be arrays, numbers or dicts, got tuples. Return a dict from the environments, or "
    "flatten them (gymnasium.wrappers.FlattenObservation)."
)


def object_array(values: Sequence[object]) -> np.ndarray:
    """Returns an array `[m]` of the objects, of any type."""
    array = np.empty(len(values), object)
    for i, value in enumerate(values):  # array[:] = values would convert arrays and lists
        array[i] = value
    return array


def _pop(dicts: Sequence[InfoDict], key: str) -> dict[int, Any]:
    """Removes `key` from infos and returns its values by their position."""
    return {row: info.pop(key) for row, info in enumerate(dicts) if key in info}


def _info_array(dicts: list[InfoDict]) -> np.ndarray:
    array = np.empty(len(dicts), object)
    array[:] = dicts
    return array
