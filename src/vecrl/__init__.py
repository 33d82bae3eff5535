"""vecrl: any simulator behind batches of tensors.

`vecrl.make(name, num_envs)` is `vecrl.vector.make`. A subpackage is imported when it is first used, as in
`vecrl.vector.make_vector_env(...)`. `import vecrl` loads only
`vecrl.interop`, which registers vecrl's classes with another library when a program has imported both.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from .vector.make import make

__version__ = "0.1.0"

__all__ = [
    "checkpoint",
    "classic",
    "convert",
    "engine",
    "envs",
    "errors",
    "interop",
    "make",
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


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "make":
        return import_module(".vector", __name__).make
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return [*_LAZY, "__version__"]
