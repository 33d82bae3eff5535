"""Dialect 3: environments over TensorDicts, under TorchRL's names.

What stands on another library is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import EnvBase
from .custom import PendulumEnv, TicTacToeEnv
from .derive import make_composite_from_td
from .groups import MarlGroupMapType, check_marl_grouping
from .utils import (
    ExplorationType,
    RandomPolicy,
    check_env_specs,
    exploration_type,
    get_available_libraries,
    set_exploration_type,
    step_mdp,
    terminated_or_truncated,
)

if TYPE_CHECKING:
    from .libs.gym import GymEnv, GymWrapper
    from .libs.native import NativeEnv

__all__ = [
    "EnvBase",
    "ExplorationType",
    "GymEnv",
    "GymWrapper",
    "MarlGroupMapType",
    "NativeEnv",
    "PendulumEnv",
    "RandomPolicy",
    "TicTacToeEnv",
    "check_env_specs",
    "check_marl_grouping",
    "exploration_type",
    "get_available_libraries",
    "make_composite_from_td",
    "set_exploration_type",
    "step_mdp",
    "terminated_or_truncated",
]

_LATER = {
    "GymEnv": "libs.gym",
    "GymWrapper": "libs.gym",
    "NativeEnv": "libs.native",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
