"""`after_import`: calls a function as soon as a program has imported a module of another library.

So neither library has to be imported first, and neither is imported for the other. This module must not know what the
functions do, nor the rest of vecrl.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_lock = threading.Lock()
_waiting: dict[str, list[Callable[[], object]]] = {}


class RegistrationWarning(RuntimeWarning):
    """vecrl's classes may not work with another library, because a function for it raised an exception."""


def after_import(module_name: str, function: Callable[[], object]) -> None:
    """Calls `function()` once: now if the module `module_name` has been imported, otherwise right after its import.

    The module is complete when the function is called, but may not be an attribute of its package yet: use
    `from torchrl import data`, not `import torchrl.data`. If its import fails, the function waits for the next import.
    An exception of the function does not fail the import of the other library: it becomes a `RegistrationWarning`.

    Args:
        module_name: the full name of the module, such as "torchrl.data".
        function: takes no arguments; its result is ignored.

    >>> import sys
    >>> after_import("json", lambda: print("json", "json" in sys.modules))
    json True
    """
    with _lock:
        imported = sys.modules.get(module_name) is not None
        if not imported:
            _waiting.setdefault(module_name, []).append(function)
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
    if imported:
        import_module(module_name)  # waits, if another thread is still executing it
        _call(module_name, [function])


def _call(module_name: str, functions: list[Callable[[], object]]) -> None:
    for function in functions:
        try:
            function()
        except Exception as error:
            warnings.warn(
                f"Expected a version of {module_name} that vecrl knows, got {type(error).__name__}: {error}. vecrl's "
                f"classes may not work with it: update vecrl or install another version.",
                RegistrationWarning,
                stacklevel=2,
            )


def _call_waiting(module_name: str) -> None:
    with _lock:
        functions = _waiting.pop(module_name, [])
        if not _waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
    _call(module_name, functions)


class _Finder(MetaPathFinder):
    """Finds a module as the other finders do, and lets its loader call the waiting functions after the module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((spec for finder in finders if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _wrap(spec.loader, fullname)
        return spec


def _wrap(loader: Any, module_name: str) -> None:
    """Replaces `exec_module` of one loader. It keeps its class, which finds the sources and data of a module."""

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the one of its class is used again
        loader.exec_module(module)
        _call_waiting(module_name)

    loader.exec_module = exec_module


_finder = _Finder()
