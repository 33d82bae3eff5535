"""Detects methods that a subclass overrides, so that a faster way is not used where it would skip them."""

from __future__ import annotations

from collections.abc import Iterable


def overrides_any(instance: object, base: type, names: Iterable[str]) -> bool:
    """Returns whether the class of `instance`, a subclass of `base`, overrides any of these attributes of `base`.

    >>> overrides_any(True, int, ["__repr__"]), overrides_any(True, int, ["__add__"])
    (True, False)
    """
    return any(getattr(type(instance), name) is not getattr(base, name) for name in names)
