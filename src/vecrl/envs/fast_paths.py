"""Recognizes classes that override a method which a faster way to step does not call.

A faster way is a method that does at once what several methods do. These are marked, where they are defined first, with
the name of the faster method. If a class overrides one of them below the class that defines the faster method, its
environments must be stepped in the general way. This module must not know environments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "bypassed_by"


def bypassed_by(*fast_methods: str) -> Callable[[F], F]:
    """Returns a decorator for a method that the methods named `fast_methods` do not call."""

    def mark(method: F) -> F:
        setattr(method, _MARK, fast_methods)
        return method

    return mark


def overrides_bypassed(cls: type, fast_method: str) -> bool:
    """Returns whether a class overrides a method that is bypassed by `fast_method`, below the class that defines it.

    >>> class Base:
    ...     @bypassed_by("add_two")
    ...     def add(self, x): return x + 1
    ...     def add_two(self, x): return x + 2
    >>> class Derived(Base):
    ...     def add(self, x): return x + 10
    >>> overrides_bypassed(Base, "add_two"), overrides_bypassed(Derived, "add_two")
    (False, True)
    """
    owner = next(base for base in cls.__mro__ if fast_method in vars(base))
    return any(getattr(cls, name) is not getattr(owner, name) for name in _bypassed_names(owner, fast_method))


@cache
def _bypassed_names(owner: type, fast_method: str) -> list[str]:
    return [
        name for base in owner.__mro__ for name, value in vars(base).items() if fast_method in getattr(value, _MARK, ())
    ]
