"""Keys of entries in TensorDicts."""

from __future__ import annotations

from collections.abc import Iterable

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
