"""Module paths and names that scripts written for TorchRL import, resolved when they are first used.

A script that imports from `torchrl.envs.common` may import from `vecrl.envs.common`. Such modules have no files: a
finder makes them from the tables below, and their names are those of the modules that have files. So every class has
one definition, and pickles name its own module. Other modules are imported on first use only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

LIBRARIES = {
    "agent_libraries": (
        *("LBForagingEnv", "LBForagingWrapper", "MeltingpotEnv", "MeltingpotWrapper", "PettingZooEnv"),
        *("PettingZooWrapper", "SMACv2Env", "SMACv2Wrapper"),
    ),
    "brax": ("BraxEnv", "BraxWrapper"),
    "envpool": ("MultiThreadedEnv", "MultiThreadedEnvWrapper"),
    "genesis": ("GenesisEnv", "GenesisWrapper"),
    "gym": ("GymEnv", "GymWrapper", "gym_backend", "register_gym_spec_conversion", "set_gym_backend"),
    "gym_libraries": (
        *("DMControlEnv", "DMControlWrapper", "HabitatEnv", "MOGymEnv", "MOGymWrapper", "ProcgenEnv", "ProcgenWrapper"),
        *("RoboHiveEnv", "SafetyGymnasiumEnv", "SafetyGymnasiumWrapper"),
    ),
    "isaac": ("IsaacGymEnv", "IsaacGymWrapper", "IsaacLabWrapper"),
    "jumanji": ("JumanjiEnv", "JumanjiWrapper"),
    "make_env": ("env_maker", "make_env"),
    "mjlab": ("MJLabEnv", "MJLabWrapper"),
    "native": ("NativeEnv",),
    "openml": ("OpenMLEnv",),
    "openspiel": ("OpenSpielEnv", "OpenSpielWrapper"),
    "agent_mapping": ("MujocoPlaygroundAgentMapping", "MujocoPlaygroundAgentSpec"),
    "playground": ("MujocoPlaygroundEnv", "MujocoPlaygroundWrapper"),
    "simulator_env": ("SimulatorEnv",),
    "unity_mlagents": ("UnityMLAgentsEnv", "UnityMLAgentsWrapper"),
    "vmas": ("VmasEnv", "VmasWrapper"),
}
"""The names of each module of `vecrl.envs.libs`. `vecrl.envs` has all, and `vecrl.envs.libs` all but `make_env`."""

_PATHS = {
    "vecrl.envs": """
        envs.async_envs envs.batched_envs envs.common envs.env_creator envs.llm envs.llm.chat envs.llm.datasets
        envs.llm.datasets.countdown envs.llm.datasets.gsm8k envs.llm.datasets.ifeval envs.llm.datasets.math
        envs.llm.envs envs.llm.libs envs.llm.libs.mlgym envs.llm.reward envs.llm.reward.countdown
        envs.llm.reward.gsm8k envs.llm.reward.ifeval envs.llm.reward.math envs.llm.transforms
        envs.llm.transforms.browser envs.llm.transforms.dataloading envs.llm.transforms.format envs.llm.transforms.kl
        envs.llm.transforms.policy_version envs.llm.transforms.reason envs.llm.transforms.tokenizer
        envs.llm.transforms.tools envs.vec_envs
        """,
    "vecrl.envs.custom": """
        envs.custom.llm envs.custom.mujoco envs.custom.mujoco.ant envs.custom.mujoco.base envs.custom.mujoco.cube_bowl
        envs.custom.mujoco.hopper envs.custom.mujoco.humanoid envs.custom.mujoco.microduck envs.custom.mujoco.satellite
        envs.custom.mujoco.walker envs.custom.tictactoeenv envs.custom.vla
        """,
    "vecrl.envs.libs": """
        envs.libs.craftground envs.libs.dm_control envs.libs.habitat envs.libs.isaac_lab
        envs.libs.isaacgym envs.libs.jax_utils envs.libs.lbforaging envs.libs.libero envs.libs.meltingpot
        envs.libs.mujoco_playground envs.libs.pettingzoo envs.libs.procgen envs.libs.robohive
        envs.libs.safety_gymnasium envs.libs.smacv2 envs.libs.utils
        """,
    "vecrl.envs.model_based": "envs.model_based.common envs.model_based.world_model_env",
    "vecrl.envs.transforms": """
        envs.transforms.gym_transforms envs.transforms.mean_action_selector envs.transforms.module envs.transforms.r3m
        envs.transforms.ray_service envs.transforms.rb_transforms envs.transforms.rnd envs.transforms.transforms
        envs.transforms.utils envs.transforms.vc1 envs.transforms.vip
        """,
    "vecrl.record.loggers": """
        record.loggers.common record.loggers.monitoring record.loggers.process record.loggers.ray record.loggers.trackio
        record.loggers.utils
        """,
}
MODULES = {f"vecrl.{path}": source for source, paths in _PATHS.items() for path in paths.split()}
"""The modules without files, and the modules that have their names."""

NAMES: dict[str, dict[str, str]] = {
    "vecrl.envs.batched_envs": {"BatchedEnvBase": "vecrl.envs.batched.BatchedEnv"},
    "vecrl.envs.libs.gym": {
        "MOGymEnv": "vecrl.envs.libs.gym_libraries.MOGymEnv",
        "MOGymWrapper": "vecrl.envs.libs.gym_libraries.MOGymWrapper",
        "_gym_to_torchrl_spec_transform": "vecrl.envs.libs.gym.spaces.gym_to_spec",
        "_torchrl_to_gym_spec_transform": "vecrl.envs.libs.gym.spaces.spec_to_gym",
    },
    "vecrl.envs.transforms.transforms": {
        "_apply_to_composite": "vecrl.envs.transforms.spec_hooks.each_entry",
        "_apply_to_composite_inv": "vecrl.envs.transforms.spec_hooks.each_input_entry",
    },
}
"""Names of a module that other modules define."""
_LIBRARY_NAMES = {name: f"vecrl.envs.libs.{library}.{name}" for library, names in LIBRARIES.items() for name in names}
NAMES["vecrl.envs"] = _LIBRARY_NAMES
NAMES["vecrl.envs.libs"] = {name: path for name, path in _LIBRARY_NAMES.items() if name not in LIBRARIES}

_MUJOCO = "It is one of TorchRL's own MuJoCo tasks. Use gymnasium's: GymEnv(\"{}\")"
_ROBOTS = "vecrl has no tasks of one robot or satellite"
_MACRO = "vecrl does not plan several actions of one robot. Use MultiAction, which runs several actions in one step"
_NO_LIBRARY = "vecrl does not wrap this simulator"
_LANGUAGE = "vecrl has no tasks of language models. It has LLMEnv, LLMHashingEnv, DataLoadingPrimer and Tokenizer"
_KL = "Use KLRewardTransform"
_NOT_THERE = "vecrl has no replacement"

ABSENT: dict[str, str] = {
    "AntEnv": _MUJOCO.format("Ant-v5"),
    "HopperEnv": _MUJOCO.format("Hopper-v5"),
    "HumanoidEnv": _MUJOCO.format("Humanoid-v5"),
    "Walker2dEnv": _MUJOCO.format("Walker2d-v5"),
    "MujocoEnv": "It is the base of TorchRL's own MuJoCo tasks. Derive from gymnasium's MujocoEnv and use GymWrapper",
    **dict.fromkeys(("CubeBowlEnv", "SatelliteEnv", "SatelliteAttitudeTransform", "ToyVLAEnv"), _ROBOTS),
    **dict.fromkeys(("CartesianSolver", "URScriptPrimitive", "URScriptPrimitiveTransform"), _ROBOTS),
    **dict.fromkeys(("MicroDuckEnv", "MicroDuckTask", "MicroDuckTaskSampler"), _ROBOTS),
    **dict.fromkeys(("MacroAction", "MacroPrimitive", "MacroPrimitiveTransform", "TargetMacroAction"), _MACRO),
    **dict.fromkeys(("HumanoidMacroAction", "RobotMacroAction", "RobotMacroActionMode"), _MACRO),
    "SatelliteMacroAction": _MACRO,
    **dict.fromkeys(("RayTransform", "RayModuleTransform"), "Use ParallelEnv(..., backend='ray')"),
    **dict.fromkeys(("CraftGroundEnv", "CraftGroundWrapper"), _NO_LIBRARY),
    **dict.fromkeys(("LiberoEnv", "LiberoWrapper"), _NO_LIBRARY),
    "WorldModelEnv": _NOT_THERE,
    **dict.fromkeys(("ActionChunkTransform", "ActionTokenizerTransform", "DecodeVideoTransform"), _NOT_THERE),
    **dict.fromkeys(("FlattenTensorDict", "PolicyAgeFilter", "RNDTransform", "SuccessReward"), _NOT_THERE),
    **dict.fromkeys(("Every", "LoggerMonitor", "ProcessLogger", "RayLogger", "TrackioLogger"), _NOT_THERE),
    **dict.fromkeys(("ChatEnv", "DatasetChatEnv", "CountdownEnv", "GSM8KEnv", "IFEvalEnv", "MATHEnv"), _LANGUAGE),
    **dict.fromkeys(("CountdownRewardParser", "GSM8KPrepareQuestion", "GSM8KRewardParser", "IFEvalData"), _LANGUAGE),
    **dict.fromkeys(("IFEvalScoreData", "IfEvalScorer", "MATHRewardParser", "make_gsm8k_env"), _LANGUAGE),
    **dict.fromkeys(("MLGymWrapper", "MLGymBaseTransform", "MLGymRewardAssignment", "make_mlgym"), _LANGUAGE),
    **dict.fromkeys(("EvaluationOutputParser", "IsolateCodeBlock", "MessageToHistory", "ReadState"), _LANGUAGE),
    **dict.fromkeys(("ResetModule", "StateToMessage", "TaskSampler", "TemplateTransform"), _LANGUAGE),
    **dict.fromkeys(("AddThinkingPrompt", "BrowserTransform", "IncrementalTokenizer", "PolicyVersion"), _LANGUAGE),
    **dict.fromkeys(("ExecuteToolsInOrder", "JSONCallParser", "LLMToolParser", "MCPToolTransform"), _LANGUAGE),
    **dict.fromkeys(("ParseResult", "PersistentPythonProcess", "PythonExecutorService"), _LANGUAGE),
    **dict.fromkeys(("PythonInterpreter", "SimpleToolTransform", "ToolCall", "ToolRegistry", "ToolService"), _LANGUAGE),
    **dict.fromkeys(("ToolTransformBase", "VersionChange", "XMLBlockParser"), _LANGUAGE),
    **dict.fromkeys(("KLComputation", "RayKLRewardTransform", "RayRetrieveKL", "RetrieveKL", "RetrieveLogProb"), _KL),
    "RayDataLoadingPrimer": "Use DataLoadingPrimer",
    "GymPixelObservationWrapper": "Use GymEnv(..., from_pixels=True)",
    "RunningMeanStd": "Use vecrl.venv.RunningMeanStd or VecNorm",
    "cat_frames": "Use CatFrames",
    "terminal_obs_reader": 'It is not needed: "next" holds the final observations of vector environments',
}
"""Names of TorchRL that vecrl does not have, and why or what to use. They can be imported, but not used."""


def lazy_names(module: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module: it finds the names of the tables.

    >>> from vecrl.envs.common import EnvBase
    >>> from vecrl import envs
    >>> EnvBase is envs.EnvBase
    True
    """

    def find(name: str) -> Any:
        if name in NAMES.get(module, ()):
            source, _, attribute = NAMES[module][name].rpartition(".")
            return getattr(import_module(source), attribute)
        if module in MODULES and not name.startswith("__"):
            return getattr(import_module(MODULES[module]), name)
        if name in ABSENT:
            return _absent_class(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


@cache
def _absent_class(name: str) -> type:
    def init(self: object, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"Expected a name of vecrl, got TorchRL's {name}. {ABSENT[name]}.")

    return type(name, (), {"__init__": init, "__doc__": f"Not in vecrl. {ABSENT[name]}.", "__module__": __name__})


class _AliasFinder(MetaPathFinder, Loader):
    """Makes the modules of `MODULES`; files of the same path take precedence, since it is the last finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return spec_from_loader(fullname, self, origin=__name__, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        source = import_module(MODULES[module.__name__])
        module.__doc__ = f"The names of {source.__name__}."
        module.__dict__.update(__getattr__=lazy_names(module.__name__), __all__=source.__all__)


def install() -> None:
    """Makes the modules of `MODULES` importable; `vecrl.envs` is complete.

    An import sets an attribute of the package. So the module `vecrl.envs.env_creator` is imported now, and the function
    of the same name is set again.
    """
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(_AliasFinder())
        envs = import_module("vecrl.envs")
        function = envs.env_creator
        import_module("vecrl.envs.env_creator")
        vars(envs).update(env_creator=function)
