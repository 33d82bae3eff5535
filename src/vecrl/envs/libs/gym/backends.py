"""Selects the library, gymnasium or the old gym, that makes environments by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, Self

import gymnasium

from ...._utils import ignore_modules

Backend = str | ModuleType | Callable[[], Any]

DEFAULT_GYM: ModuleType = gymnasium
"""The library in use unless `set_gym_backend` selects another."""
_GYM_LIBRARIES = ("gymnasium", "gym")
_current_backend: ModuleType | None = None


def gym_backend(submodule: str | None = None) -> ModuleType:
    """Returns the library that `set_gym_backend` selected, by default gymnasium.

    Args:
        submodule: the name of one of its modules to return instead, such as "wrappers" or "wrappers.monitoring".

    >>> gym_backend().__name__, gym_backend("wrappers").__name__
    ('gymnasium', 'gymnasium.wrappers')
    """
    module = _current_backend or DEFAULT_GYM
    return module if submodule is None else import_module(f"{module.__name__}.{submodule.lstrip('.')}")


def registered_names() -> list[str]:
    """Returns the names of all environments of the selected library, sorted."""
    registry: Any = gym_backend("envs").registry
    return sorted(registry if isinstance(registry, dict) else [spec.id for spec in registry.all()])


class set_gym_backend:
    """Selects the library of environments: in a `with` block, in a decorated function, or from a call of `set()` on.

    Implementations that `implement_for` has for the other library are ignored meanwhile.

    Args:
        backend: "gymnasium" or "gym", the module itself, or a function that returns one of these.

    Raises:
        ModuleNotFoundError: when the backend is set, if the library is not installed; it names the package to install.

    >>> with set_gym_backend("gymnasium"):
    ...     gym_backend().__name__
    'gymnasium'
    >>> @set_gym_backend("gymnasium")
    ... def backend_name():
    ...     return gym_backend().__name__
    >>> backend_name()
    'gymnasium'
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._previous: list[ModuleType | None] = []

    @property
    def backend(self) -> ModuleType:
        """The module of the library, which this property imports."""
        module: Any = self._backend
        if not isinstance(module, str | ModuleType) and callable(module):
            module = module()
        if not isinstance(module, str):
            return module
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            requirement = '"gym<=0.26.2"' if module == "gym" else module
            message = (
                f"Expected {module} to be installed. pip install {requirement}, or choose set_gym_backend('gymnasium')."
            )
            raise ModuleNotFoundError(message, name=module) from error

    def set(self) -> None:
        """Selects the library until the next change."""
        _activate(self.backend)

    def __enter__(self) -> Self:
        backend = self.backend
        self._previous.append(_current_backend)
        _activate(backend)
        return self

    def __exit__(self, *_: object) -> None:
        _activate(self._previous.pop())

    def __call__(self, fn: Callable[..., object]) -> Callable[..., Any]:
        @wraps(fn)
        def wrapped(*args: object, **kwargs: object) -> Any:
            with set_gym_backend(self._backend):
                return fn(*args, **kwargs)

        return wrapped


def _activate(module: ModuleType | None) -> None:
    global _current_backend
    _current_backend = module
    ignore_modules([] if module is None else [name for name in _GYM_LIBRARIES if name != module.__name__])


class AvailableEnvs:
    """Class attribute that lists the environments that can be made; empty if their library is not installed.

    Args:
        names: returns the names; raises ImportError if the library is missing.
    """

    def __init__(self, names: Callable[[], Iterable[Any]]):
        self._names = names

    def __get__(self, owner: object, cls: Any = None) -> list[Any]:
        try:
            return list(self._names())
        except ImportError:
            return []
