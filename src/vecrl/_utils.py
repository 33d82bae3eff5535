"""`implement_for`: one function in several versions, for several versions of another library.

Knows no library: they are named by those who use it, and imported when such a function is first called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module, metadata
from typing import Any

from .errors import VersionError

_VARIANTS: dict[str, list[implement_for]] = {}
_IGNORED_MODULES: set[str] = set()


class implement_for:
    """Decorator: this is what the function does where a library's version is in [from_version, to_version).

    Functions of one module and name that are decorated so become one. Which of them is meant is found when it is
    called; of several that fit, it is the one that was written last.

    Args:
        module_name: the library's name, or a function that imports and returns it.
        from_version: the first version that it is for; None for all up to `to_version`.
        to_version: the first version that it is not for any more; None for all from `from_version` on.
        class_method: make a class method of it.

    Raises:
        VersionError: when called, where no version fits.

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
        module_name: str | Callable[[], Any],
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
        variants = _VARIANTS.setdefault(name, [])
        variants[:] = [other_variant for other_variant in variants if not other_variant._is_for_the_same(self)] + [self]

        @wraps(fn)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            return _select_variant(name, variants)(*args, **kwargs)

        return classmethod(dispatch) if self.class_method else dispatch

    def _is_for_the_same(self, other_variant: implement_for) -> bool:
        return self._range() == other_variant._range()

    def _range(self) -> tuple[Any, ...]:
        return self.module_name, self.from_version, self.to_version

    def _module(self) -> Any:
        """The library; None where it is not installed."""
        try:
            return self.module_name() if callable(self.module_name) else import_module(self.module_name)
        except ImportError:
            return None

    def is_ignored(self) -> bool:
        """Whether `ignore_modules` says to pass it over."""
        name = getattr(self._module(), "__name__", "") if callable(self.module_name) else self.module_name
        return name.partition(".")[0] in _IGNORED_MODULES

    def version(self) -> str | None:
        """The library's version here; None where it is not installed."""
        module = self._module()
        if module is None:
            return None
        match = getattr(module, "__version__", None)
        return match if match is not None else metadata.version(module.__name__)

    def matches(self) -> bool:
        """Whether the library is here, in a version of the range."""
        version = self.version()
        return version is not None and self.check_version(version, self.from_version, self.to_version)

    @staticmethod
    def check_version(version: str, from_version: str | None, to_version: str | None) -> bool:
        """Whether a version is in [from_version, to_version); what comes before a release counts as the release.

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
    """Have `implement_for` pass over what is for these libraries, where there is something for others."""
    _IGNORED_MODULES.clear()
    _IGNORED_MODULES.update(modules)


def _select_variant(name: str, variants: list[implement_for]) -> Callable[..., Any]:
    candidates = [variant for variant in variants if not (_IGNORED_MODULES and variant.is_ignored())] or variants
    for variant in reversed(candidates):
        if variant.matches():
            assert variant.fn is not None
            return variant.fn
    descriptions = ", ".join(f"{variant} (here: {variant.version() or 'not installed'})" for variant in variants)
    raise VersionError(f"{name} is written for {descriptions}; none of these is here. Install one of them.")


def _number(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise ValueError(f"Expected a version such as '0.26.2', but {version!r} came.")
    parts = [int(part) for part in match[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
