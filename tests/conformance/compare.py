"""Equality of whatever environments yield: kinds, dtypes, shapes and every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import GraphInstance


def assert_same(ours: Any, theirs: Any, path: str = "it") -> None:
    """Raise an AssertionError that says where the two differ."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), f"{path}: {type(ours)} instead of a dict"
        assert set(ours) == set(theirs), f"{path}: keys {sorted(ours)} instead of {sorted(theirs)}"
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(theirs, GraphInstance):
        assert isinstance(ours, GraphInstance), f"{path}: {type(ours)}"
        assert_same(tuple(ours), tuple(theirs), path)
    elif isinstance(theirs, tuple | list):
        assert type(ours) is type(theirs), f"{path}: {type(ours)} instead of {type(theirs)}"
        assert len(ours) == len(theirs), f"{path}: length {len(ours)} instead of {len(theirs)}"
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{path}[{index}]")
    elif isinstance(theirs, np.ndarray | np.generic):
        _assert_same_array(ours, theirs, path)
    else:
        assert ours == theirs, f"{path}: {ours!r} instead of {theirs!r}"


def _assert_same_array(ours: Any, theirs: Any, path: str) -> None:
    assert isinstance(ours, np.ndarray | np.generic), f"{path}: {type(ours)} instead of an array"
    assert ours.dtype == theirs.dtype, f"{path}: {ours.dtype} instead of {theirs.dtype}"
    assert ours.shape == theirs.shape, f"{path}: shape {ours.shape} instead of {theirs.shape}"
    if theirs.dtype == object:
        for index, pair in enumerate(zip(ours.tolist(), theirs.tolist(), strict=True)):
            assert_same(*pair, f"{path}[{index}]")
    else:
        assert ours.tobytes() == theirs.tobytes(), f"{path}: {ours} instead of {theirs}"
