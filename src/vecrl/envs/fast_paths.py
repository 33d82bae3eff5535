"""Recognizes classes that override a method which a faster way to step does not call.

A fast method does what several other methods do, without a call of them. `bypassed_by` marks each of these with the
name of the fast method. A subclass may override a marked method but not the fast one. The fast method would skip the
subclass's code then, so its environments must be stepped in the general way.
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


@cache
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


def _bypassed_names(owner: type, fast_method: str) -> list[str]:
    return [
        name for base in owner.__mro__ for name, value in vars(base).items() if fast_method in getattr(value, _MARK, ())
    ]
