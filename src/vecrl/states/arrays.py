"""How NumPy's arrays and generators, and those of `random`, are held and put back.

An array is replaced, since the one that is there may have been handed out as an observation; but where its memory is a
library's, it is written into, since the library looks there. A view becomes a view of the same array again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import StateError
from .kinds import Get, Kind, Node, Ref

Made = tuple[Any, Callable[[], None] | None]


class Arrays:
    """Arrays of numbers, text and times; read-only ones stay so."""

    tag = "array"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return cls is np.ndarray

    def take(self, value: np.ndarray, ref: Ref) -> Node:
        """See `Kind`."""
        node: Node = {} if value.flags.writeable else {"fixed": True}
        if value.dtype == object:
            return {**node, "items": [ref(one, "[…]") for one in value.ravel().tolist()], "shape": list(value.shape)}
        base = value.base
        if type(base) is np.ndarray and base.dtype != object and base.flags.c_contiguous and value.size:
            at = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            look = {"shape": list(value.shape), "strides": list(value.strides), "dtype": np.empty(0, value.dtype)}
            return {**node, "base": ref(base, ".base"), "at": at, **look}
        if value.flags.f_contiguous and not value.flags.c_contiguous:
            return {**node, "turned": np.array(value.T, order="C")}
        return {**node, "value": np.array(value, order="C")}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        if "items" in node:
            return _objects(node, get)
        if "base" in node:
            return _view(node, old, get), None
        value = node["turned"].T if "turned" in node else node["value"]
        if not isinstance(value, np.ndarray):
            raise StateError(f"Expected an array in a state, but it holds a {type(value).__name__}.")
        lent = type(old) is np.ndarray and old.flags.writeable and not isinstance(old.base, np.ndarray | None)
        if (
            lent
            and not node.get("fixed")
            and (old.shape, old.dtype, old.strides)
            == (
                value.shape,
                value.dtype,
                value.strides,
            )
        ):
            return old, lambda: np.copyto(old, value)
        new = value.copy(order="K")
        new.flags.writeable = not node.get("fixed", False)
        return new, None


def _objects(node: Node, get: Get) -> Made:
    new = np.empty(node["shape"], object)
    flat = new.reshape(-1)
    for at, item in enumerate(node["items"]):
        flat[at] = get(item)
    return new, None


def _view(node: Node, old: Any, get: Get) -> np.ndarray:
    base = get(node["base"], old.base if type(old) is np.ndarray else None)
    shape, strides, dtype = tuple(node["shape"]), tuple(node["strides"]), node["dtype"].dtype
    if not isinstance(base, np.ndarray):
        raise StateError("Expected the array that a view is of, but the state holds something else.")
    low = node["at"] + sum(min(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True))
    high = node["at"] + sum(max(0, s * (n - 1)) for s, n in zip(strides, shape, strict=True)) + dtype.itemsize
    if low < 0 or high > base.nbytes:
        raise StateError("A view in the state reaches beyond the array that it is of.")
    raw = base.reshape(-1).view(np.uint8)
    new = np.ndarray(shape, dtype, raw, node["at"], strides)
    if type(old) is np.ndarray and _alike(old, new):
        return old
    new.flags.writeable = not node.get("fixed", False) and base.flags.writeable
    return new


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return a.__array_interface__ == b.__array_interface__


class Scalars:
    """NumPy's numbers."""

    tag = "scalar"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return issubclass(cls, np.generic)

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {"value": np.array(value)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        return node["value"][()], None


class Dtypes:
    """NumPy's dtypes."""

    tag = "dtype"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return issubclass(cls, np.dtype)

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {} if value.kind == "O" else {"value": np.empty(0, value)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        return (node["value"].dtype if "value" in node else np.dtype(object)), None


_BITS = {cls.__name__: cls for cls in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937)}
_BITS |= {cls.__name__: cls for cls in (np.random.Philox, np.random.SFC64)}


class Bits:
    """Bit generators: where they are, and whose children their next children will be."""

    tag = "bits"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return issubclass(cls, np.random.BitGenerator)

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {"of": type(value).__name__, "state": value.state, "sown": _sown(value)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        name, state = node["of"], node["state"]
        if type(old).__name__ != name or _sown(old) != node["sown"]:
            if name not in _BITS:
                raise StateError(f"Expected one of NumPy's generators, {', '.join(_BITS)}, but {name!r} came.")
            old = _BITS[name](_seeds(node["sown"]))

        def go_on() -> None:
            old.state = state

        return old, go_on


def _sown(bits: Any) -> dict[str, Any] | None:
    seeds = getattr(bits, "seed_seq", None)
    if not isinstance(seeds, np.random.SeedSequence):
        return None
    entropy = seeds.entropy
    entropy = [int(word) for word in entropy] if isinstance(entropy, list | tuple | np.ndarray) else entropy
    entropy = int(entropy) if isinstance(entropy, np.integer) else entropy
    key = [int(word) for word in seeds.spawn_key]
    return {"entropy": entropy, "key": key, "pool": int(seeds.pool_size), "children": int(seeds.n_children_spawned)}


def _seeds(sown: Mapping[str, Any] | None) -> Any:
    if sown is None:
        return None
    return np.random.SeedSequence(
        sown["entropy"],
        spawn_key=sown["key"],
        pool_size=sown["pool"],
        n_children_spawned=sown["children"],
    )


class Generators:
    """NumPy's generators."""

    tag = "generator"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return issubclass(cls, np.random.Generator)

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {"bits": ref(value.bit_generator, ".bit_generator")}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        has = isinstance(old, np.random.Generator)
        bits = get(node["bits"], old.bit_generator if has else None)
        return (old if has and old.bit_generator is bits else np.random.Generator(bits)), None


class OldGenerators:
    """NumPy's `RandomState`."""

    tag = "random_state"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return issubclass(cls, np.random.RandomState)

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        return {"state": value.get_state(legacy=False)}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        own = old if isinstance(old, np.random.RandomState) else np.random.RandomState()
        return own, lambda: own.set_state(node["state"])


class Dice:
    """`random.Random`."""

    tag = "random"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return cls is random.Random

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        version, words, gauss = value.getstate()
        return {"version": version, "words": np.array(words, np.uint64), "gauss": gauss}

    def put(self, node: Node, old: Any, get: Get) -> Made:
        """See `Kind`."""
        own = old if type(old) is random.Random else random.Random()
        state = node["version"], tuple(node["words"].tolist()), node["gauss"]
        return own, lambda: own.setstate(state)


KINDS: list[Kind] = [Arrays(), Scalars(), Dtypes(), Bits(), Generators(), OldGenerators(), Dice()]
