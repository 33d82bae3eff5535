"""vecrl: any simulator behind batches of tensors.

A subpackage is imported when it is first used, as in `vecrl.vector.make_vector_env(...)`. `import vecrl` loads only
`vecrl.interop`, which registers vecrl's classes with another library when a program has imported both.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from . import interop

if TYPE_CHECKING:
    from . import (
        checkpoint,
        classic,
        convert,
        engine,
        envs,
        errors,
        policy,
        record,
        running_stats,
        seeding,
        simulators,
        snapshot,
        specs,
        testing,
        vector,
        venv,
    )

__version__ = "0.1.0"

__all__ = [
    "checkpoint",
    "classic",
    "convert",
    "engine",
    "envs",
    "errors",
    "interop",
    "policy",
    "record",
    "running_stats",
    "seeding",
    "simulators",
    "snapshot",
    "specs",
    "testing",
    "vector",
    "venv",
]
_LAZY = (*__all__, "cli")


def __getattr__(name: str) -> ModuleType:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return [*_LAZY, "__version__"]
