"""Scales states from the bounds of their space to [-1, 1]. Knows arrays, not environments."""

from __future__ import annotations

import numpy as np

from ..errors import SpaceError

_UNBOUNDED = {
    "f": float(np.finfo(np.float32).max),
    "i": 2**31 - 1,
    "u": 2**32 - 1,
}  # some environments declare these values instead of no bound
_MAX_LISTED = 5


class MinMaxScaler:
    """Maps `[low, high]` to `[-1, 1]` in each dimension, and to 0 if `low` equals `high`.

    Args:
        low, high: arrays of the states' shape and dtype.

    Raises:
        SpaceError: a bound is infinite; the message names the dimensions.

    >>> scaler = MinMaxScaler(np.array([0.0, -3.0]), np.array([10.0, 3.0]))
    >>> scaler(np.array([0.0, 3.0])).tolist()
    [-1.0, 1.0]
    """

    def __init__(self, low: np.ndarray, high: np.ndarray):
        limit = _UNBOUNDED[low.dtype.kind]
        low, high = low.astype(np.float64), high.astype(np.float64)
        is_unbounded = ~((np.abs(low) < limit) & (np.abs(high) < limit))
        if is_unbounded.any():
            unbounded_indices = [tuple(index) for index in np.argwhere(is_unbounded).tolist()]
            descriptions = [
                f"{_format_index(index)} (from {low[index]:g} to {high[index]:g})"
                for index in unbounded_indices[:_MAX_LISTED]
            ]
            rest_text = (
                f" and {len(unbounded_indices) - _MAX_LISTED} more" if len(unbounded_indices) > _MAX_LISTED else ""
            )
            raise SpaceError(
                "Expected finite bounds for fixed_normalize_states, got none for dimension "
                f"{', '.join(descriptions)}{rest_text} of the state. Use running_normalize_states instead."
            )
        self._center = (low + high) / 2
        half_range = (high - low) / 2
        self._scale = np.divide(1.0, half_range, out=np.zeros_like(half_range), where=half_range > 0)

    def __call__(self, state: np.ndarray) -> np.ndarray:
        """Returns a new array of the state's floating dtype, or float32 for integers."""
        return ((state - self._center) * self._scale).astype(float_dtype(state.dtype))


def float_dtype(dtype: np.dtype | None) -> np.dtype:
    """Returns the dtype itself if it is floating, else float32.

    >>> float_dtype(np.dtype("uint8")), float_dtype(np.dtype("float64"))
    (dtype('float32'), dtype('float64'))
    """
    return dtype if dtype is not None and dtype.kind == "f" else np.dtype(np.float32)


def _format_index(index: tuple[int, ...]) -> str:
    return str(index[0]) if len(index) == 1 else str(index)
