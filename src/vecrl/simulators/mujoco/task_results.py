"""Checks of what the functions of a `MujocoTask` return.

This module must not know how rows are stepped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import SpaceError


def checked_rows(name: str, values: Any, shape: tuple[int | None, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Returns a copy of an array that a function of the task returned.

    Args:
        name: the function's name, for messages.
        values: what it returned.
        shape: the expected shape; None for any size.
        dtype: of the copy.

    Raises:
        SpaceError: the array has another shape, or its dtype does not cast to `dtype`.
    """
    sizes = ", ".join("k" if size is None else str(size) for size in shape)
    expected = (
        f"Expected `{name}` of the task to return an array of shape ({sizes}{',' * (len(shape) == 1)}) and dtype "
        f"{np.dtype(dtype)}, rows first, got"
    )
    array = _as_array(values, expected)
    fits = array.ndim == len(shape) and all(
        size in (None, found) for size, found in zip(shape, array.shape, strict=True)
    )
    if not fits or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise SpaceError(f"{expected} shape {array.shape} and dtype {array.dtype}.")
    return array.astype(dtype)


def _as_array(values: Any, expected: str) -> np.ndarray:
    """Returns `values` as an array; if its items have different shapes, raises a `SpaceError` that names them."""
    try:
        return np.asarray(values)
    except ValueError as error:
        shapes = ", ".join(dict.fromkeys(map(_shape_of, values)))
        raise SpaceError(f"{expected} {len(values)} items of different shapes: {shapes}. Make them equal.") from error


def _shape_of(values: Any) -> str:
    try:
        return str(np.shape(values))
    except ValueError:
        return "items of different shapes"


def checked_reward(result: Any, count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns copies of the rewards `[count]` float64 and of the infos that `reward` returned.

    Raises:
        SpaceError: it did not return a tuple of an array and a dict, or an array has other sizes or no numbers.
    """
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise SpaceError(
            f"Expected `reward` of the task to return rewards and a dict of infos, got {type(result).__name__}."
        )
    rewards, infos = result
    copies: dict[str, np.ndarray] = {}
    for name, values in infos.items():
        expected = f"Expected the info {name!r} of `reward` to have {count} rows of numbers, got"
        array = copies[name] = _as_array(values, expected).copy()
        if array.shape[:1] != (count,) or array.dtype.kind not in "biuf":
            raise SpaceError(f"{expected} an array of shape {array.shape} and dtype {array.dtype}.")
    return checked_rows("reward", rewards, (count,), np.float64), copies


def checked_start(
    result: Any, positions: tuple[int, ...], velocities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns copies of the positions and velocities that `start` returned, of these shapes.

    Raises:
        SpaceError: it returned something else.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        kind = type(result).__name__
        raise SpaceError(f"Expected `start` of the task to return positions and velocities, got {kind}.")
    given_positions, given_velocities = result
    return (
        checked_rows("start", given_positions, positions, np.float64),
        checked_rows("start", given_velocities, velocities, np.float64),
    )
