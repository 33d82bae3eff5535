"""The registry of environment name prefixes: which simulators `make_vector_env` supports, and which are installed.

`register` adds a simulator; the makers and the command line read the registry. This module must not know any
simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

SEPARATOR = "::"
BARE = "gym"  # the prefix of a name that has none


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered prefix.

    Attributes:
        prefix: the part of a name before the last `::`; it may contain `::` itself ("brax::old").
        maker: `maker(name, *, force_classic_api, num_envs, discrete_to_continuous_act, clip_actions, **kwargs)`
            makes an environment.
        summary: a one-line description.
        extra: the extra of vecrl that installs the simulator; None if it needs no extra.
        names: returns the names of its environments; raises ImportError if a package is missing.
    """

    prefix: str
    maker: Callable[..., Any]
    summary: str
    extra: str | None = None
    names: Callable[[], Iterable[str]] = tuple


@dataclass(frozen=True, slots=True)
class Availability:
    """The environments of one prefix that can be made in this installation.

    Attributes:
        prefix, summary: those of the entry.
        names: the names of the environments that can be made, sorted.
        missing: the reason if none can be made, else None.
        install: the command that installs the missing package, or None.
    """

    prefix: str
    summary: str
    names: tuple[str, ...]
    missing: str | None = None
    install: str | None = None


_entries: dict[str, Entry] = {}


def register(
    prefix: str,
    maker: Callable[..., Any],
    summary: str,
    extra: str | None = None,
    *,
    names: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Adds a prefix to the registry, or replaces its entry.

    Args:
        prefix, maker, summary, extra, names: see `Entry`.

    >>> register("mine", lambda name, **kwargs: f"an environment called {name}", "my environments")
    >>> entry, name = find_entry("mine::first")
    >>> entry.maker(name)
    'an environment called first'
    >>> unregister("mine")
    """
    if not prefix or prefix.startswith(":") or prefix.endswith(":"):
        raise ValueError(f"Expected a prefix without the `::` after it, such as 'mine', got {prefix!r}.")
    _entries[prefix] = Entry(prefix, maker, summary, extra, names)


def unregister(prefix: str) -> None:
    """Removes a prefix from the registry; raises KeyError if it is not registered."""
    del _entries[prefix]


def known_prefixes() -> tuple[str, ...]:
    """Returns all prefixes, in the order of their registration."""
    return tuple(_entries)


def find_entry(env_name: str) -> tuple[Entry, str]:
    """Returns the entry with the longest prefix of `env_name`, and the rest of the name.

    A name without a prefix is gymnasium's.

    Raises:
        TypeError: `env_name` is not a string.
        ValueError: the prefix is unknown; the message lists the known ones.
    """
    if not isinstance(env_name, str):
        raise TypeError(f"Expected the name of an environment, such as 'CartPole-v1', got {env_name!r:.80}.")
    if SEPARATOR not in env_name:
        return _entries[BARE], env_name
    matches = [prefix for prefix in _entries if env_name.startswith(prefix + SEPARATOR)]
    if not matches:
        prefix = env_name.partition(SEPARATOR)[0]
        known = ", ".join(known + SEPARATOR for known in _entries)
        raise ValueError(f"Expected one of the prefixes {known}, got {prefix + SEPARATOR!r} in {env_name!r}.")
    longest = max(matches, key=len)
    return _entries[longest], env_name[len(longest + SEPARATOR) :]


def available(prefix: str) -> Availability:
    """Returns the environments of `prefix` that can be made here, or what is missing and how to install it.

    Raises:
        ValueError: the prefix is unknown; the message lists the known ones.
    """
    entry, _ = find_entry(prefix + SEPARATOR)
    try:
        return Availability(prefix, entry.summary, tuple(sorted(entry.names())))
    except ImportError as error:
        install = None if entry.extra is None else f'pip install "vecrl[{entry.extra}]"'
        return Availability(prefix, entry.summary, (), str(error), install)
