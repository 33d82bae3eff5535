"""The entries of vecrl's own simulators in the registry: a simulator is one file in this folder and one entry here.

A simulator is imported when one of its functions is called. This module must not know any dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Signature, signature
from typing import Any

from ..imports import require_extra
from .registry import keep_own_entries, register


@dataclass(frozen=True)
class _LazyFunction:
    """A function of a module of this package, which is imported when the function is called."""

    module: str
    name: str
    options: Mapping[str, object]
    needs_torch: bool = False

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._function(*args, **self.options, **kwargs)

    @property
    def __signature__(self) -> Signature:
        return signature(self._function)

    @property
    def _function(self) -> Callable[..., object]:
        if self.needs_torch:
            require_extra("torch", f"{__package__}{self.module}")
        return getattr(import_module(self.module, __package__), self.name)


def _single(module: str, **options: object) -> dict[str, Any]:
    """Returns `env_fn` and `names` of an entry: functions of a module, called with `options` too."""
    return {function: _LazyFunction(module, function, options) for function in ("env_fn", "names")}


def _batched(module: str, **options: object) -> dict[str, Any]:
    """Returns `make_batch` and `names` of an entry: functions of a module that needs torch, called with `options`."""
    return {function: _LazyFunction(module, function, options, True) for function in ("make_batch", "names")}


_STATE_IN_CPP = "the library keeps its state in C++ and cannot save it"
_ISAAC_LIMITS = {
    "seeds": "the rows share one random generator",
    "partial reset": "the rows reset themselves",
    "final observation": "a row that ends is reset before its observation is computed",
    "pixels": "cameras are part of the observations",
    "states": "the state is in the physics engine",
}

register(
    "gym",
    summary="gymnasium's environments, stepped one after another",
    example="CartPole-v1",
    env_class="gym:GymEnv",
    requires=["gymnasium"],
    **_single(".gymnasium"),
)
register(
    "brax",
    summary="Brax's environments, in one compiled call",
    extra="brax",
    example="inverted_pendulum",
    env_class="brax:BraxEnv",
    requires=["brax"],
    **_batched(".brax", old=False),
)
register(
    "brax::old",
    summary="those of brax.v1",
    extra="brax-v1",
    example="inverted_pendulum",
    requires=["brax.v1"],
    **_batched(".brax", old=True),
)
register(
    "native",
    summary="vecrl's own tasks, as tensors on any device",
    extra="torch",
    example="CartPole-v1",
    env_class="native:NativeEnv",
    requires=["torch"],
    **_batched(".native"),
)
register(
    "mujoco",
    summary="gymnasium's MuJoCo tasks, equal to the bit, stepped by threads in one process",
    extra="mujoco",
    example="InvertedPendulum-v5",
    requires=["mujoco"],
    **_batched(".mujoco"),
)
register(
    "openml",
    summary="contextual bandits from data sets: scikit-learn's, ARFF files, the cache of the OpenML client",
    extra="openml",
    example="iris",
    env_class="openml:OpenMLEnv",
    limits={"pixels": "a context is a row of numbers"},
    requires=["sklearn"],
    **_batched(".openml"),
)
register(
    "dmc",
    summary="dm_control's suite, stepped one after another",
    extra="dmc",
    example="cartpole-swingup",
    env_class="gym_libraries:DMControlEnv",
    requires=["dm_control"],
    **_single(".dm_control"),
)
register(
    "vmas",
    summary="VMAS's teams of robots, as tensors on any device",
    extra="vmas",
    example="balance",
    env_class="vmas:VmasEnv",
    requires=["vmas"],
    **_batched(".vmas"),
)
register(
    "pettingzoo",
    summary="environments of several agents: PettingZoo's and mpe2's",
    extra="pettingzoo",
    example="mpe2/simple_spread_v3",
    env_class="agent_libraries:PettingZooEnv",
    requires=["pettingzoo"],
    **_single(".pettingzoo"),
)
register(
    "unity",
    summary="Unity builds with ML-Agents, by their paths",  # no extra: "unity" has only what ML-Agents needs
    env_class="unity_mlagents:UnityMLAgentsEnv",
    limits={
        "pixels": "a player renders into a window of its own",
        "states": "the state is in the player, which does not send it",
    },
    requires=["mlagents_envs"],
    **_single(".unity"),
)
register(
    "jumanji",
    summary="Jumanji's environments, in one compiled call",
    extra="jumanji",
    example="Maze-v0",
    env_class="jumanji:JumanjiEnv",
    requires=["jumanji"],
    **_batched(".jumanji"),
)
register(
    "gymnax",
    summary="gymnax's environments, in one compiled call",
    extra="gymnax",
    example="Catch-bsuite",
    requires=["gymnax"],
    **_batched(".gymnax"),
)
register(
    "pgx",
    summary="Pgx's board games, card games and MinAtar, in one compiled call",
    extra="pgx",
    example="tic_tac_toe",
    limits={"pixels": "games of MinAtar have frames, others are drawn as SVG texts"},
    requires=["pgx"],
    **_batched(".pgx"),
)
register(
    "xminigrid",
    summary="XLand-MiniGrid's grids, in one compiled call",
    extra="xminigrid",
    example="MiniGrid-EmptyRandom-5x5",
    requires=["xminigrid"],
    **_batched(".xminigrid"),
)
register(
    "navix",
    summary="Navix's grids, which are MiniGrid's, in one compiled call",
    extra="navix",
    example="Navix-Empty-Random-5x5-v0",
    requires=["navix"],
    **_batched(".navix"),
)
register(
    "jaxmarl",
    summary="JaxMARL's environments of several agents, in one compiled call",
    extra="jaxmarl",
    example="MPE_simple_spread_v3",
    requires=["jaxmarl"],
    **_batched(".jaxmarl"),
)
register(
    "craftax",
    summary="Craftax and Craftax-Classic, in one compiled call",
    extra="craftax",
    example="Craftax-Classic-Symbolic-v1",
    limits={"pixels": "the environments with Pixels in their names observe images, others have none"},
    requires=["craftax"],
    **_batched(".craftax"),
)
register(
    "playground",
    summary="MuJoCo Playground's environments, in one compiled call",
    extra="playground",
    example="CartpoleBalance",
    env_class="playground:MujocoPlaygroundEnv",
    requires=["mujoco_playground"],
    **_batched(".playground"),
)
register(
    "warp",
    summary="MuJoCo models in MuJoCo Warp, in one batch on a CPU or GPU",
    extra="warp",
    example="cartpole-balance",
    requires=["mujoco_warp"],
    **_batched(".mujoco.warp"),
)
register(
    "genesis",
    summary="robots in Genesis, in one batch on a CPU or GPU",
    extra="genesis",
    example="franka-reach",
    requires=["genesis"],
    **_batched(".genesis_tasks"),
)
register(
    "smac",
    summary="battles of StarCraft II with SMACv2",
    example="3m",
    env_class="agent_libraries:SMACv2Env",
    limits={"states": "the state is in StarCraft II, which does not send it"},
    requires=["smacv2"],
    **_single(".smacv2"),
)
register(
    "openspiel",
    summary="OpenSpiel's games: turn-based ones, of simultaneous moves, with chance",
    extra="openspiel",
    example="connect_four",
    env_class="openspiel:OpenSpielEnv",
    limits={"pixels": "games are rendered as texts"},
    requires=["pyspiel"],
    **_single(".openspiel"),
)
register(
    "safety",
    summary="Safety-Gymnasium on Python 3.10 (VECRL_PYTHON_SAFETY), with the cost in the info",
    example="SafetyPointGoal1-v0",
    env_class="gym_libraries:SafetyGymnasiumEnv",
    limits={"states": "the environment is on another Python interpreter"},
    **_single(".safety"),
)
register(
    "roboschool",
    summary="Roboschool on Python 3.7 (VECRL_PYTHON_ROBOSCHOOL), else PyBullet's ports of its tasks",
    extra="pybullet",
    example="RoboschoolInvertedPendulum-v1",
    limits={
        "states": "the environment is on another Python interpreter",
        "pixels": "Roboschool renders to a screen only",
    },
    **_single(".roboschool"),
)
register(
    "envpool",
    summary="EnvPool's environments, stepped by threads in C++",
    extra="envpool",
    example="CartPole-v1",
    env_class="envpool:MultiThreadedEnv",
    limits={
        "pixels": "EnvPool ends the process when it renders without a display",
        "states": "EnvPool cannot read or write states",
    },
    requires=["envpool"],
    **_batched(".envpool"),
)
register(
    "meltingpot",
    summary="substrates of Melting Pot, stepped one after another",
    example="prisoners_dilemma_in_the_matrix__repeated",
    env_class="agent_libraries:MeltingpotEnv",
    limits={
        "seeds": "equal seeds give different episodes in Melting Pot itself",
        "states": "the state of a substrate is in Lua and cannot be copied",
    },
    requires=["meltingpot"],
    **_single(".meltingpot"),
)
register(
    "atari-vector",
    summary="Atari 2600 games with frames of 84 x 84 pixels, stepped by threads in C++",
    extra="atari",
    example="breakout",
    limits={
        "states": "ale-py's vector environment has no access to the state of its games",
        "partial reset": "rows can be reset one by one, but are stepped together only",
    },
    requires=["ale_py"],
    **_batched(".atari_vector"),
)
register(
    "minigrid",
    summary="MiniGrid's and BabyAI's grids",
    extra="minigrid",
    example="MiniGrid-Empty-5x5-v0",
    requires=["minigrid"],
    **_single(".gymnasium.libraries", library="minigrid"),
)
register(
    "atari",
    summary="Atari 2600 games",
    extra="atari",
    example="ALE/Breakout-v5",
    requires=["ale_py"],
    **_single(".gymnasium.libraries", library="atari"),
)
register(
    "box2d",
    summary="gymnasium's environments with the physics of Box2D",
    extra="box2d",
    example="LunarLander-v3",
    limits={"states": _STATE_IN_CPP},
    requires=["Box2D"],
    **_single(".gymnasium.libraries", library="box2d"),
)
register(
    "mo",
    summary="mo-gymnasium, with the sum of the objectives as reward",
    extra="mo-gym",
    example="deep-sea-treasure-v0",
    env_class="gym_libraries:MOGymEnv",
    requires=["mo_gymnasium"],
    **_single(".gymnasium.libraries", library="mo"),
)
register(
    "highway",
    summary="highway-env's driving tasks",
    extra="highway",
    example="highway-fast-v0",
    requires=["highway_env"],
    **_single(".gymnasium.libraries", library="highway"),
)
register(
    "pybullet",
    summary="PyBullet's robots",
    extra="pybullet",
    example="HopperBulletEnv-v0",
    limits={"states": _STATE_IN_CPP},
    requires=["pybullet_envs_gymnasium"],
    **_single(".gymnasium.libraries", library="pybullet"),
)
register(
    "nle",
    summary="the NetHack Learning Environment",
    extra="nle",
    example="NetHackScore-v0",
    limits={"states": _STATE_IN_CPP},
    requires=["nle"],
    **_single(".gymnasium.libraries", library="nle"),
)
register(
    "crafter",
    summary="Crafter, a world to survive in",
    extra="crafter",
    example="CrafterReward-v1",
    requires=["crafter"],
    **_single(".gymnasium.libraries", library="crafter"),
)
register(
    "robotics",
    summary="gymnasium-robotics: arms and hands with goals, mazes, a kitchen",
    extra="robotics",
    example="PointMaze_UMaze-v3",
    requires=["gymnasium_robotics"],
    **_single(".gymnasium.libraries", library="robotics"),
)
register(
    "metaworld",
    summary="Meta-World's fifty tasks of a robot arm",
    example="reach-v3",
    requires=["metaworld"],
    **_single(".gymnasium.libraries", library="metaworld"),
)
register(
    "ogbench",
    summary="OGBench's mazes, robots and puzzles with goals",
    extra="ogbench",
    example="pointmaze-medium-v0",
    requires=["ogbench"],
    **_single(".gymnasium.libraries", library="ogbench"),
)
register(
    "minihack",
    summary="MiniHack's dungeons of NetHack",
    example="MiniHack-Room-5x5-v0",
    limits={"states": _STATE_IN_CPP},
    requires=["minihack", "nle"],
    **_single(".gymnasium.libraries", library="minihack"),
)
register(
    "vizdoom",
    summary="ViZDoom's scenarios in the engine of Doom",
    extra="vizdoom",
    example="VizdoomBasic-v1",
    limits={"states": "the state is in the engine of Doom, which does not send it"},
    requires=["vizdoom"],
    **_single(".gymnasium.libraries", library="vizdoom"),
)
register(
    "popgym",
    summary="POPGym's tasks that need memory",
    extra="popgym",
    example="popgym-RepeatPreviousEasy-v0",
    limits={"pixels": "the library does not render"},
    requires=["popgym"],
    **_single(".gymnasium.libraries", library="popgym"),
)
register(
    "memorygym",
    summary="Memory Gym: mazes, commands and spotlights to remember, as pixels",
    extra="memory-gym",
    example="MortarMayhemB-v0",
    requires=["memory_gym", "gym"],
    **_single(".gymnasium.libraries", library="memorygym"),
)
register(
    "bsuite",
    summary="bsuite's small tasks, each of which tests one ability",
    extra="bsuite",
    example="catch/0",
    limits={"pixels": "the library does not render"},
    requires=["bsuite"],
    **_single(".gymnasium.libraries", library="bsuite"),
)
register(
    "flappybird",
    summary="Flappy Bird, with lidar distances or twelve numbers as observations",
    extra="flappybird",
    example="FlappyBird-v0",
    limits={"states": "the bird's wings are an iterator, which cannot be copied"},
    requires=["flappy_bird_gymnasium"],
    **_single(".gymnasium.libraries", library="flappybird"),
)
register(
    "pusht",
    summary="PushT: a block to push to its place, as in LeRobot",
    extra="pusht",
    example="gym_pusht/PushT-v0",
    limits={"states": _STATE_IN_CPP},
    requires=["gym_pusht"],
    **_single(".gymnasium.libraries", library="pusht"),
)
register(
    "panda",
    summary="panda-gym: a robot arm with goals in PyBullet",
    extra="panda",
    example="PandaReach-v3",
    limits={"states": _STATE_IN_CPP},
    requires=["panda_gym"],
    **_single(".gymnasium.libraries", library="panda"),
)
register(
    "miniworld",
    summary="MiniWorld's rooms, seen by a camera",
    extra="miniworld",
    example="MiniWorld-OneRoom-v0",
    limits={"states": "textures and frame buffers are in OpenGL"},
    requires=["miniworld"],
    **_single(".gymnasium.libraries", library="miniworld"),
)
register(
    "rware",
    summary="robots in a warehouse that work together",
    extra="rware",
    env_class="agent_libraries:RwareEnv",
    example="rware-tiny-2ag-v2",
    limits={"states": "to restore one, allow the class of its actions: allow=['rware.warehouse.Action']"},
    requires=["rware"],
    **_single(".gymnasium.libraries", library="rware"),
)
register(
    "lbforaging",
    summary="level-based foraging of several agents",
    extra="lbforaging",
    env_class="agent_libraries:LBForagingEnv",
    example="Foraging-8x8-2p-1f-v3",
    requires=["lbforaging"],
    **_single(".gymnasium.libraries", library="lbforaging"),
)
register(
    "retro",
    summary="games of old consoles with stable-retro, one in each process",
    extra="retro",
    example="Airstriker-Genesis-v0",
    limits={"states": "the state is in the emulator"},
    requires=["stable_retro"],
    **_single(".gymnasium.libraries", library="retro"),
)
register(
    "habitat",
    summary="Habitat's tasks, which habitat-lab registers with gym",
    env_class="gym_libraries:HabitatEnv",
    requires=["habitat"],
    **_single(".gymnasium.libraries", library="habitat"),
)
register(
    "robohive",
    summary="RoboHive's tasks",
    env_class="gym_libraries:RoboHiveEnv",
    requires=["robohive"],
    **_single(".gymnasium.libraries", library="robohive"),
)
register(
    "isaacgym",
    summary="Isaac Gym's tasks, on a GPU",
    example="Ant",
    env_class="isaac:IsaacGymEnv",
    limits=_ISAAC_LIMITS,
    requires=["isaacgym", "isaacgymenvs"],
    **_batched(".isaac", library="isaacgym"),
)
register(
    "isaaclab",
    summary="Isaac Lab's environments, on a GPU",
    example="Isaac-Ant-v0",
    env_class="isaac:IsaacLabWrapper",
    limits=_ISAAC_LIMITS,
    requires=["isaacsim", "isaaclab"],
    **_batched(".isaac", library="isaaclab"),
)
register(
    "mjlab",
    summary="robots in MuJoCo Warp with mjlab, on a GPU or the CPU",
    extra="mjlab",
    example="Mjlab-Cartpole-Balance",
    limits={"seeds": "the rows share one random generator", "states": "mjlab does not return its state"},
    requires=["mjlab"],
    **_batched(".mjlab"),
)
register(
    "procgen",
    summary="Procgen's games",
    extra="procgen",
    example="coinrun",
    env_class="gym_libraries:ProcgenEnv",
    requires=["procgen", "gym3"],
    limits={"final observation": "Procgen begins the next episode in the step that ends one"},
    **_single(".procgen"),
)
keep_own_entries()
