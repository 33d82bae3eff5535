"""Converts between gymnasium's spaces and the dicts by which classic environments describe states and actions.

Knows spaces and arrays, not environments.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, DTypeLike

from ..errors import SpaceError

SpaceInfo: TypeAlias = dict[str, Any]
"""The description of a space, see `GymEnv.get_space_info`."""
_CONTINUOUS_NAMES = ("continuous", "float", float)
_DISCRETE_NAMES = ("int", "discrete", int)


def info_of_space(space: spaces.Space) -> SpaceInfo:
    """Returns the description of a space as a dict, see `GymEnv.get_space_info`."""
    if isinstance(space, spaces.Box):
        bounds = {"low_bound": space.low.copy(), "high_bound": space.high.copy()}
        return {"shape": space.shape, "dtype": "continuous", **bounds}
    if isinstance(space, spaces.Discrete):
        info = {"shape": (int(space.n),), "dtype": "int", "n": int(space.n)}
    elif isinstance(space, spaces.MultiDiscrete):
        info = {"shape": space.shape, "dtype": "int", "n": space.nvec.copy()}
    elif isinstance(space, spaces.MultiBinary):
        info = {"shape": space.shape, "dtype": "int", "n": np.full(space.shape, 2)}
    else:
        raise SpaceError(
            f"Expected a Box, Discrete, MultiDiscrete or MultiBinary space, got {space!r:.80}. Convert it to one of "
            "these: wrappers=[gymnasium.wrappers.FlattenObservation] flattens observations."
        )
    start = getattr(space, "start", 0)
    return {**info, "start": start} if np.any(start) else info


def space_of_info(info: Mapping[str, Any], *, is_action: bool) -> spaces.Space:
    """Returns the space that a dict describes; the inverse of `info_of_space`.

    Args:
        info: a dict with "shape" and "dtype", and optionally "low_bound" and "high_bound", "n" and "start".
        is_action: whether it describes actions. Integer actions without "n" are choices, and "shape" is their number;
            integer states without "n" are any integers.

    Raises:
        SpaceError: "shape" or "dtype" is missing, the dtype is not supported, or no space has these values.
    """
    if not isinstance(info, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpaceError(f"Expected a dict with 'shape' and 'dtype', got {info!r:.80}.")
    missing = {"shape", "dtype"} - set(info)
    if missing:
        raise SpaceError(f"Expected a dict with 'shape' and 'dtype', got {dict(info)} without {sorted(missing)}.")
    try:
        return _space(info, is_action)
    except SpaceError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise SpaceError(
            f"Expected values of 'shape', 'dtype' and bounds that a space can have, got {dict(info)}: {error}"
        ) from error


def _space(info: Mapping[str, Any], is_action: bool) -> spaces.Space:
    shape, dtype = tuple(operator.index(size) for size in np.atleast_1d(info["shape"]).tolist()), info["dtype"]
    if dtype in _CONTINUOUS_NAMES or (dtype not in _DISCRETE_NAMES and _dtype_kind(dtype) == "f"):
        return _box(info, shape, None if dtype in _CONTINUOUS_NAMES else np.dtype(dtype))
    if dtype not in _DISCRETE_NAMES and _dtype_kind(dtype) not in "iu":
        raise SpaceError(f"Expected the dtype 'continuous', 'int' or a numeric one of NumPy, got {dtype!r}.")
    if "n" not in info and not (is_action and len(shape) == 1):
        return _box(info, shape, np.dtype(np.int64 if dtype in _DISCRETE_NAMES else dtype))
    n, start = info.get("n", shape[0] if shape else None), info.get("start", 0)
    if np.ndim(n):
        return spaces.MultiDiscrete(np.asarray(n), start=np.broadcast_to(start, np.shape(n)))
    return spaces.Discrete(int(n), start=int(start))  # pyright: ignore[reportArgumentType] - without dimensions it is a number


def _dtype_kind(dtype: DTypeLike) -> str:
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return "?"


def _box(info: Mapping[str, Any], shape: tuple[int, ...], dtype: np.dtype | None) -> spaces.Box:
    """Returns a Box; its dtype is `dtype`, else that of the bounds, else float64."""
    bounds = [info.get(name) for name in ("low_bound", "high_bound")]
    if dtype is None:
        dtypes = [np.asarray(bound).dtype for bound in bounds if isinstance(bound, np.ndarray | np.generic)]
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    lowest, highest = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = (
        np.broadcast_to(np.asarray(default_bound if bound is None else bound, dtype), shape)
        for bound, default_bound in zip(bounds, (lowest, highest), strict=True)
    )
    return spaces.Box(low, high, shape, dtype.type)


def to_space_action(action: ArrayLike, space: spaces.Space) -> int | np.ndarray:
    """Returns an action in the form of its space: an int for Discrete, else an array of the space's dtype and shape.

    Raises:
        SpaceError: the action has another number of elements, is no number, or is no whole number for a space of
            integers.
    """
    shape = space.shape or ()
    try:
        array = np.asarray(action)
    except ValueError as error:  # rows of several lengths
        raise SpaceError(f"Expected an action in {space}, got {action!r:.80}.") from error
    if array.size != math.prod(shape) or array.dtype.kind not in "fiub":
        raise SpaceError(f"Expected an action in {space}, got {action!r:.80} of shape {array.shape}.")
    with np.errstate(invalid="ignore"):  # checked below
        converted = array.astype(space.dtype, copy=False)
    if converted.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise SpaceError(
            f"Expected whole numbers that {converted.dtype} can hold for {space}, got {action!r:.80}. Round or clip "
            "the values."
        )
    return int(converted.item()) if isinstance(space, spaces.Discrete) else converted.reshape(shape)


def from_numbers(space: spaces.Space, numbers: np.ndarray) -> Any:
    """Returns the element of a space that any vector describes, one of the size that `gymnasium.spaces.flatten` gives.

    Numbers are clipped to the bounds of a Box. Each choice takes as many numbers as it has options, and is the index of
    the largest; a switch is on if its number is positive.

    >>> from_numbers(spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]), np.array([0.1, 0.4, -1, 3]))
    (1, array([0, 1], dtype=int8))
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = list(space.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        ends = np.cumsum([spaces.flatdim(part) for _, part in items])
        parts = {
            name: from_numbers(part, rows) for (name, part), rows in zip(items, np.split(numbers, ends), strict=False)
        }
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    if isinstance(space, spaces.Discrete):
        return int(numbers.argmax() + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        choices = [part.argmax() for part in np.split(numbers, np.cumsum(space.nvec.ravel())[:-1])]
        return np.array(choices, space.dtype).reshape(space.shape) + space.start
    if isinstance(space, spaces.MultiBinary):
        return (numbers > 0).astype(space.dtype).reshape(space.shape)
    assert isinstance(space, spaces.Box), space
    return np.clip(numbers.reshape(space.shape), space.low, space.high).astype(space.dtype)
