"""Saves environments, policies, optimisers, statistics, searches and values in one file, and restores them.

What is in the file is data and nothing else: reading it imports, unpickles and calls nothing that the file names. A
file is written whole or not at all.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from .errors import CheckpointError, StateError, VecrlError
from .snapshot import Stateful, capture, restore
from .snapshot.atomic_write import write_atomically
from .snapshot.handlers.torch import is_instance_of_library
from .snapshot.restore import Allowed
from .snapshot.serialization import dump, parse

__all__ = ["GlobalGenerators", "load", "save"]

_VALUES = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, np.ndarray, np.generic)
_NEEDS_OBJECT = ("object", "own", "enum", "left", "method")  # what only an object that is there can be put back into


def save(path: str | os.PathLike[str], /, **objects: Any) -> None:
    """Write the state of `objects`, each by its name, to one file, which is replaced as a whole or stays as it is.

    Args:
        path: the file. Drafts lie beside it while they are written.
        objects: of each of these kinds what it has:
            environments of any dialect, `gymnasium` environments and wrappers: their states;
            what has `state_dict` and `load_state_dict` (modules, optimisers, statistics, searches): that;
            generators of NumPy, torch and `random`: where they are;
            numbers, text, arrays, tensors, TensorDicts and containers of these: themselves.

    Raises:
        StateError: something has no state that can be had; names it and says what to do.
        OSError: the file cannot be written; what was there is unharmed.

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
    entries = {name: _entry(name, value) for name, value in objects.items()}
    try:
        pieces = dump(entries)
    except StateError as error:
        raise StateError(f"What was to be saved cannot be held: {error}") from error
    write_atomically(path, pieces)


def load(path: str | os.PathLike[str], /, *, allow: Allowed = (), **objects: Any) -> dict[str, Any]:
    """Restore `objects` to what the file says by their names.

    Args:
        path: a file that `save` wrote.
        allow: classes (or their full names) that environments may have objects of, beside those that they have.
        objects: made as those were that were saved. Some of them will do.

    Returns:
        All that is in the file, by name: `objects` as they are given, and of everything else the value or the plain
        data of its state.

    Raises:
        CheckpointError: the file is none of `save`'s, of another version, cut short or damaged, or has nothing of that
            name; nothing was changed.
        StateError: an object of another kind; nothing was changed. Or a state does not fit the object, which was made
            otherwise; those named before it are restored.
        OSError: the file cannot be opened.
    """
    path, allow = Path(path), list(allow)
    entries = parse(path.read_bytes(), str(path))
    _check(entries, objects, path)
    return {
        name: _restore(name, entry, objects[name], allow, path) if name in objects else _value(entry)
        for name, entry in entries.items()
    }


def _entry(name: str, value: Any) -> dict[str, Any]:
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
            raise StateError(f"{name!r} cannot be saved: {value!r:.80} has no state. Leave it out, and make it again.")
        return {"kind": "object", "data": state}
    if unsupported := next((node for node in state["nodes"] if node["is"] in _NEEDS_OBJECT), None):
        description = unsupported.get("of", "something that is code, a file or a window")
        raise StateError(
            f"{name!r} cannot be saved as a value, since it holds {description}: give that by a name of its own."
        )
    return {"kind": "value", "data": state}


def _is_value(value: Any) -> bool:
    kind = type(value)
    tensors = is_instance_of_library(kind, "torch", "Tensor", "Size") or is_instance_of_library(
        kind, "tensordict", "TensorDictBase", "NonTensorData"
    )
    return isinstance(value, _VALUES) or tensors


def _check(entries: Any, objects: Mapping[str, Any], path: Path) -> None:
    kinds = ("value", "state", "state_dict", "object")
    if not isinstance(entries, dict) or not all(
        isinstance(entry, dict) and entry.get("kind") in kinds and "data" in entry for entry in entries.values()
    ):
        raise CheckpointError(f"{path} holds other data than objects by name, as vecrl.checkpoint.save writes them.")
    for name in objects:
        if name not in entries:
            raise CheckpointError(f"{path} holds no {name!r}; it holds {', '.join(entries) or 'nothing'}.")
        if entries[name]["kind"] == "value":
            raise CheckpointError(f"{path} holds {name!r} as a value, which load returns: do not give it.")
        method = {"state": "set_state", "state_dict": "load_state_dict"}.get(entries[name]["kind"])
        if method is not None and not hasattr(objects[name], method):
            kind = type(objects[name]).__name__
            raise StateError(
                f"{name!r} in {path} is the state of something that has {method}, but {kind} came, which has not: give "
                "an object like the one that was saved."
            )


def _value(entry: Mapping[str, Any]) -> Any:
    return restore(None, entry["data"]) if entry["kind"] == "value" else entry["data"]


def _restore(name: str, entry: Mapping[str, Any], value: Any, allow: Allowed, path: Path) -> Any:
    try:
        if entry["kind"] == "object":
            if restore(value, entry["data"], allow=allow) is not value:
                raise StateError(f"it is of another kind, but {type(value).__name__} came.")
            return value
        if entry["kind"] == "state":
            value.set_state(entry["data"], allow=allow)
        else:
            value.load_state_dict(entry["data"])
    except Exception as error:  # whatever others' load_state_dict raise
        if isinstance(error, VecrlError) and not isinstance(error, StateError):
            raise
        raise StateError(f"{name!r} in {path} does not fit the object given: {error}") from error
    return value


class GlobalGenerators:
    """The generators that belong to nobody: those of `random`, `numpy.random` and torch, on all its devices.

    What is drawn from them (by `torch.randn`, say, or a policy that samples) goes on after a `load` as it would have.
    They are the process's, so no environment saves them.

    >>> state = GlobalGenerators().state_dict()
    >>> number = random.random()
    >>> GlobalGenerators().load_state_dict(state)
    >>> random.random() == number
    True
    """

    def state_dict(self) -> dict[str, Any]:
        """Where all of them are, as plain data."""
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
        """Go on from what `state_dict` gave; generators of devices that are not there are passed over."""
        version, words, gauss = state["random"]
        random.setstate((version, tuple(words.tolist()), gauss))
        np.random.set_state(state["numpy"])  # noqa: NPY002
        if "torch" in state and (torch := sys.modules.get("torch")) is not None:
            torch.set_rng_state(state["torch"])
            for device, generator_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(generator_state, device)
