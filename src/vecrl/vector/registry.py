"""The open list of prefixes: which simulators `make_vector_env` can make, and what of each is here.

A simulator joins by `register`; the makers and the command line read the list, which knows no simulator itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

SEPARATOR = "::"
BARE = "gym"  # the prefix of a name that has none


@dataclass(frozen=True, slots=True)
class Entry:
    """One prefix.

    Attributes:
        prefix: what stands before the `::`, in which there may be further ones ("brax::old").
        maker: `maker(name, *, force_classic_api, num_envs, discrete_to_continuous_act, clip_actions, **kwargs)`
            makes an environment.
        summary: what it is, in one line.
        extra: the extra of vecrl that installs it, None where nothing further is needed.
        names: lists the names that can be made; raises ImportError where something is missing.
    """

    prefix: str
    maker: Callable[..., Any]
    summary: str
    extra: str | None = None
    names: Callable[[], Iterable[str]] = tuple


@dataclass(frozen=True, slots=True)
class Availability:
    """What of one prefix is here.

    Attributes:
        prefix, summary: of the entry.
        names: what can be made here and now, sorted.
        missing: why nothing can, or None.
        install: the command that would change that, or None.
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
    """Add a prefix to what `make_vector_env` understands; one that is there already is replaced.

    Args:
        prefix, maker, summary, extra, names: see `Entry`.

    >>> register("mine", lambda name, **kwargs: f"an environment called {name}", "what I made myself")
    >>> entry, name = find_entry("mine::first")
    >>> entry.maker(name)
    'an environment called first'
    >>> unregister("mine")
    """
    if not prefix or prefix.startswith(":") or prefix.endswith(":"):
        raise ValueError(f"expected a prefix without the `::` after it, such as 'mine', got {prefix!r}")
    _entries[prefix] = Entry(prefix, maker, summary, extra, names)


def unregister(prefix: str) -> None:
    """Take a prefix from the list; KeyError if it is not on it."""
    del _entries[prefix]


def known_prefixes() -> tuple[str, ...]:
    """All prefixes, in the order in which they joined."""
    return tuple(_entries)


def find_entry(env_name: str) -> tuple[Entry, str]:
    """The entry of the longest prefix of `env_name`, and the name that is left; a bare name is gymnasium's.

    Raises:
        TypeError: no text.
        ValueError: an unknown prefix; the message lists the known ones.
    """
    if not isinstance(env_name, str):
        raise TypeError(f"expected the name of an environment, such as 'CartPole-v1', but {env_name!r:.80} came")
    if SEPARATOR not in env_name:
        return _entries[BARE], env_name
    matches = [prefix for prefix in _entries if env_name.startswith(prefix + SEPARATOR)]
    if not matches:
        prefix = env_name.partition(SEPARATOR)[0]
        known = ", ".join(known + SEPARATOR for known in _entries)
        raise ValueError(f"unknown prefix {prefix + SEPARATOR!r} in {env_name!r}: the known ones are {known}")
    longest = max(matches, key=len)
    return _entries[longest], env_name[len(longest + SEPARATOR) :]


def available(prefix: str) -> Availability:
    """What can be made under `prefix` here, and else what is missing and how to get it.

    Raises:
        ValueError: an unknown prefix; the message lists the known ones.
    """
    entry, _ = find_entry(prefix + SEPARATOR)
    try:
        return Availability(prefix, entry.summary, tuple(sorted(entry.names())))
    except ImportError as error:
        install = None if entry.extra is None else f'pip install "vecrl[{entry.extra}]"'
        return Availability(prefix, entry.summary, (), str(error), install)
