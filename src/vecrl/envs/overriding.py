"""Whether a subclass has a say of its own, where a quicker way would leave it unheard."""

from __future__ import annotations

from collections.abc import Iterable


def overrides(thing: object, kind: type, names: Iterable[str]) -> bool:
    """Whether the class of `thing`, a subclass of `kind`, has another attribute than `kind` under one of these names.

    >>> overrides(True, int, ["__repr__"]), overrides(True, int, ["__add__"])
    (True, False)
    """
    return any(getattr(type(thing), name) is not getattr(kind, name) for name in names)
