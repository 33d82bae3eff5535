"""Captures and restores NumPy's arrays and random number generators, and those of `random`.

An array is replaced, since the existing one may have been returned as an observation. If its memory belongs to a
library, it is written into instead, since the library reads it. A view is restored as a view of the same array.
"""

from __future__ import annotations

import math
import random
from typing import TypeGuard

import numpy as np

from ...errors import StateError
from .base import Get, Node, Ref, Restored

_MOST_POOL = 1024  # words; NumPy mixes each with each


class Arrays:
    """Arrays of numbers, text, times and objects; read-only arrays stay read-only."""

    tag = "array"

    def matches(self, cls: type) -> bool:
        return cls is np.ndarray

    def capture(self, value: np.ndarray, ref: Ref) -> Node:
        node: Node = {} if value.flags.writeable else {"read_only": True}
        if value.dtype == object:
            return {**node, "items": [ref(item, "[…]") for item in value.ravel().tolist()], "shape": list(value.shape)}
        base = value.base
        if type(base) is np.ndarray and base.dtype != object and base.flags.c_contiguous and value.size:
            offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            geometry = {"shape": list(value.shape), "strides": list(value.strides), "dtype": np.empty(0, value.dtype)}
            return {**node, "base": ref(base, ".base"), "at": offset, **geometry}
        if value.flags.f_contiguous and not value.flags.c_contiguous:
            return {**node, "transposed": np.array(value.T, order="C")}
        return {**node, "value": np.array(value, order="C")}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        if "items" in node:
            return _objects(node, get)
        if "base" in node:
            return _view(node, old, get), None
        value = node["transposed"].T if "transposed" in node else node["value"]
        if not isinstance(value, np.ndarray):
            raise StateError(f"Expected an array in a state, got a {type(value).__name__}.")
        if (
            not node.get("read_only")
            and _has_writable_foreign_memory(old)
            and (old.shape, old.dtype, old.strides) == (value.shape, value.dtype, value.strides)
        ):
            return old, lambda: np.copyto(old, value)
        new = value.copy(order="K")
        new.flags.writeable = not node.get("read_only", False)
        return new, None


def _has_writable_foreign_memory(value: object) -> TypeGuard[np.ndarray]:
    """Whether an object is a writable array over memory that a library owns."""
    return type(value) is np.ndarray and value.flags.writeable and not isinstance(value.base, np.ndarray | None)


def _objects(node: Node, get: Get) -> Restored:
    if math.prod(node["shape"]) != len(node["items"]):
        raise StateError(f"Expected an array of {len(node['items'])} objects, got the shape {node['shape']!r:.80}.")
    new = np.empty(node["shape"], object)
    flat = new.reshape(-1)
    for index, item in enumerate(node["items"]):
        flat[index] = get(item)
    return new, None


def _view(node: Node, old: object, get: Get) -> np.ndarray:
    base = get(node["base"], old.base if type(old) is np.ndarray else None)
    shape, strides, dtype = tuple(node["shape"]), tuple(node["strides"]), node["dtype"].dtype
    if not isinstance(base, np.ndarray):
        raise StateError(f"Expected an array as the base of a view, got a {type(base).__name__}.")
    low = node["at"] + sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
    high = node["at"] + sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) + dtype.itemsize
    if low < 0 or high > base.nbytes:
        raise StateError("Expected a view within its base array, got one that exceeds it.")
    raw_bytes = base.reshape(-1).view(np.uint8)
    new = np.ndarray(shape, dtype, raw_bytes, node["at"], strides)
    if type(old) is np.ndarray and _is_same_view(old, new):
        return old
    new.flags.writeable = not node.get("read_only", False) and base.flags.writeable
    return new


def _is_same_view(a: np.ndarray, b: np.ndarray) -> bool:
    return a.__array_interface__ == b.__array_interface__


class Scalars:
    """NumPy's scalars."""

    tag = "scalar"

    def matches(self, cls: type) -> bool:
        return issubclass(cls, np.generic)

    def capture(self, value: np.generic, ref: Ref) -> Node:
        return {"value": np.array(value)}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        return node["value"][()], None


class Dtypes:
    """NumPy's dtypes."""

    tag = "dtype"

    def matches(self, cls: type) -> bool:
        return issubclass(cls, np.dtype)

    def capture(self, value: np.dtype, ref: Ref) -> Node:
        return {} if value.kind == "O" else {"value": np.empty(0, value)}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        return (node["value"].dtype if "value" in node else np.dtype(object)), None


_BIT_GENERATORS = {cls.__name__: cls for cls in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937)}
_BIT_GENERATORS |= {cls.__name__: cls for cls in (np.random.Philox, np.random.SFC64)}


class BitGenerators:
    """NumPy's bit generators: their position, and the seed sequence from which they spawn others."""

    tag = "bits"

    def matches(self, cls: type) -> bool:
        return issubclass(cls, np.random.BitGenerator)

    def capture(self, value: np.random.BitGenerator, ref: Ref) -> Node:
        return {"of": type(value).__name__, "state": value.state, "seed_sequence": _seed_sequence_state(value)}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        name, state = node["of"], node["state"]
        _check_positions(state)
        if isinstance(old, np.random.BitGenerator) and (name, node["seed_sequence"]) == (
            type(old).__name__,
            _seed_sequence_state(old),
        ):
            bits = old
        elif name in _BIT_GENERATORS:
            bits = _BIT_GENERATORS[name](_make_seed_sequence(node["seed_sequence"]))
        else:
            raise StateError(f"Expected one of NumPy's generators, {', '.join(_BIT_GENERATORS)}, got {name!r}.")

        def restore_state() -> None:
            bits.state = state

        return bits, restore_state


def _check_positions(state: Node) -> None:
    """Raises a `StateError` for a position outside the numbers drawn in advance, which NumPy would read unchecked."""
    inner = state.get("state")
    positions = {**state, **(inner if isinstance(inner, dict) else {})}
    for name, most in (("pos", 624), ("buffer_pos", 4)):
        value = positions.get(name, 0)
        if not (isinstance(value, int | np.integer) and 0 <= value <= most):
            raise StateError(f"Expected {name} of a random generator to be from 0 to {most}, got {value!r:.40}.")


def _seed_sequence_state(bits: object) -> Node | None:
    seeds = getattr(bits, "seed_seq", None)
    if not isinstance(seeds, np.random.SeedSequence):
        return None
    entropy = seeds.entropy
    entropy = [int(word) for word in entropy] if isinstance(entropy, list | tuple | np.ndarray) else entropy
    entropy = int(entropy) if isinstance(entropy, np.integer) else entropy
    key = [int(word) for word in seeds.spawn_key]
    return {"entropy": entropy, "key": key, "pool": int(seeds.pool_size), "children": int(seeds.n_children_spawned)}


def _make_seed_sequence(seed_state: Node | None) -> np.random.SeedSequence | None:
    if seed_state is None:
        return None
    if not (isinstance(seed_state["pool"], int) and seed_state["pool"] <= _MOST_POOL):
        raise StateError(f"Expected a seed sequence with a pool of {_MOST_POOL} words or less, got more.")
    return np.random.SeedSequence(
        seed_state["entropy"],
        spawn_key=seed_state["key"],
        pool_size=seed_state["pool"],
        n_children_spawned=seed_state["children"],
    )


class Generators:
    """NumPy's `Generator`."""

    tag = "generator"

    def matches(self, cls: type) -> bool:
        return issubclass(cls, np.random.Generator)

    def capture(self, value: np.random.Generator, ref: Ref) -> Node:
        return {"bits": ref(value.bit_generator, ".bit_generator")}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        has_generator = isinstance(old, np.random.Generator)
        bits = get(node["bits"], old.bit_generator if has_generator else None)
        return (old if has_generator and old.bit_generator is bits else np.random.Generator(bits)), None


class RandomStates:
    """NumPy's `RandomState`."""

    tag = "random_state"

    def matches(self, cls: type) -> bool:
        return issubclass(cls, np.random.RandomState)

    def capture(self, value: np.random.RandomState, ref: Ref) -> Node:
        return {"state": value.get_state(legacy=False)}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        _check_positions(node["state"])
        generator = old if isinstance(old, np.random.RandomState) else np.random.RandomState()
        return generator, lambda: generator.set_state(node["state"])


class PyRandom:
    """`random.Random`."""

    tag = "random"

    def matches(self, cls: type) -> bool:
        return cls is random.Random

    def capture(self, value: random.Random, ref: Ref) -> Node:
        version, words, gauss = value.getstate()
        return {"version": version, "words": np.array(words, np.uint64), "gauss": gauss}

    def restore(self, node: Node, old: object, get: Get) -> Restored:
        generator = old if type(old) is random.Random else random.Random()
        state = node["version"], tuple(node["words"].tolist()), node["gauss"]
        return generator, lambda: generator.setstate(state)


HANDLERS = (
    Arrays(),
    Scalars(),
    Dtypes(),
    BitGenerators(),
    Generators(),
    RandomStates(),
    PyRandom(),
)
