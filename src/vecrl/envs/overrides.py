"""Whether a subclass has a say of its own, where a quicker way would leave it unheard."""

from __future__ import annotations

from collections.abc import Iterable


def overrides_any(instance: object, base: type, names: Iterable[str]) -> bool:
    """Whether the class of `instance`, a subclass of `base`, has another attribute than `base` under one of these
    names.

    >>> overrides_any(True, int, ["__repr__"]), overrides_any(True, int, ["__add__"])
    (True, False)
    """
    return any(getattr(type(instance), name) is not getattr(base, name) for name in names)
