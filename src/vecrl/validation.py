"""Checks of arguments that recur in constructors, so that the same mistake gets the same message everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sized
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from .errors import SpaceError
from .imports import require_extra

if TYPE_CHECKING:
    import torch


def normalize_device(device: Any) -> Any:
    """Returns a device of torch or its name, without the index of a CPU.

    To torch, "cpu:0" is another device than "cpu", where its tensors are.

    >>> normalize_device("cpu:0"), normalize_device("cuda:1")
    ('cpu', 'cuda:1')
    """
    return "cpu" if re.fullmatch(r"cpu(:\d+)?", str(device)) else device


def parse_device(device: torch.device | str | int) -> torch.device:
    """Returns a device of torch, that of a CPU without an index.

    Raises:
        SpaceError: there is no such kind of device, or torch finds none here.
        VersionError: torch is not installed.

    >>> parse_device("cpu:0")
    device(type='cpu')
    """
    require_extra("torch", "devices")
    import torch

    try:
        parsed = torch.device(normalize_device(device))
    except (RuntimeError, TypeError) as error:
        hint = " A shape of several dimensions is a tuple." if isinstance(device, int) else ""
        raise SpaceError(f"Expected a device, such as 'cpu' or 'cuda:0', got {device!r:.80}.{hint}") from error
    is_available = getattr(getattr(torch, parsed.type, None), "is_available", None)  # such as torch.cuda.is_available
    if is_available is not None and not is_available():
        raise SpaceError(
            f"Expected a device of this machine, got {str(parsed)!r}: torch {torch.__version__} finds no "
            f"{parsed.type} device. Choose 'cpu', or install the driver and a torch that supports it."
        )
    return parsed


def parse_int(name: str, value: object, least: int | None = None, *, error: type[Exception] = ValueError) -> int:
    """Returns an integer, such as a dimension or an index, as an int.

    Args:
        name: the name of the argument in the message.
        value: an integer; a float without a fraction is one too, and an array or tensor without dimensions of one of
            them; a bool is not.
        least: the least number that is allowed; None for any.
        error: the class of the error.

    Raises:
        Exception: (of the class `error`) `value` is not such a number.

    >>> parse_int("dim", -2.0)
    -2
    """
    return _parse_int(name, value, least, "", error)


def parse_count(name: str, value: object, *, error: type[Exception] = ValueError) -> int:
    """Returns a number of things, at least 1, as an int.

    Args:
        name, value, error: as for `parse_int`.

    Raises:
        Exception: (of the class `error`) `value` is not such a number.

    >>> parse_count("steps", 1e3)
    1000
    """
    return _parse_int(name, value, 1, "", error)


def parse_optional_count(name: str, value: object, *, error: type[Exception] = ValueError) -> int | None:
    """Returns None for None, and otherwise the number that `parse_count` returns."""
    return None if value is None else _parse_int(name, value, 1, ", or None", error)


def _parse_int(name: str, value: object, least: int | None, alternative: str, error: type[Exception]) -> int:
    smallest = -(2**63) if least is None else least
    scalar = scalar_of(value)
    if is_number(scalar) and smallest <= scalar < 2**63:
        number = int(scalar)
        if number == scalar:
            return number
    limit = "" if least is None else f" of {least} or more"
    raise error(f"Expected {name} to be an int{limit}{alternative}, got {value!r:.80}.")


def scalar_of(value: Any) -> Any:
    """Returns the element of an array or tensor without dimensions; any other value unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value is a number of Python or NumPy, and no bool."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def parse_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns a number in [low, high] as a float.

    Raises:
        ValueError: `value` is no such number.

    >>> parse_number("gamma", 1, 0, 1)
    1.0
    """
    scalar = scalar_of(value)
    if is_number(scalar) and low <= scalar <= high:
        return float(scalar)
    limits = f" from {low:g} to {high:g}"
    if math.inf in (-low, high):
        limits = f" of {low:g} or more" if low > -math.inf else f" of {high:g} or less" if high < math.inf else ""
    raise ValueError(f"Expected {name} to be a number{limits}, got {value!r:.80}.")


def check_seconds(name: str, value: Any) -> None:
    """Raises a `ValueError` unless `value` is None or above 0."""
    if value is None:
        return
    if not is_number(value) or not value > 0:
        raise ValueError(f"Expected {name} to be a number of seconds above 0, or None, got {value!r}.")


def check_choice(name: str, value: object, choices: Iterable[object], advice: str = "") -> None:
    """Raises a `ValueError` unless `value` is one of `choices`.

    >>> check_choice("color", "blue", ["red", "green"], " Paint it.")
    Traceback (most recent call last):
        ...
    ValueError: Expected color to be 'red' or 'green', got 'blue'. Paint it.
    """
    choices = list(choices)
    if np.ndim(value) or value not in choices:  # pyright: ignore[reportArgumentType] -- an array equals none
        *names, last = map(repr, choices)
        expected = f"{', '.join(names)} or {last}" if names else last
        raise ValueError(f"Expected {name} to be {expected}, got {value!r:.80}.{advice}")


def check_flag(name: str, value: object) -> None:
    """Raises a `ValueError` unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"Expected {name} to be True or False, got {value!r:.80}.")


def check_text(name: str, value: object) -> None:
    """Raises a `ValueError` unless `value` is a string."""
    if not isinstance(value, str):
        raise ValueError(f"Expected {name} to be a string, got {value!r:.80}.")


def check_callable(name: str, value: object) -> None:
    """Raises a `ValueError` unless `value` can be called."""
    if not callable(value):
        raise ValueError(f"Expected {name} to be a function, got {value!r:.80}.")


def check_names(name: str, value: object, kind: str) -> None:
    """Raises a `ValueError` unless `value` is a sequence of the names of things of a kind.

    >>> check_names("preload", "numpy", "modules")
    Traceback (most recent call last):
        ...
    ValueError: Expected preload to be a list of names of modules, got 'numpy'. Give ['numpy'].
    """
    items: Any = value if isinstance(value, Collection) and not isinstance(value, str) else None
    if items is None or not all(isinstance(item, str) for item in items):
        advice = f" Give [{value!r}]." if isinstance(value, str) else ""
        raise ValueError(f"Expected {name} to be a list of names of {kind}, got {value!r:.80}.{advice}")


def check_length(name: str, values: Sized | None, count: int) -> None:
    """Raises a `SpaceError` unless `values` is None or has one item for each of `count` environments."""
    if values is not None and len(values) != count:
        raise SpaceError(f"Expected {count} {name}, one per environment, got {len(values)}.")


def check_callables(expected: str, functions: Iterable[object], advice: str) -> None:
    """Raises a `SpaceError` that names the first item of `functions` that cannot be called."""
    for index, function in enumerate(functions):
        if not callable(function):
            raise SpaceError(f"Expected {expected}, got {type(function).__name__} as item {index}. {advice}")


def check_seed(seed: object) -> None:
    """Raises a `SpaceError` if a seed is a bool, or an integer below 0. None and other types are not checked.

    >>> check_seed(-1)
    Traceback (most recent call last):
        ...
    vecrl.errors.SpaceError: Expected a seed of 0 or more, got -1.
    """
    if isinstance(seed, bool | np.bool_):
        raise SpaceError(f"Expected a seed to be an int of 0 or more, or None, got {seed!r}.")
    if isinstance(seed, int | np.integer) and seed < 0:
        raise SpaceError(f"Expected a seed of 0 or more, got {seed}.")


def check_seeds(seeds: Iterable[int | None]) -> None:
    """Raises a `SpaceError` unless each seed is None or at least 0 and less than 2**64.

    >>> check_seeds([3, None, 2**64])
    Traceback (most recent call last):
        ...
    vecrl.errors.SpaceError: Expected seeds less than 2**64, got 18446744073709551616.
    """
    for seed in seeds:
        check_seed(seed)
        if seed is not None and seed >= 2**64:
            raise SpaceError(f"Expected seeds less than 2**64, got {seed!r}.")


def check_discrete(actions: Any, space: Any, owner: str, ids: Any = None, place: str = "") -> None:
    """Raises a `SpaceError` unless all actions are elements of a Discrete or MultiDiscrete space.

    Args:
        actions: integers `[m, ...]`, an array or a tensor.
        space: the space.
        owner: the name of the simulator in the message.
        ids: `[m]`, the environments; None for 0 to m - 1.
        place: " at NAME" in the message, where the space is NAME of another one.

    >>> from gymnasium.spaces import Discrete
    >>> check_discrete(np.array([0, 7]), Discrete(2), "CartPole-v1")
    Traceback (most recent call last):
        ...
    vecrl.errors.SpaceError: Expected actions from 0 to 1 for CartPole-v1, got [7] for the environments [1].
    """
    low = space.start
    high = low + (space.n if hasattr(space, "n") else space.nvec) - 1
    outside = (actions < low) | (actions > high)
    if outside.any():
        rows = [row for row, is_outside in enumerate(outside.reshape(len(outside), -1).any(1).tolist()) if is_outside]
        values = [actions[row].tolist() for row in rows[:5]]
        env_ids = [int(row if ids is None else ids[row]) for row in rows[:5]]
        raise SpaceError(
            f"Expected actions from {low.tolist()} to {high.tolist()}{place} for {owner}, got {values} for the "
            f"environments {env_ids}."
        )
