"""Steps of a single gymnasium environment without TensorDicts, and checks of what it returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ....engine.space_layout import Layout, Leaf, describe, is_single_number
from ....errors import SpaceError
from ....gym_interface import raise_explained
from ....specs import TensorSpec
from ...rollouts.trajectory_buffers import ArrayBuffer, Leaves

_NUMBERS = (float, int, np.number, np.bool_)


def to_float(reward: object) -> float:
    """Converts a reward, a number or an array of one number, to a float.

    Raises:
        SpaceError: if it is neither.

    >>> import numpy as np
    >>> to_float(np.ones(1)), to_float(2)
    (1.0, 2.0)
    """
    if isinstance(reward, _NUMBERS):
        return float(reward)
    try:
        array = np.asarray(reward)
    except ValueError:  # a ragged list
        array = np.empty(0)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise SpaceError(f"Expected a number as reward, got {describe(reward)}. Return a float or an int.")
    return float(array.reshape(()))


def step_env(env: Any, action: object, read_reward: Callable[[Any], Any] = to_float) -> tuple[Any, Any, bool, bool]:
    """Steps an environment.

    Args:
        env: the environment.
        action: the action.
        read_reward: converts a reward that is no float; `np.asarray` for vectors.

    Returns:
        The observation, the reward, terminated and truncated.

    Raises:
        SpaceError: if the environment does not return a tuple of five, or a reward is no number.
    """
    try:
        obs, reward, terminated, truncated, _ = env.step(action)
    except (TypeError, ValueError) as error:
        raise_explained(error, env)
        raise
    return obs, reward if type(reward) is float else read_reward(reward), bool(terminated), bool(truncated)


class GymArrays:
    """A single environment at array level, see `vecrl.envs.rollouts.array_rollout.ArrayEnv`.

    Args:
        env: the environment.
        reset: returns an observation and an info.
        layout: the layout of observations, without opaque leaves.
    """

    def __init__(self, env: object, reset: Callable[[], tuple[object, object]], layout: Layout):
        self._env, self._reset, self._layout = env, reset, layout
        self._readers = [_leaf_reader(leaf) for leaf in layout.leaves]
        self._shape, self._dtype = (layout.leaves[0].shape, layout.leaves[0].dtype) if layout.flat else (None, None)

    def reset_arrays(self) -> Leaves:
        """Resets the environment and returns the leaves of the observation."""
        leaves = zip(self._layout.leaves, self._layout.split(self._reset()[0]), strict=True)
        return [np.array(to_leaf_array(value, leaf), leaf.dtype) for leaf, value in leaves]

    def step_arrays(self, action: object, t: int, out: ArrayBuffer, reset_done: bool) -> bool:
        """Steps the environment and writes the results; returns whether it is done."""
        obs, reward, terminated, truncated = step_env(self._env, action)
        if type(obs) is np.ndarray and obs.shape == self._shape and obs.dtype == self._dtype:
            out.next_obs[0][t] = obs
        else:
            for column, read, value in zip(out.next_obs, self._readers, self._layout.split(obs), strict=True):
                column[t] = read(value)
        out.reward[t] = reward
        if not (terminated or truncated):
            return False
        out.add_flags(t, terminated, truncated)
        if reset_done:
            out.add_first_obs(t + 1, ..., self.reset_arrays())
        return True


def _leaf_reader(leaf: Leaf) -> Callable[[Any], Any]:
    """Returns a function like `to_leaf_array` that is faster for values that fit already."""
    scalar_types = () if leaf.shape or leaf.dtype is None else (leaf.dtype.type,)
    if scalar_types and leaf.dtype is not None and leaf.dtype.kind == "i":
        scalar_types = (int, *scalar_types)
    return partial(_read_leaf, leaf, leaf.shape, leaf.dtype, scalar_types)


def _read_leaf(leaf: Leaf, shape: tuple[int, ...], dtype: object, scalar_types: tuple[type, ...], value: object) -> Any:
    is_array = type(value) is np.ndarray and value.shape == shape and value.dtype == dtype
    return value if is_array or type(value) in scalar_types else to_leaf_array(value, leaf)


def encode_checked(spec: TensorSpec, leaf: Leaf, batch_shape: tuple[int, ...], value: object) -> object:
    """Returns the tensor of a leaf of an observation, after a check of its shape and dtype."""
    return spec.encode(to_leaf_array(value, leaf, *batch_shape))


def to_leaf_array(value: object, leaf: Leaf, *rows: int) -> Any:
    """Converts an observation to an array that `leaf` accepts; returns it unchanged if `leaf` holds opaque objects.

    Args:
        value: the value from the environment.
        leaf: the leaf of the observation space's layout.
        rows: the number of rows, if the value comes from a vector environment.

    Raises:
        SpaceError: if the shape differs (a number may stand for an array of one number), or the dtype cannot be cast
            within its kind.
    """
    if leaf.dtype is None:
        return value
    shape = (*rows, *leaf.shape)
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        array = None
    if array is not None and np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        if array.shape == shape:
            return array
        if is_single_number(array, shape):
            return array.reshape(shape)
    raise SpaceError(
        f"Expected an observation of shape {shape} and dtype {leaf.dtype} at {leaf.name}, as its space says, got "
        f"{describe(value)}. Return what observation_space declares, or declare what you return."
    )
