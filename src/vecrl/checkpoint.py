"""Saves environments, policies, optimizers, statistics, searches and values in one file, and restores them.

The file contains data only: reading it imports, unpickles and calls nothing that the file names. Writing is atomic.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypedDict, TypeGuard

import numpy as np

from .errors import CheckpointError, StateError, VecrlError
from .snapshot import Stateful, capture, restore
from .snapshot.atomic_write import write_atomically
from .snapshot.handlers.base import is_instance_of_library
from .snapshot.restore import Allowed
from .snapshot.serialization import dump, read

__all__ = ["GlobalGenerators", "load", "save"]


class _Entry(TypedDict):
    """One entry of a file: its data, and how they are restored ("value", "state", "state_dict" or "object")."""

    kind: str
    data: Any


_KINDS = ("value", "state", "state_dict", "object")
_SETTERS = {"state": "set_state", "state_dict": "load_state_dict"}
_VALUES = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, np.ndarray, np.generic)
_NEEDS_OBJECT = (
    "object",
    "own",
    "enum",
    "not_stored",
    "method",
)  # nodes that need an existing object to be restored into


def save(path: str | os.PathLike[str], /, **objects: object) -> None:
    """Writes the states of `objects`, by name, to one file; an existing file is replaced atomically or not at all.

    Args:
        path: the file. A temporary file in the same folder is written first.
        objects: what is saved depends on the kind:
            environments of any dialect, `gymnasium` environments and wrappers: their states;
            objects with `state_dict` and `load_state_dict` (modules, optimizers, statistics, searches): that dict;
            generators of NumPy, torch and `random`: their states;
            numbers, text, arrays, tensors, TensorDicts and containers of these: their values.

    Raises:
        StateError: an object's state cannot be captured; the message names the object and says what to do.
        OSError: the file cannot be written; an existing file is unchanged.

    >>> import tempfile
    >>> import gymnasium
    >>> env = gymnasium.make("CartPole-v1")
    >>> _ = env.reset(seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/run.ckpt", env=env, steps=7)
    ...     before = env.step(0)[0]
    ...     loaded = load(f"{folder}/run.ckpt", env=env)
    >>> loaded["steps"], (env.step(0)[0] == before).all()
    (7, np.True_)
    """
    path = _checked_path(path)
    entries = {name: _entry(name, value) for name, value in objects.items()}
    try:
        pieces = dump(entries)
    except StateError as error:
        raise StateError(f"The objects cannot be saved: {error}") from error
    write_atomically(path, pieces)


def _checked_path(path: str | os.PathLike[str]) -> Path:
    """Returns a path; raises a TypeError if it is none."""
    try:
        return Path(path)
    except TypeError as error:
        raise TypeError(f"Expected path to be the path of a file, got {path!r:.80}.") from error


def load(path: str | os.PathLike[str], /, *, allow: Allowed = (), **objects: object) -> dict[str, Any]:
    """Restores the states of `objects` from a file, by name, and returns all entries of the file.

    Args:
        path: a file that `save` wrote.
        allow: classes (or their full names) that may be instantiated in environments, in addition to the classes that
            their objects already have.
        objects: created in the same way as the objects that were saved. A subset of them is enough.

    Returns:
        All entries of the file by name: for each name in `objects` that object, for the others the value or the state
        as plain data.

    Raises:
        CheckpointError: the file was not written by `save`, has another version, is truncated or damaged, or has no
            entry of that name; no object was changed.
        StateError: an object is of another kind; no object was changed. Or a state does not fit its object; objects
            before it are restored already.
        OSError: the file cannot be opened.
    """
    path, allow = _checked_path(path), list(allow)
    entries = read(path)
    if not _are_entries(entries):
        raise CheckpointError(
            f"Expected {path} to contain objects by name, got other data. Give a file that vecrl.checkpoint.save wrote."
        )
    for name, value in objects.items():
        _check(name, value, entries, path)
    return {
        name: _restore(name, entry, objects[name], allow, path) if name in objects else _value(name, entry, path)
        for name, entry in entries.items()
    }


def _entry(name: str, value: Any) -> _Entry:
    try:
        if isinstance(value, Stateful):
            return {"kind": "state", "data": value.get_state()}
        has_state_dict = all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
        if has_state_dict and not _is_value(value):
            return {"kind": "state_dict", "data": value.state_dict()}
        state = capture(value)
    except StateError as error:
        raise StateError(f"{name!r} cannot be saved: {error}") from error
    if not _is_value(value):
        if isinstance(value, FunctionType | BuiltinFunctionType | type) or type(value) is object:
            raise StateError(
                f"Expected {name!r} to have a state, got {value!r:.80}. Do not save it; create it again instead."
            )
        return {"kind": "object", "data": state}
    if unsupported := next((node for node in state["nodes"] if node["is"] in _NEEDS_OBJECT), None):
        description = unsupported.get("of", "something that is code, a file or a window")
        raise StateError(
            f"Expected {name!r} to be plain data, got a value that contains {description}. "
            "Save that object under its own name."
        )
    return {"kind": "value", "data": state}


def _is_value(value: object) -> bool:
    kind = type(value)
    tensors = is_instance_of_library(kind, "torch", "Tensor", "Size") or is_instance_of_library(
        kind, "tensordict", "TensorDictBase", "NonTensorData"
    )
    return isinstance(value, _VALUES) or tensors


def _are_entries(data: object) -> TypeGuard[dict[str, _Entry]]:
    """Whether the data of a file are entries by name."""
    return isinstance(data, dict) and all(
        isinstance(entry, dict) and entry.get("kind") in _KINDS and "data" in entry for entry in data.values()
    )


def _check(name: str, value: object, entries: Mapping[str, _Entry], path: Path) -> None:
    """Checks that the file has the state of an object that can be restored into `value`."""
    if name not in entries:
        raise CheckpointError(
            f"Expected {path} to contain {name!r}, got {', '.join(entries) or 'no entries'}. "
            "Give only names that it has."
        )
    kind = entries[name]["kind"]
    if kind == "value":
        raise CheckpointError(
            f"Expected {name!r} in {path} to be the state of an object, got a value. "
            "Do not give it to load, which returns values."
        )
    if kind in _SETTERS and not hasattr(value, _SETTERS[kind]):
        raise StateError(
            f"Expected an object with {_SETTERS[kind]} for {name!r} in {path}, got {type(value).__name__}. "
            "Give an object like the one that was saved."
        )


def _value(name: str, entry: _Entry, path: Path) -> object:
    if entry["kind"] != "value":
        return entry["data"]
    try:
        return restore(None, entry["data"])
    except Exception as error:  # damaged data make NumPy, torch and Python raise any exception
        raise CheckpointError(f"{name!r} in {path} is damaged: {type(error).__name__}: {error}") from error


def _restore(name: str, entry: _Entry, value: Any, allow: Allowed, path: Path) -> object:
    try:
        if entry["kind"] == "object":
            if restore(value, entry["data"], allow=allow) is not value:
                raise StateError(f"expected an object of the kind that was saved, got {type(value).__name__}.")
            return value
        if entry["kind"] == "state":
            value.set_state(entry["data"], allow=allow)
        else:
            value.load_state_dict(entry["data"])
    except Exception as error:  # load_state_dict of other libraries may raise anything
        if isinstance(error, VecrlError) and not isinstance(error, StateError):
            raise
        raise StateError(f"{name!r} in {path} does not fit the object given: {error}") from error
    return value


class GlobalGenerators:
    """The global generators of the process: those of `random`, `numpy.random` and torch on all its devices.

    After a `load`, numbers drawn from them (by `torch.randn` or a policy that samples, for example) continue as after
    the `save`. No environment saves them, since they belong to the process.

    >>> state = GlobalGenerators().state_dict()
    >>> number = random.random()
    >>> GlobalGenerators().load_state_dict(state)
    >>> random.random() == number
    True
    """

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of all generators as plain data."""
        version, words, gauss = random.getstate()
        state: dict[str, Any] = {
            "random": [version, np.array(words, np.uint64), gauss],
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        }
        if (torch := sys.modules.get("torch")) is not None:
            state["torch"] = torch.get_rng_state()
            state["cuda"] = list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else []
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; generators of devices that do not exist here are skipped."""
        version, words, gauss = state["random"]
        random.setstate((version, tuple(words.tolist()), gauss))
        np.random.set_state(state["numpy"])  # noqa: NPY002
        if "torch" in state and (torch := sys.modules.get("torch")) is not None:
            torch.set_rng_state(state["torch"])
            for device, generator_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(generator_state, device)
