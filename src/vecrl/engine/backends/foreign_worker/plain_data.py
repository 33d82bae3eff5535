"""Pickles plain data, for another interpreter that has other versions of the same libraries, or none of them.

This module needs only the standard library and NumPy, and runs on Python 3.7 or newer. The caller uses it too.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Callable

import numpy as np


class Method:
    """Stands in the caller for a method of an environment, which stays in its worker."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"<method {self.name} of an environment on another interpreter>"


def refuse(value: object) -> Any:
    """Raises a TypeError, since `value` is no plain data."""
    raise TypeError(
        f"Expected numbers, texts, arrays, spaces, or lists and dicts of them, got {type(value).__name__}. "
        "Only these can be sent to and from another interpreter."
    )


def as_text(value: object) -> Any:
    """Replaces a value by its text."""
    try:
        return "plain", repr(value)
    except Exception:
        return "plain", f"<{type(value).__name__}>"


def as_method(value: object) -> Any:
    """Replaces a method by a `Method`."""
    return ("method", getattr(value, "__name__", "")) if callable(value) else refuse(value)


class _Pickler(pickle.Pickler):
    """Pickles plain data; arrays, spaces and specs as descriptions, which do not depend on versions of libraries."""

    def __init__(self, file: io.BytesIO, fallback: Callable[[object], Any]):
        super().__init__(file, protocol=4)
        self._fallback = fallback

    def persistent_id(self, value: Any) -> Any:
        if value is None or type(value) in _PLAIN_TYPES:
            return None
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.kind in "OV":
                return "plain", value.tolist()
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            return kind, value.dtype.str, value.shape, value.tobytes()
        for cls in _PLAIN_TYPES:
            if isinstance(value, cls):  # a named tuple, an ordered dict, …
                return "plain", cls(value)
        if type(value).__name__ == "EnvSpec":
            return "spec", value.id, getattr(value, "max_episode_steps", None)
        for cls in type(value).__mro__:
            if cls.__name__ in _SPACES:
                return ("space", cls.__name__, *_SPACES[cls.__name__](value))
        return self._fallback(value)


_PLAIN_TYPES: Any = (bool, int, float, str, bytes, list, tuple, dict, set, complex)
_SPACES: dict[str, Callable[[Any], tuple[Any, ...]]] = {  # recognized by their names: several libraries have them
    "Box": lambda s: (np.asarray(s.low), np.asarray(s.high), tuple(s.shape), np.dtype(s.dtype).str),
    "Discrete": lambda s: (int(s.n), int(getattr(s, "start", 0))),
    "MultiDiscrete": lambda s: (np.asarray(s.nvec), np.dtype(s.dtype).str),
    "MultiBinary": lambda s: (s.n,),
    "Dict": lambda s: (list(s.spaces.items()),),
    "Tuple": lambda s: (list(s.spaces),),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, make: Callable[..., Any]):
        super().__init__(file)
        self._make = make

    def persistent_load(self, pid: Any) -> Any:
        kind, *values = pid
        if kind == "plain":
            return values[0]
        if kind in ("array", "scalar"):
            dtype, shape, data = values
            found = np.ndarray(shape, dtype, bytearray(data))
            return found if kind == "array" else found[()]
        return Method(*values) if kind == "method" else self._make(kind, *values)

    def find_class(self, module: str, name: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise pickle.UnpicklingError(f"Expected plain data, got an object of {module}.{name}.")


def dumps(value: object, fallback: Callable[[object], Any] = refuse) -> bytes:
    """Pickles plain data: None, numbers, texts, arrays, spaces, and lists, tuples and dicts of them.

    Args:
        value: the data.
        fallback: is called with any other object, and raises or returns what replaces it.

    Raises:
        TypeError: it contains another object.
    """
    file = io.BytesIO()
    _Pickler(file, fallback).dump(value)
    return file.getvalue()


def loads(data: bytes, make: Callable[..., Any] = refuse) -> Any:
    """Unpickles plain data. `make` makes a "space" or a "spec" from its description."""
    return _Unpickler(io.BytesIO(data), make).load()
