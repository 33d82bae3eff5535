"""Digests of recorded trajectories: a short text for each stream.

A stream ("obs", "reward", ...) is hashed with its structure, dtypes and shapes. Floats are hashed as float32, since the
last bits of NumPy's float64 functions differ between CPUs. Trajectories from float32 arithmetic or from MuJoCo differ
in more bits. Their floats are not hashed: the norm and products with fixed weights are kept instead, and compared
within a tolerance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

TOLERANCE = 1e-4
"""How far a product with weights may be off, relative to the norm of the floats."""


class Trace:
    """The recorded values of each stream."""

    def __init__(self) -> None:
        self.streams: dict[str, list[Any]] = {}

    def add(self, **values: Any) -> None:
        """Appends a value to each named stream."""
        for name, value in values.items():
            self.streams.setdefault(name, []).append(value)

    def add_step(self, result: tuple[Any, ...]) -> None:
        """Appends the results of gymnasium's `step`."""
        obs, reward, terminated, truncated, info = result
        self.add(obs=obs, reward=reward, terminated=terminated, truncated=truncated, info=info)

    def add_tensordict(self, data: TensorDictBase) -> None:
        """Appends each entry to a stream of its own, and the batch size and names to "batch"."""
        self.add(batch=[list(data.batch_size), [str(name) for name in data.names]])
        for key in sorted(data.keys(True, True), key=str):
            self.add(**{key if isinstance(key, str) else ".".join(key): data.get(key)})


@dataclass(frozen=True, slots=True)
class Digest:
    """The texts of all streams: `exact` with all floats, `loose` with products instead."""

    exact: dict[str, str]
    loose: dict[str, list[Any]]


def digest(trace: Trace) -> Digest:
    """Hashes the streams of a trajectory."""
    exact, loose = {}, {}
    for name, values in sorted(trace.streams.items()):
        everything, remaining, floats = hashlib.sha256(), hashlib.sha256(), []
        for path, leaf in _leaves(values):
            form = f"{path}:{leaf.dtype}:{leaf.shape};".encode()
            array = leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf
            everything.update(form + _bytes(array))
            if array.dtype.kind == "f":
                finite = np.isfinite(array)
                remaining.update(form + finite.tobytes())
                floats.append(np.where(finite, array, 0).astype(np.float64).ravel())
            else:
                remaining.update(form + _bytes(array))
        exact[name] = everything.hexdigest()[:16]
        loose[name] = [remaining.hexdigest()[:16], *_products(np.concatenate(floats))] if floats else [exact[name]]
    return Digest(exact, loose)


def written(digests: Digest, exact: bool) -> dict[str, Any]:
    """Returns the text that is kept of a trajectory."""
    return dict(digests.exact if exact else digests.loose)


def differences(frozen: Mapping[str, Any], found: Digest, exact: bool) -> list[str]:
    """Returns the streams that differ from the kept ones, and how."""
    actual = written(found, exact)
    message_text = [f"{name}: only frozen" for name in frozen.keys() - actual.keys()]
    message_text += [f"{name}: new" for name in actual.keys() - frozen.keys()]
    for name in frozen.keys() & actual.keys():
        why = _difference(frozen[name], actual[name])
        message_text += [f"{name}: {why}"] if why else []
    return sorted(message_text)


def text(entries: Mapping[str, Any]) -> str:
    """Returns entries as JSON, one line per stream."""
    lines = []
    for key in sorted(entries):
        streams = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(entries[key].items())]
        lines.append(f"  {json.dumps(key)}: {{\n" + ",\n".join(streams) + "\n  }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _difference(frozen: Any, found: Any) -> str | None:
    if isinstance(frozen, str) or isinstance(found, str):
        return None if frozen == found else "other values, dtypes, shapes or keys"
    if frozen[0] != found[0] or len(frozen) != len(found):
        return "other structure, dtypes, shapes, flags or whole numbers"
    norm = frozen[1] if len(frozen) > 1 else 0.0
    worst = max((abs(a - b) for a, b in zip(frozen[1:], found[1:], strict=True)), default=0.0)
    return None if worst <= TOLERANCE * norm else f"floats differ by {worst / (norm or 1):.1e} of their norm"


def _products(floats: np.ndarray) -> list[float]:
    """Returns the norm, and the products with three rows of fixed weights."""
    places = np.arange(1, len(floats) + 1)
    weights = [np.cos(places * step) for step in (1.0, 0.37, 2.1)]
    return [float(f"{value:.9g}") for value in (np.linalg.norm(floats), *(floats @ row for row in weights))]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Returns the arrays and tensors in a tree with their paths; numbers, strings and None as arrays of one value."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{path}/{index}")
    elif isinstance(value, torch.Tensor):
        yield path, value
    else:
        yield path, np.asarray("none" if value is None else value)


def _bytes(array: np.ndarray) -> bytes:
    if array.dtype.kind == "f":
        array = array.astype(np.float32) + np.float32(0)  # turns negative zeros into zeros
        array = np.where(np.isnan(array), np.float32(np.nan), array)
    return np.ascontiguousarray(array).tobytes()
