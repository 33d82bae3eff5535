"""What states and actions look like, as classic environments say it, and as gymnasium's spaces say it.

Knows spaces and arrays, not environments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ..errors import SpaceError

Info = dict[str, Any]
_CONTINUOUS_NAMES = ("continuous", "float", float)
_DISCRETE_NAMES = ("int", "discrete", int)


def info_of_space(space: spaces.Space[Any]) -> Info:
    """A space as a dict, see `GymEnv.get_space_info`."""
    if isinstance(space, spaces.Box):
        bounds = {"low_bound": space.low.copy(), "high_bound": space.high.copy()}
        return {"shape": space.shape, "dtype": "continuous", **bounds}
    if isinstance(space, spaces.Discrete):
        info = {"shape": (int(space.n),), "dtype": "int", "n": int(space.n)}
    elif isinstance(space, spaces.MultiDiscrete):
        info = {"shape": space.shape, "dtype": "int", "n": space.nvec.copy()}
    else:
        raise SpaceError(
            f"Expected a Box, a Discrete or a MultiDiscrete space, but {space!r:.80} came. Bring it into one of these: "
            "wrappers=[gymnasium.wrappers.FlattenObservation] flattens observations."
        )
    start = getattr(space, "start", 0)
    return {**info, "start": start} if np.any(start) else info


def space_of_info(info: Mapping[str, Any], *, is_action: bool) -> spaces.Space[Any]:
    """The space that such a dict means; the inverse of `info_of_space`.

    Args:
        info: with "shape" and "dtype"; "low_bound" and "high_bound", "n" and "start" where it has them.
        is_action: whether it is of actions. Integers without "n" are choices then, as many as "shape" says; of states,
            they are any integers.

    Raises:
        SpaceError: one of the two is missing, or another dtype.
    """
    missing = {"shape", "dtype"} - set(info)
    if missing:
        raise SpaceError(f"Expected a dict with 'shape' and 'dtype', but {sorted(missing)} is missing in {dict(info)}.")
    shape, dtype = tuple(np.atleast_1d(np.array(info["shape"], int)).tolist()), info["dtype"]
    if dtype in _CONTINUOUS_NAMES or (dtype not in _DISCRETE_NAMES and _dtype_kind(dtype) == "f"):
        return _box(info, shape, None if dtype in _CONTINUOUS_NAMES else np.dtype(dtype))
    if dtype not in _DISCRETE_NAMES and _dtype_kind(dtype) not in "iu":
        raise SpaceError(f"Expected the dtype 'continuous' or 'int', or one of NumPy's, but {dtype!r} came.")
    if "n" not in info and not (is_action and len(shape) == 1):
        return _box(info, shape, np.dtype(np.int64 if dtype in _DISCRETE_NAMES else dtype))
    n, start = info.get("n", shape[0] if shape else None), info.get("start", 0)
    if np.ndim(n):
        return spaces.MultiDiscrete(np.asarray(n), start=np.broadcast_to(start, np.shape(n)))
    return spaces.Discrete(int(n), start=int(start))  # pyright: ignore[reportArgumentType] - a number where it has no dimensions


def _dtype_kind(dtype: Any) -> str:
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return "?"


def _box(info: Mapping[str, Any], shape: tuple[int, ...], dtype: Any) -> spaces.Box:
    """Numbers; of no dtype that is said, they have that of their bounds, or all of NumPy's digits."""
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


def to_space_action(action: Any, space: spaces.Space[Any]) -> Any:
    """An action as its space has it: an int for a Discrete one, else an array of its dtype and shape.

    Raises:
        SpaceError: another number of elements, or none at all.
    """
    shape: Any = space.shape
    array = np.asarray(action)
    if array.size != math.prod(shape) or array.dtype.kind not in "fiub":
        raise SpaceError(f"Expected an action in {space}, but {action!r:.80} came, of shape {array.shape}.")
    if isinstance(space, spaces.Discrete):
        return int(array.item())
    return array.astype(space.dtype, copy=False).reshape(shape)
