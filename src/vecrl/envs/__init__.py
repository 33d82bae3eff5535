"""Environments over TensorDicts, under TorchRL's names.

Wrappers of other libraries are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import transforms
from .base import EnvBase, upper_modules
from .batched import (
    AsyncEnvPool,
    EnvCreator,
    EnvMetaData,
    ParallelEnv,
    ProcessorAsyncEnvPool,
    SerialEnv,
    ThreadingAsyncEnvPool,
    env_creator,
    get_env_metadata,
)
from .custom import ChessEnv, FinancialRegimeEnv, LLMEnv, LLMHashingEnv, PendulumEnv, TicTacToeEnv
from .gym_like import GymLikeEnv, default_info_dict_reader
from .marl_groups import MarlGroupMapType, check_marl_grouping
from .model_based import DreamerDecoder, DreamerEnv, ImaginedEnv, ModelBasedEnvBase
from .spec_inference import make_composite_from_td
from .transforms import *  # noqa: F403 (its __all__ lists the names)
from .utils import (
    ExplorationType,
    RandomPolicy,
    check_env_specs,
    exploration_type,
    get_available_libraries,
    make_tensordict,
    set_exploration_type,
    step_mdp,
    terminated_or_truncated,
)

if TYPE_CHECKING:
    from .libs.envpool import MultiThreadedEnv, MultiThreadedEnvWrapper
    from .libs.gym import GymEnv, GymWrapper, gym_backend, register_gym_spec_conversion, set_gym_backend
    from .libs.mo_gym import MOGymEnv, MOGymWrapper
    from .libs.native import NativeEnv

__all__ = [
    "AsyncEnvPool",
    "ChessEnv",
    "DreamerDecoder",
    "DreamerEnv",
    "EnvBase",
    "EnvCreator",
    "EnvMetaData",
    "ExplorationType",
    "FinancialRegimeEnv",
    "GymEnv",
    "GymLikeEnv",
    "GymWrapper",
    "ImaginedEnv",
    "LLMEnv",
    "LLMHashingEnv",
    "MOGymEnv",
    "MOGymWrapper",
    "MarlGroupMapType",
    "ModelBasedEnvBase",
    "MultiThreadedEnv",
    "MultiThreadedEnvWrapper",
    "NativeEnv",
    "ParallelEnv",
    "PendulumEnv",
    "ProcessorAsyncEnvPool",
    "RandomPolicy",
    "SerialEnv",
    "ThreadingAsyncEnvPool",
    "TicTacToeEnv",
    "check_env_specs",
    "check_marl_grouping",
    "default_info_dict_reader",
    "env_creator",
    "exploration_type",
    "get_available_libraries",
    "get_env_metadata",
    "gym_backend",
    "make_composite_from_td",
    "make_tensordict",
    "register_gym_spec_conversion",
    "set_exploration_type",
    "set_gym_backend",
    "step_mdp",
    "terminated_or_truncated",
]
__all__ += transforms.__all__


def _register_gym(*args: Any, **kwargs: Any) -> None:
    from .libs.to_gymnasium import register_gym

    register_gym(*args, **kwargs)


upper_modules.update(TransformedEnv=transforms.TransformedEnv, ParallelEnv=ParallelEnv, register_gym=_register_gym)

_LAZY_IMPORTS = {
    **dict.fromkeys(("GymEnv", "GymWrapper", "gym_backend", "register_gym_spec_conversion", "set_gym_backend"), "gym"),
    **dict.fromkeys(("MOGymEnv", "MOGymWrapper"), "mo_gym"),
    **dict.fromkeys(("MultiThreadedEnv", "MultiThreadedEnvWrapper"), "envpool"),
    "NativeEnv": "native",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(import_module(f".libs.{_LAZY_IMPORTS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
