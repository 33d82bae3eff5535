"""Slow checks of the observations and rewards that gymnasium's `reset` and `step` return.

The caller accepts valid values by a fast check of their attributes, and calls this module only for the others. It must
not know TensorDicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.space_layout import Leaf, describe, is_single_number
from ..errors import SpaceError

_NUMBERS = (float, int, np.number, np.bool_)


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
