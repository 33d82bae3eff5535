"""Comparisons that the suites share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def assert_equal_tensordicts(first: TensorDictBase, second: TensorDictBase, where: str) -> None:
    """Raises AssertionError unless both have the same entries with equal values; NaN equals NaN.

    Args:
        where: begins the message.
    """
    keys = {str(key) for key in first.keys(include_nested=True, leaves_only=True)}
    others = {str(key) for key in second.keys(include_nested=True, leaves_only=True)}
    assert keys == others, f"{where}: only one of them has {sorted(keys ^ others)}"
    for key in first.keys(include_nested=True, leaves_only=True):
        one, other = first.get(key), second.get(key)
        same = torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        assert same, f"{where}: {key} is {one} and {other}"


def seeded(seed: int, function: Callable[..., T], *args: Any) -> T:
    """Returns `function(*args)`, called after `torch.manual_seed(seed)`."""
    torch.manual_seed(seed)
    return function(*args)


def error_of(kind: type[E], function: Callable[..., Any], *args: Any) -> E:
    """Returns the error that `function(*args)` raises.

    Raises:
        AssertionError: it raises none.
    """
    try:
        function(*args)
    except kind as error:
        return error
    raise AssertionError(f"Expected {kind.__name__}, but nothing was raised.")
