"""Vector environments with gymnasium's interface, a wrapper that converts to tensors, and factories by name.

Modules that need torch are imported on first use, so that `VectorEnv` and `AsyncVectorEnv` start as fast as
gymnasium's.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..engine.backends.worker_options import RayOptions
from ..engine.transition import AutoresetMode
from ..imports import require_extra
from ..simulators.availability import available
from ..simulators.registry import Entry, find_entry, known_prefixes, register, unregister
from .async_env import AsyncVectorEnv
from .base import BaseVectorEnv
from .make import make
from .rollout import RolloutWorkers
from .rollout_data import Rollout
from .vector_env import VectorEnv, info_of

if TYPE_CHECKING:
    from .arrays import array_type, convert_from_torch, convert_to_torch, convert_to_torch_bool, reset_tensors
    from .batched_vector_env import BatchedVectorEnv
    from .factory import make_brax_env, make_gym_env, make_native_env, make_vector_env
    from .sync_env import SyncVectorEnv
    from .torch_wrapper import TorchVectorEnv, TorchWrapper

__all__ = [
    "AsyncVectorEnv",
    "AutoresetMode",
    "BaseVectorEnv",
    "BatchedVectorEnv",
    "Entry",
    "RayOptions",
    "Rollout",
    "RolloutWorkers",
    "SyncVectorEnv",
    "TorchVectorEnv",
    "TorchWrapper",
    "VectorEnv",
    "array_type",
    "available",
    "convert_from_torch",
    "convert_to_torch",
    "convert_to_torch_bool",
    "find_entry",
    "info_of",
    "known_prefixes",
    "make",
    "make_brax_env",
    "make_gym_env",
    "make_native_env",
    "make_vector_env",
    "register",
    "reset_tensors",
    "unregister",
]


def __getattr__(name: str) -> Any:
    exports = {
        "arrays": ("array_type", "convert_from_torch", "convert_to_torch", "convert_to_torch_bool", "reset_tensors"),
        "batched_vector_env": ("BatchedVectorEnv",),
        "factory": ("make_brax_env", "make_gym_env", "make_native_env", "make_vector_env"),
        "sync_env": ("SyncVectorEnv",),
        "torch_wrapper": ("TorchVectorEnv", "TorchWrapper"),
    }
    for module, names in exports.items():
        if name in names:
            require_extra("torch", f"{__name__}.{name}")
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
