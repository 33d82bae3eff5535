"""Which of gymnasium and the old gym is meant where a name alone would not tell.

Knows how to import them, and nothing of environments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, Self

import gymnasium

from ..._utils import set_aside

Backend = str | ModuleType | Callable[[], Any]

DEFAULT_GYM: ModuleType = gymnasium
"""The library that is meant where nothing was said."""
_FAMILY = ("gymnasium", "gym")
_set: ModuleType | None = None


def gym_backend(submodule: str | None = None) -> ModuleType:
    """The library that environments are taken from now: what `set_gym_backend` says, else gymnasium.

    Args:
        submodule: one of its modules instead, such as "wrappers" or "wrappers.monitoring".

    >>> gym_backend().__name__, gym_backend("wrappers").__name__
    ('gymnasium', 'gymnasium.wrappers')
    """
    module = _set or DEFAULT_GYM
    return module if submodule is None else import_module(f"{module.__name__}.{submodule.lstrip('.')}")


class set_gym_backend:
    """Take environments from this library: in a `with` block, in a decorated function, or from `set()` on.

    What `implement_for` has for the other one is passed over meanwhile.

    Args:
        backend: "gymnasium" or "gym", the module itself, or a function that returns one of these.

    Raises:
        ModuleNotFoundError: it is not installed; raised when it is set, with what to install.

    >>> with set_gym_backend("gymnasium"):
    ...     gym_backend().__name__
    'gymnasium'
    >>> @set_gym_backend("gymnasium")
    ... def who():
    ...     return gym_backend().__name__
    >>> who()
    'gymnasium'
    """

    def __init__(self, backend: Backend):
        self._given = backend
        self._before: list[ModuleType | None] = []

    @property
    def backend(self) -> ModuleType:
        """The library; imported here."""
        found: Any = self._given
        if not isinstance(found, str | ModuleType) and callable(found):
            found = found()
        if not isinstance(found, str):
            return found
        try:
            return import_module(found)
        except ModuleNotFoundError as error:
            if error.name != found:
                raise
            what = '"gym<=0.26.2"' if found == "gym" else found
            told = f"Expected {found} to be installed: pip install {what}, or choose set_gym_backend('gymnasium')."
            raise ModuleNotFoundError(told, name=found) from error

    def set(self) -> None:
        """From now on."""
        _use(self.backend)

    def __enter__(self) -> Self:
        backend = self.backend
        self._before.append(_set)
        _use(backend)
        return self

    def __exit__(self, *_: object) -> None:
        _use(self._before.pop())

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            with set_gym_backend(self._given):
                return fn(*args, **kwargs)

        return within


def _use(module: ModuleType | None) -> None:
    global _set
    _set = module
    set_aside([] if module is None else [name for name in _FAMILY if name != module.__name__])
