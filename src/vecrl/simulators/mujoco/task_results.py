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
    array = _as_array(values)
    if array is None or not _fits(array.shape, shape) or not np.can_cast(array.dtype, dtype, "same_kind"):
        sizes = ", ".join("k" if size is None else str(size) for size in shape)
        raise SpaceError(
            f"Expected `{name}` of the task to return an array of shape ({sizes}{',' * (len(shape) == 1)}) and dtype "
            f"{np.dtype(dtype)}, rows first, got {_described(values, array)}"
        )
    return array.astype(dtype)


def _fits(found: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return found == expected or (
        len(found) == len(expected) and all(size in (None, other) for size, other in zip(expected, found, strict=True))
    )


def _as_array(values: Any) -> np.ndarray | None:
    """Returns `values` as an array; None if its items have different shapes."""
    try:
        return np.asarray(values)
    except ValueError:
        return None


def _described(values: Any, array: np.ndarray | None) -> str:
    if array is not None:
        return f"shape {array.shape} and dtype {array.dtype}."
    shapes = ", ".join(dict.fromkeys(map(_shape_of, values)))
    return f"{len(values)} items of different shapes: {shapes}. Make them equal."


def _shape_of(values: Any) -> str:
    array = _as_array(values)
    return "items of different shapes" if array is None else str(array.shape)


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
        array = _as_array(values)
        if array is None or array.shape[:1] != (count,) or array.dtype.kind not in "biuf":
            raise SpaceError(
                f"Expected the info {name!r} of `reward` to have {count} rows of numbers, got "
                f"{_described(values, array)}"
            )
        copies[name] = array.copy()
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
