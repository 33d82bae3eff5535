"""Environments over TensorDicts, under TorchRL's names.

Wrappers of other libraries are imported on first use.
"""

from ..imports import require_extra

require_extra("tensordict", __name__)

from typing import TYPE_CHECKING, Any

from . import aliases, transforms
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
from .transforms.primer import add_policy_transforms
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
    from .libs.agent_libraries import (
        LBForagingEnv,
        LBForagingWrapper,
        MeltingpotEnv,
        MeltingpotWrapper,
        PettingZooEnv,
        PettingZooWrapper,
        SMACv2Env,
        SMACv2Wrapper,
    )
    from .libs.agent_mapping import MujocoPlaygroundAgentMapping, MujocoPlaygroundAgentSpec
    from .libs.brax import BraxEnv, BraxWrapper
    from .libs.envpool import MultiThreadedEnv, MultiThreadedEnvWrapper
    from .libs.genesis import GenesisEnv, GenesisWrapper
    from .libs.gym import GymEnv, GymWrapper, gym_backend, register_gym_spec_conversion, set_gym_backend
    from .libs.gym_libraries import DMControlEnv, DMControlWrapper, HabitatEnv, MOGymEnv, MOGymWrapper, RoboHiveEnv
    from .libs.isaac import IsaacGymEnv, IsaacGymWrapper, IsaacLabWrapper
    from .libs.jumanji import JumanjiEnv, JumanjiWrapper
    from .libs.make_env import env_maker, make_env
    from .libs.mjlab import MJLabEnv, MJLabWrapper
    from .libs.native import NativeEnv
    from .libs.openml import OpenMLEnv
    from .libs.openspiel import OpenSpielEnv, OpenSpielWrapper
    from .libs.playground import MujocoPlaygroundEnv, MujocoPlaygroundWrapper
    from .libs.simulator_env import SimulatorEnv
    from .libs.unity_mlagents import UnityMLAgentsEnv, UnityMLAgentsWrapper
    from .libs.vmas import VmasEnv, VmasWrapper

__all__ = [
    "AsyncEnvPool",
    "BraxEnv",
    "BraxWrapper",
    "ChessEnv",
    "DMControlEnv",
    "DMControlWrapper",
    "DreamerDecoder",
    "DreamerEnv",
    "EnvBase",
    "EnvCreator",
    "EnvMetaData",
    "ExplorationType",
    "FinancialRegimeEnv",
    "GenesisEnv",
    "GenesisWrapper",
    "GymEnv",
    "GymLikeEnv",
    "GymWrapper",
    "HabitatEnv",
    "ImaginedEnv",
    "IsaacGymEnv",
    "IsaacGymWrapper",
    "IsaacLabWrapper",
    "JumanjiEnv",
    "JumanjiWrapper",
    "LBForagingEnv",
    "LBForagingWrapper",
    "LLMEnv",
    "LLMHashingEnv",
    "MJLabEnv",
    "MJLabWrapper",
    "MOGymEnv",
    "MOGymWrapper",
    "MarlGroupMapType",
    "MeltingpotEnv",
    "MeltingpotWrapper",
    "ModelBasedEnvBase",
    "MujocoPlaygroundAgentMapping",
    "MujocoPlaygroundAgentSpec",
    "MujocoPlaygroundEnv",
    "MujocoPlaygroundWrapper",
    "MultiThreadedEnv",
    "MultiThreadedEnvWrapper",
    "NativeEnv",
    "OpenMLEnv",
    "OpenSpielEnv",
    "OpenSpielWrapper",
    "ParallelEnv",
    "PendulumEnv",
    "PettingZooEnv",
    "PettingZooWrapper",
    "ProcessorAsyncEnvPool",
    "RandomPolicy",
    "RoboHiveEnv",
    "SMACv2Env",
    "SMACv2Wrapper",
    "SerialEnv",
    "SimulatorEnv",
    "ThreadingAsyncEnvPool",
    "TicTacToeEnv",
    "UnityMLAgentsEnv",
    "UnityMLAgentsWrapper",
    "VmasEnv",
    "VmasWrapper",
    "check_env_specs",
    "check_marl_grouping",
    "default_info_dict_reader",
    "env_creator",
    "env_maker",
    "exploration_type",
    "get_available_libraries",
    "get_env_metadata",
    "gym_backend",
    "make_composite_from_td",
    "make_env",
    "make_tensordict",
    "register_gym_spec_conversion",
    "set_exploration_type",
    "set_gym_backend",
    "step_mdp",
    "terminated_or_truncated",
]
__all__ += transforms.__all__


def _register_gym(*args: Any, **kwargs: Any) -> None:
    from .libs.gym.register import register_gym

    register_gym(*args, **kwargs)


upper_modules.update(
    TransformedEnv=transforms.TransformedEnv,
    ParallelEnv=ParallelEnv,
    register_gym=_register_gym,
    add_policy_transforms=add_policy_transforms,
)

__getattr__ = aliases.lazy_names(__name__)
aliases.install()
