"""Equality of results of environments: array types, dtypes, shapes and all bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance


def assert_same(actual: Any, expected: Any, path: str = "it") -> None:
    """Raises an AssertionError that names the first difference between two values."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), f"{path}: {type(actual)} instead of a dict"
        assert set(actual) == set(expected), f"{path}: keys {sorted(actual)} instead of {sorted(expected)}"
        for key in expected:
            assert_same(actual[key], expected[key], f"{path}[{key!r}]")
    elif isinstance(expected, GraphInstance):
        assert isinstance(actual, GraphInstance), f"{path}: {type(actual)}"
        assert_same(tuple(actual), tuple(expected), path)
    elif isinstance(expected, tuple | list):
        assert type(actual) is type(expected), f"{path}: {type(actual)} instead of {type(expected)}"
        assert len(actual) == len(expected), f"{path}: length {len(actual)} instead of {len(expected)}"
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            assert_same(*pair, f"{path}[{index}]")
    elif isinstance(expected, np.ndarray | np.generic):
        _assert_same_array(actual, expected, path)
    else:
        assert actual == expected, f"{path}: {actual!r} instead of {expected!r}"


def _assert_same_array(actual: Any, expected: Any, path: str) -> None:
    assert isinstance(actual, np.ndarray | np.generic), f"{path}: {type(actual)} instead of an array"
    assert actual.dtype == expected.dtype, f"{path}: {actual.dtype} instead of {expected.dtype}"
    assert actual.shape == expected.shape, f"{path}: shape {actual.shape} instead of {expected.shape}"
    if expected.dtype == object:
        for index, pair in enumerate(zip(actual.tolist(), expected.tolist(), strict=True)):
            assert_same(*pair, f"{path}[{index}]")
    else:
        assert actual.tobytes() == expected.tobytes(), f"{path}: {actual} instead of {expected}"
