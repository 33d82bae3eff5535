"""Dialect 3: environments over TensorDicts, under TorchRL's names.

What stands on another library is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import transforms
from .base import EnvBase
from .batched import EnvCreator, EnvMetaData, ParallelEnv, SerialEnv
from .transforms import *  # noqa: F403 (its own list of names says which)
from .utils import RandomPolicy, check_env_specs, step_mdp, terminated_or_truncated

if TYPE_CHECKING:
    from .libs.gym import GymEnv, GymWrapper

__all__ = [
    "EnvBase",
    "EnvCreator",
    "EnvMetaData",
    "GymEnv",
    "GymWrapper",
    "ParallelEnv",
    "RandomPolicy",
    "SerialEnv",
    "check_env_specs",
    "step_mdp",
    "terminated_or_truncated",
]
__all__ += transforms.__all__

_LATER = {"GymEnv": "gym", "GymWrapper": "gym"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".libs.{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
