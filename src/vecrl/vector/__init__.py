"""Dialect 1: gymnasium-style vector environments, tensors around them, and makers by name.

What needs torch is imported on first use, so that `VectorEnv` and `AsyncVectorEnv` start as fast as gymnasium's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..engine.backends.cluster import RayOptions
from ..engine.transitions import AutoresetMode
from .async_env import AsyncVectorEnv
from .base import BaseVectorEnv
from .rollouts import Rollout, RolloutWorkers
from .vector_env import VectorEnv, info_of

if TYPE_CHECKING:
    from .arrays import array_type, convert_from_torch, convert_to_torch, convert_to_torch_bool, reset_tensors
    from .batched import BatchedVectorEnv
    from .makers import make_brax_env, make_gym_env, make_native_env, make_vector_env
    from .registry import available, known_prefixes, register
    from .sync import SyncVectorEnv
    from .torch_wrapper import TorchWrapper

__all__ = [
    "AsyncVectorEnv",
    "AutoresetMode",
    "BaseVectorEnv",
    "BatchedVectorEnv",
    "RayOptions",
    "Rollout",
    "RolloutWorkers",
    "SyncVectorEnv",
    "TorchWrapper",
    "VectorEnv",
    "array_type",
    "available",
    "convert_from_torch",
    "convert_to_torch",
    "convert_to_torch_bool",
    "info_of",
    "known_prefixes",
    "make_brax_env",
    "make_gym_env",
    "make_native_env",
    "make_vector_env",
    "register",
    "reset_tensors",
]

_HOMES = {
    "arrays": ("array_type", "convert_from_torch", "convert_to_torch", "convert_to_torch_bool", "reset_tensors"),
    "batched": ("BatchedVectorEnv",),
    "makers": ("make_brax_env", "make_gym_env", "make_native_env", "make_vector_env"),
    "registry": ("available", "known_prefixes", "register"),
    "sync": ("SyncVectorEnv",),
    "torch_wrapper": ("TorchWrapper",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
