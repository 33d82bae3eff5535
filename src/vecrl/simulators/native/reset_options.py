"""Reads gymnasium's reset options of the native tasks. This module knows no tasks."""

from __future__ import annotations

from ...engine.simulator import ResetOptions
from ...errors import SpaceError


def start_bounds(options: ResetOptions, low: float, high: float) -> tuple[float, float]:
    """Returns `options["low"]` and `options["high"]`, or the defaults.

    Raises:
        SpaceError: an option is not a number, or the first is greater than the second.
    """
    low, high = option_number(options, "low", low), option_number(options, "high", high)
    if low > high:
        raise SpaceError(f"Expected options['low'] to be at most options['high'], got {low} and {high}.")
    return low, high


def option_number(options: ResetOptions, name: str, default: float) -> float:
    """Returns `options[name]` as a float, or `default`.

    Raises:
        SpaceError: it is not a number.
    """
    try:
        return float(options.get(name, default))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"Expected options[{name!r}] to be a number, got {options[name]!r}.") from error
