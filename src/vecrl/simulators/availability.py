"""Which registered environments can be made in this installation, and names that are similar to unknown ones.

`available` imports a library to list its names, unless it is missing; `overview` imports those libraries only of which
the entry does not say what they require. This module knows no simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..registries import did_you_mean, nearest
from ..validation import check_text
from .registry import BARE, SEPARATOR, Entry, examples, find_entry, known_prefixes


@dataclass(frozen=True, slots=True)
class Availability:
    """The environments of one prefix that can be made in this installation.

    Attributes:
        prefix, summary, example: those of the entry.
        names: the names of the environments that can be made, sorted.
        missing: the reason if none can be made, else None.
        install: the command that installs the missing package, or None.
    """

    prefix: str
    summary: str
    names: tuple[str, ...]
    missing: str | None = None
    install: str | None = None
    example: str | None = None


def available(prefix: str) -> Availability:
    """Returns the environments of `prefix` that can be made here, or what is missing and how to install it.

    Raises:
        ValueError: the prefix is unknown; the message lists the known ones.
    """
    return _available(prefix, with_names=True)


def overview() -> Iterator[Availability]:
    """Yields, for each known prefix, what `available` returns without the names."""
    for prefix in known_prefixes():
        yield _available(prefix, with_names=False)


def _available(prefix: str, with_names: bool) -> Availability:
    check_text("prefix", prefix)
    try:
        entry, _ = find_entry(prefix + SEPARATOR)
    except ImportError as error:  # of a distribution that has an entry point
        return Availability(prefix, "", (), str(error))
    known: dict[str, Any] = {"prefix": prefix, "summary": entry.summary, "example": entry.example}
    module = entry.missing
    if module is not None and (entry.install is not None or not with_names):  # else the names raise what to do
        advice = "" if entry.install is None else f": {entry.install}"
        return Availability(names=(), missing=f"{module} is not installed{advice}", install=entry.install, **known)
    if entry.requires and not with_names:
        return Availability(names=(), **known)
    try:
        return Availability(names=tuple(sorted(entry.names())), **known)
    except ImportError as error:
        return Availability(names=(), missing=str(error), install=entry.install, **known)
    except (Exception, SystemExit) as error:  # libraries may raise anything when they are imported
        return Availability(names=(), missing=f"{type(error).__name__}: {error}", **known)


def is_unknown(env_name: str) -> bool:
    """Returns whether the simulator of a name lists its names, and has no such one.

    >>> is_unknown("native::Cartpole-v1"), is_unknown("native::CartPole-v1"), is_unknown("module:Id")
    (True, False, False)
    """
    entry, name, names = _names_beside(env_name)
    is_imported = entry is not None and entry.prefix == BARE and ":" in name
    return bool(names) and name not in names and not is_imported


def _names_beside(env_name: str) -> tuple[Entry | None, str, tuple[str, ...]]:
    """Returns the entry of a name, the rest of the name, and the names that the entry lists: none if it cannot."""
    try:
        entry, name = find_entry(env_name)
        return entry, name, () if entry.missing is not None else tuple(entry.names())
    except (Exception, SystemExit):  # the error of the caller says more
        return None, "", ()


def suggest(env_name: str) -> str:
    """Returns a sentence with similar names for a name that its prefix does not list; "" if it is listed.

    Names are compared with those of the same prefix, and names without a prefix also with the examples of all prefixes.

    >>> suggest("native::Cartpole-v1")
    'Did you mean native::CartPole-v1? '
    >>> suggest("native")
    'Did you mean native::CartPole-v1? '
    """
    entry, name, names = _names_beside(env_name)
    if entry is None or name in names or not name:
        return ""
    if env_name in examples():  # a prefix alone
        return did_you_mean([env_name + SEPARATOR + examples()[env_name]])
    prefix = "" if SEPARATOR not in env_name else entry.prefix + SEPARATOR
    similar = [prefix + match for match in nearest(name, names)]
    if not prefix:
        prefixes = {example: other for other, example in examples().items() if other != BARE}
        similar += [prefixes[match] + SEPARATOR + match for match in nearest(name, prefixes)]
    return did_you_mean(similar)
