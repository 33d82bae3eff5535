"""Utilities with the names of TorchRL: `implement_for` and `set_auto_unwrap_transformed_env`.

`implement_for` makes one function of several variants, one for each version range of another library. It knows no
library: the decorated functions name them, and they are imported at the first call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from functools import wraps
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, Self, TypeAlias

from .errors import VersionError

_Condition: TypeAlias = tuple[str | Callable[[], ModuleType], str | None, str | None]
"""The library, and the range of its versions."""
_VARIANTS: dict[str, dict[_Condition, implement_for]] = {}
_IGNORED_MODULES: set[str] = set()
_AUTO_UNWRAP: list[bool] = [False]
"""The modes of `set_auto_unwrap_transformed_env`; the last one counts."""


class implement_for:
    """Decorator for the variant of a function that is used if a library's version is in [from_version, to_version).

    Decorated functions with the same module and name become one function. The variant is selected at each call; if
    several match, the one that is defined last is called.

    Args:
        module_name: the library's name, or a function that imports and returns it.
        from_version: the first version that matches; None for no lower bound.
        to_version: the first version that no longer matches; None for no upper bound.
        class_method: whether the result is a class method.

    Raises:
        VersionError: no variant matches (raised by the call, not by the decorator).

    >>> @implement_for("numpy", None, "1.0")
    ... def era():
    ...     return "old"
    >>> @implement_for("numpy", "1.0")
    ... def era():
    ...     return "new"
    >>> era()
    'new'
    """

    def __init__(
        self,
        module_name: str | Callable[[], ModuleType],
        from_version: str | None = None,
        to_version: str | None = None,
        *,
        class_method: bool = False,
    ):
        self.module_name = module_name
        self.from_version = from_version
        self.to_version = to_version
        self.class_method = class_method
        self.fn: Callable[..., Any] | None = None

    def __call__(self, fn: Callable[..., Any]) -> Any:
        self.fn = fn
        name = f"{fn.__module__}.{fn.__qualname__}"
        variants = _VARIANTS.setdefault(name, {})
        condition = self.module_name, self.from_version, self.to_version
        variants.pop(condition, None)  # it is replaced, and the one that is defined last comes last
        variants[condition] = self

        @wraps(fn)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            return _select_variant(name, list(variants.values()))(*args, **kwargs)

        return classmethod(dispatch) if self.class_method else dispatch

    def _module(self) -> ModuleType | None:
        """Imports and returns the library; None if it is not installed."""
        try:
            return self.module_name() if callable(self.module_name) else import_module(self.module_name)
        except ImportError:
            return None

    def is_ignored(self) -> bool:
        """Returns whether `ignore_modules` excludes this variant."""
        name = getattr(self._module(), "__name__", "") if callable(self.module_name) else self.module_name
        return name.partition(".")[0] in _IGNORED_MODULES

    def version(self) -> str | None:
        """Returns the installed version of the library; None if it is not installed."""
        module = self._module()
        if module is None:
            return None
        version = getattr(module, "__version__", None)
        return version if version is not None else metadata.version(module.__name__)

    def matches(self) -> bool:
        """Returns whether the library is installed, in a version of the range."""
        version = self.version()
        return version is not None and self.check_version(version, self.from_version, self.to_version)

    @staticmethod
    def check_version(version: str, from_version: str | None, to_version: str | None) -> bool:
        """Returns whether a version is in [from_version, to_version); a pre-release counts as its release.

        >>> implement_for.check_version("0.26.2", "0.26", None), implement_for.check_version("1.0.0", None, "1.0")
        (True, False)
        """
        number = _number(version)
        return (from_version is None or _number(from_version) <= number) and (
            to_version is None or number < _number(to_version)
        )

    def __repr__(self) -> str:
        name = self.module_name if isinstance(self.module_name, str) else getattr(self.module_name, "__name__", "?")
        return f"{name} [{self.from_version or '…'}, {self.to_version or '…'})"


def ignore_modules(modules: Iterable[str]) -> None:
    """Makes `implement_for` skip variants for these libraries, unless a function has no other variants."""
    _IGNORED_MODULES.clear()
    _IGNORED_MODULES.update(modules)


class set_auto_unwrap_transformed_env(ContextDecorator):
    """Sets the default of the argument `auto_unwrap` of `TransformedEnv`, for a `with` block or a decorated function.

    Args:
        mode: whether a `TransformedEnv` of a `TransformedEnv` becomes one with the transforms of both.

    >>> with set_auto_unwrap_transformed_env(True):
    ...     auto_unwrap_transformed_env()
    True
    >>> auto_unwrap_transformed_env()
    False
    """

    def __init__(self, mode: bool):
        self.mode = bool(mode)

    def set(self) -> None:
        """Sets the default for all later code."""
        _AUTO_UNWRAP[-1] = self.mode

    def __enter__(self) -> Self:
        _AUTO_UNWRAP.append(self.mode)
        return self

    def __exit__(self, *_: object) -> None:
        _AUTO_UNWRAP.pop()


def auto_unwrap_transformed_env(allow_none: bool = False) -> bool:
    """Returns the default of the argument `auto_unwrap` of `TransformedEnv`. `allow_none` has no effect."""
    return _AUTO_UNWRAP[-1]


def _select_variant(name: str, variants: list[implement_for]) -> Callable[..., Any]:
    candidates = [variant for variant in variants if not (_IGNORED_MODULES and variant.is_ignored())] or variants
    for variant in reversed(candidates):
        if variant.matches():
            assert variant.fn is not None
            return variant.fn
    descriptions = ", ".join(f"{variant} (here: {variant.version() or 'not installed'})" for variant in variants)
    raise VersionError(f"Expected {name} to have a variant that matches, got only {descriptions}. Install one of them.")


def _number(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise ValueError(f"Expected a version such as '0.26.2', got {version!r}.")
    parts = [int(part) for part in match[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
