"""Comparisons of arrays and errors that the suites share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from ..engine.space_layout import Tree

E = TypeVar("E", bound=BaseException)
Arrays = dict[str, np.ndarray]
SEEDS = 11, 5, 2**31


def error_of(kind: type[E], function: Callable[..., object], *args: object) -> E:
    """Returns the error that `function(*args)` raises.

    Raises:
        AssertionError: it raises none.
    """
    try:
        function(*args)
    except kind as error:
        return error
    raise AssertionError(f"Expected {kind.__name__}, but nothing was raised.")


def same_tree(one: Tree, other: Tree) -> bool:
    """Returns whether two trees of dicts, tuples and arrays are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_tree(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same_tree, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other


def assert_equal_arrays(first: Sequence[Arrays], second: Sequence[Arrays], tolerance: float) -> None:
    """Raises AssertionError unless two sequences of named arrays are equal within `tolerance`; NaN equals NaN."""
    assert len(first) == len(second)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one.keys() == other.keys(), f"number {number} has {sorted(one)} and {sorted(other)}"
        for name, value in one.items():
            if value.dtype == object or not np.issubdtype(value.dtype, np.number):
                same = same_tree(value.tolist(), other[name].tolist())
            else:
                same = np.allclose(value, other[name], rtol=tolerance, atol=tolerance, equal_nan=True)
            assert same, f"{name} of result {number}: expected {other[name]}, got {value}"
