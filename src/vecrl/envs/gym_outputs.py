"""What environments with gymnasium's `reset` and `step` return, held against what it should be.

What fits is told by whoever takes it, by a look at its attributes; here is what follows where that does not say yes.
Knows arrays and leaves of layouts, not TensorDicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.space_layout import Leaf, describe
from ..errors import SpaceError

_NUMBERS = (float, int, np.number, np.bool_)


def to_leaf_array(value: Any, leaf: Leaf, *rows: int) -> Any:
    """An observation as an array that `leaf` can take; what no array can hold as it is.

    Args:
        value: as the environment gave it.
        leaf: where it belongs.
        rows: how many there are, where it is one of many environments.

    Raises:
        SpaceError: another shape, or a dtype that would lose its kind.
    """
    if leaf.dtype is None:
        return value
    shape = (*rows, *leaf.shape)
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        array = None
    if array is not None and array.shape == shape and np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        return array
    raise SpaceError(
        f"Expected an observation of shape {shape} and dtype {leaf.dtype} at {leaf.name}, as its space says, but "
        f"{describe(value)} came. Return what observation_space declares, or declare what you return."
    )


def to_float(reward: Any) -> float:
    """A reward as a number, also where it is the only one in an array.

    >>> import numpy as np
    >>> number(np.ones(1)), number(2)
    (1.0, 2.0)
    """
    if isinstance(reward, _NUMBERS):
        return float(reward)
    try:
        array = np.asarray(reward)
    except ValueError:  # a ragged list
        array = np.empty(0)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise SpaceError(f"Expected a number as reward, but {describe(reward)} came. Return a float, or an int.")
    return float(array.reshape(()))


def step_output_error(result: Any) -> SpaceError:
    """The error for what `step` returned, where that is not five things."""
    return SpaceError(
        f"Expected step() to return (obs, reward, terminated, truncated, info), but {_describe_result(result)} came. "
        "Environments that return (obs, reward, done, info) are those of the old gym: derive from its gym.Env; GymEnv "
        'makes them by name after set_gym_backend("gym").'
    )


def reset_output_error(result: Any) -> SpaceError:
    """The error for what `reset` returned, where that is not two things."""
    return SpaceError(
        f"Expected reset() to return (obs, info), but {_describe_result(result)} came. Return an empty dict as the "
        f"info where "
        "there is none. Environments that return obs alone are those of the old gym: derive from gym.Env."
    )


def _describe_result(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else describe(result)  # pyright: ignore[reportUnknownArgumentType]
