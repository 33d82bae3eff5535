"""Keys of entries in TensorDicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

from tensordict import TensorDictBase

Prefix = tuple[str, ...]
"""The path of a place in a TensorDict; `()` is the root."""
Key = str | Prefix
INPUTS, OUTPUTS = ("state", "action"), ("observation", "reward", "done")
"""The names of the specs of an environment."""
FLAGS = ("done", "terminated", "truncated")
"""The names of done flags."""


def join_key(prefix: Prefix, name: str) -> Key:
    """Returns the key of `name` below `prefix`.

    >>> join_key((), "done"), join_key(("agents",), "done")
    ('done', ('agents', 'done'))
    """
    return (*prefix, name) if prefix else name


def is_key(value: object) -> TypeGuard[Key]:
    """Returns whether a value is a name, or a tuple of one name or more, which may be nested."""
    return isinstance(value, str) or (isinstance(value, tuple) and value != () and all(map(is_key, value)))


def flat_key(key: Any) -> Key:
    """Returns a key without tuples in tuples; a name for a tuple of one.

    >>> flat_key(("agents", ("info", "mass"))), flat_key(("done",))
    (('agents', 'info', 'mass'), 'done')
    """
    if isinstance(key, str):
        return key
    first, *others = (name for part in key for name in key_path(flat_key(part)))
    return (first, *others) if others else first


def parse_key(name: str, value: object) -> Key:
    """Returns a key; raises a ValueError, with the name of the argument, for any other value.

    >>> parse_key("out_key", ("agents", "action"))
    ('agents', 'action')
    """
    if not is_key(value):
        raise ValueError(f"Expected {name} to be a key (a name, or a tuple of names), got {value!r:.80}.")
    return flat_key(value)


def key_path(key: Key) -> tuple[str, ...]:
    """Returns the names on the way to an entry: `("a",)` for "a"."""
    return (key,) if isinstance(key, str) else tuple(key)


def split_key(key: Key) -> tuple[Prefix, str]:
    """Returns the prefix and the name of a key; the inverse of `join_key`."""
    return ((), key) if isinstance(key, str) else (tuple(key[:-1]), key[-1])


def is_overridden(prefix: Prefix, prefixes: Iterable[Prefix]) -> bool:
    """Returns whether one of the prefixes is above `prefix`.

    >>> is_overridden(("agents",), [(), ("agents",)])
    True
    """
    return any(other != prefix and prefix[: len(other)] == other for other in prefixes)


def sorted_keys(data: TensorDictBase) -> list[str]:
    """Returns the keys of the leaves of a TensorDict, for messages."""
    return sorted(map(str, data.keys(include_nested=True, leaves_only=True)))


def key_depth(key: Key) -> tuple[int, str]:
    """Returns a value by which keys are sorted: those at the root first."""
    return (0, key) if isinstance(key, str) else (len(key) - 1, "/".join(key))
