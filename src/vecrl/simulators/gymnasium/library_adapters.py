"""Adapters for libraries that deviate from gymnasium's interface; `libraries.PLUGINS` says which uses which.

Adapted environments are seeded by `reset(seed)`, have rewards that are numbers, render as "rgb_array", and have the
current interface. Worker processes import this module, so it must not import torch, nor any of the libraries.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from ...engine.simulator import ResetOptions
from ...engine.space_layout import Tree
from ...errors import SpaceError
from ...gym_interface import Env, EnvReset, EnvStep
from ...seeding import random_seed, seed_for
from ..dm_control import DmEnvAdapter
from ..legacy_gym import LegacyGymAdapter
from .make import RewardInInfo
from .make import make as make_by_id


class NetHackAdapter(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Seeds NetHack by gymnasium's seeds, which NLE ignores, and renders its pixels as "rgb_array".

    NLE's own seeds would play one game again and again.
    """

    def __init__(self, env: Env):
        super().__init__(env)
        self._rng: np.random.Generator | None = None
        self.metadata = {**env.metadata, "render_modes": ["rgb_array", "ansi"]}

    @property
    def render_mode(self) -> str | None:
        """The render mode under gymnasium's name."""
        return _NETHACK_RENDER_MODES.get(self.env.render_mode or "")

    def render(self) -> Any:
        """Renders a frame, uint8 `[height, width, 3]`, or the map as text; returns None without a render mode."""
        frame = None if self.render_mode is None else self.env.render()
        return frame.copy() if isinstance(frame, np.ndarray) else frame

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Starts a game. After a seed, it and all later games depend on that seed only."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if self._rng is not None:
            core, display = self._rng.integers(2**31, size=2).tolist()
            self.unwrapped.seed(core, display, reseed=False)  # pyright: ignore[reportAttributeAccessIssue]
        return self.env.reset(options=dict(options) if options else None)  # NLE refuses an empty dict


class MissionCodes(gymnasium.ObservationWrapper[Tree, Tree, Tree]):
    """Encodes MiniGrid's mission, a text, as an array: uint8 `[256]`, the codes of UTF-8 and then zeros."""

    SIZE = 256  # the longest missions have about 170 characters

    def __init__(self, env: Env):
        super().__init__(env)
        inner_space: Any = env.observation_space
        codes = gymnasium.spaces.Box(0, 255, (self.SIZE,), np.uint8)
        self.observation_space = gymnasium.spaces.Dict({**inner_space.spaces, "mission": codes})

    def observation(self, observation: Tree) -> Tree:
        """Replaces the mission by its codes."""
        codes = observation["mission"].encode()
        if len(codes) > self.SIZE:
            raise SpaceError(
                f"Expected a mission of at most {self.SIZE} bytes, got {len(codes)}. Make the environment with "
                'mission="text".'
            )
        return {**observation, "mission": np.frombuffer(codes.ljust(self.SIZE, b"\0"), np.uint8)}


def make_minigrid(name: str, mission: str = "codes", **kwargs: Any) -> Env:
    """Makes an environment of MiniGrid with the mission as "codes", or as "text", of which tensors cannot be made."""
    if mission not in ("codes", "text"):
        raise ValueError(f"Expected mission 'codes' or 'text', got {mission!r}.")
    env = gymnasium.make(name, **kwargs)
    return MissionCodes(env) if mission == "codes" else env


_NETHACK_RENDER_MODES = {"pixel": "rgb_array", "ansi": "ansi"}


def make_nethack(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
    """Makes an environment of NLE, which by default would print to the terminal."""
    mode = "pixel" if render_mode == "rgb_array" else render_mode
    env = gymnasium.make(name, render_mode=mode, **kwargs)
    return NetHackAdapter(env)


class MoAdapter(RewardInInfo):
    """Sums rewards, and refuses discrete actions that the action space does not have, which minecart would take."""

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment."""
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete) and not space.contains(action):
            raise SpaceError(f"Expected an action of {space}, got {action!r}. Give one of its numbers.")
        return super().step(action)


class HighwayAgents(RewardInInfo):
    """Sums the rewards of the agents, which are in the info too, and ends an episode for all of them together."""

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment; the agents' own ends are in the info under "agents_terminated"."""
        obs, reward, terminated, truncated, info = super().step(action)
        if isinstance(terminated, tuple):
            highway: Any = self.unwrapped
            terminated = bool(highway._is_terminated())
        return obs, reward, terminated, truncated, info


class HighwayFrames(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Renders frames without a display: with SDL_VIDEODRIVER=dummy, highway-env would return black ones."""

    def render(self) -> Any:
        """Renders a frame as the environment does."""
        highway: Any = self.unwrapped
        if highway.viewer is None:
            self.env.render()
        if highway.viewer is not None:
            highway.viewer.enabled = True
        return self.env.render()


def adapt_highway(env: Env) -> Env:
    """Lets highway-env render without a display, and gives several agents one reward and one end."""
    env = HighwayFrames(env)
    return HighwayAgents(env) if isinstance(env.action_space, gymnasium.spaces.Tuple) else env


class CrafterAdapter(LegacyGymAdapter):
    """Crafter behind gymnasium's interface. An episode that reaches the length limit is truncated."""

    def __init__(self, env: Any, render_mode: str | None = None):
        super().__init__(env)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Creates a world. The worlds of all episodes after a seed depend on that seed only."""
        if seed is not None:
            self.legacy_env._seed, self.legacy_env._episode = seed, 0
        return self.legacy_env.reset(), {}

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment; "discount" is 0 in the info of a death."""
        obs, reward, done, info = self.legacy_env.step(action)
        terminated = bool(done and info["discount"] == 0)
        return obs, reward, terminated, bool(done and not terminated), info

    def render(self) -> np.ndarray | None:
        """Renders a frame, uint8 `[height, width, 3]`; returns None without a render mode."""
        return self.legacy_env.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Has no effect: Crafter holds no resources."""


CRAFTER_REWARDS = {"CrafterReward-v1": True, "CrafterNoReward-v1": False}
"""The names of Crafter, and whether each has rewards."""


def make_crafter(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
    """Makes a Crafter. Without a seed it would draw one from NumPy's global generator, equal in forked workers."""
    kwargs.setdefault("seed", random_seed(31))
    crafter = import_module("crafter")
    return CrafterAdapter(crafter.Env(reward=CRAFTER_REWARDS[name], **kwargs), render_mode)


_NUMPY_RANDOM = threading.Lock()


class OwnNumpyRandom(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """For an environment that draws from NumPy's global generator: gives each environment a state for that generator.

    Its state is set for each reset and step, and the one of the caller is set back, so that equal seeds give equal
    episodes. Environments on threads take turns.
    """

    def __init__(self, env: Env):
        super().__init__(env)
        self._state: Any = np.random.RandomState().get_state()

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with _NUMPY_RANDOM:
            outer = np.random.get_state()  # noqa: NPY002 -- the library draws from it
            np.random.set_state(self._state)  # noqa: NPY002
            try:
                return function(*args, **kwargs)
            finally:
                self._state = np.random.get_state()  # noqa: NPY002
                np.random.set_state(outer)  # noqa: NPY002

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Resets the environment. After a seed, all episodes depend on that seed only."""
        if seed is not None:
            self._state = np.random.RandomState(seed % 2**32).get_state()
        return self._call(self.env.reset, seed=seed, options=options)

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment."""
        return self._call(self.env.step, action)


class SeededResets(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Gives each reset a seed, for an environment that draws new entropy in a reset without one.

    After a seed, all later episodes depend on that seed only.
    """

    def __init__(self, env: Env):
        super().__init__(env)
        self._rng = np.random.default_rng(random_seed())

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Resets the environment."""
        if seed is None:
            seed = int(self._rng.integers(2**31))
        else:
            self._rng = np.random.default_rng(seed)
        return self.env.reset(seed=seed, options=dict(options) if options else None)


@contextmanager
def repair_pymunk() -> Iterator[None]:
    """Lets PushT run with pymunk 7, in which callbacks of collisions are set by another method."""
    yield
    space: Any = import_module("pymunk").Space
    if not hasattr(space, "add_collision_handler"):
        space.add_collision_handler = lambda self, *types: _CollisionHandler(self, *types)


class _CollisionHandler:
    """Its attributes are the functions to call in a phase of a collision, such as `post_solve`."""

    def __init__(self, space: Any, *types: int):
        vars(self)["_set_callback"] = partial(space.on_collision, *types)

    def __setattr__(self, phase: str, function: Any) -> None:
        vars(self)["_set_callback"](**{phase: function})


def clip_observations(env: Env) -> Env:
    """Clips observations to their space, beyond which some of FlappyBird's are by a rounding error."""
    space: Any = env.observation_space
    return gymnasium.wrappers.TransformObservation(env, partial(np.clip, a_min=space.low, a_max=space.high), space)


_PRINTS = threading.Lock()  # held while prints go elsewhere


class BsuiteAdapter(DmEnvAdapter):
    """A task of bsuite. A seed sets the random states of the task and of its wrappers, which add noise."""

    def _seed(self, seed: int) -> None:
        env, chain = self.dm_env, list[Any]()
        while env is not None:
            chain.insert(0, env)
            env = vars(env).get("_env")
        values = (value for env in chain for value in vars(env).values())
        states = [value for value in values if isinstance(value, np.random.RandomState)]
        for index, state in enumerate(states):
            state.seed(seed_for(seed, index) if index else seed)


def bsuite_names() -> Iterable[str]:
    """Returns the names of bsuite's tasks, such as "catch/0", without those that download data."""
    return [name for name in import_module("bsuite.sweep").SWEEP if not name.startswith("mnist")]


def make_bsuite(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
    """Makes a task of bsuite; what bsuite prints goes to stderr."""
    if render_mode is not None:
        raise ValueError(f"Expected no render_mode for bsuite::, which does not render, got {render_mode!r}. Omit it.")
    with _PRINTS, redirect_stdout(sys.stderr):
        return BsuiteAdapter(import_module("bsuite").load_from_id(name), **kwargs)


_SCREEN = threading.RLock()


class MemoryGymAdapter(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """An environment of Memory Gym, which draws what it observes on the one screen that pygame has in a process.

    Environments on threads take turns, and closing one of them, or another one that uses pygame, keeps the screen.
    """

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        pygame, env = import_module("pygame"), self.unwrapped
        drawn: Any = getattr(env, "legacy_env", env)
        with _SCREEN:
            if pygame.display.get_surface() is not drawn.screen:
                pygame.init()
                drawn.screen = pygame.display.set_mode((drawn.screen_dim,) * 2, pygame.NOFRAME)
            return function(*args, **kwargs)

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Resets the environment."""
        return self._call(self.env.reset, seed=seed, options=dict(options) if options else None)

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment."""
        return self._call(self.env.step, action)

    def render(self) -> Any:
        """Renders a frame as the environment does."""
        return self._call(self.env.render)

    def close(self) -> None:
        """Does nothing, since the library would end pygame in this process."""


def make_memory_gym(name: str, **kwargs: Any) -> Env:
    """Makes an environment of Memory Gym, which is registered with gym."""
    with _SCREEN:
        return MemoryGymAdapter(make_by_id(name, "gym", **kwargs))


def make_minihack(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
    """Makes an environment of MiniHack, which renders only if it observes "pixel": here, the observation is without."""
    if render_mode != "rgb_array":
        return make_nethack(name, render_mode, **kwargs)
    plain: Any = gymnasium.make(name, **kwargs)
    keys = tuple(plain.observation_space)
    plain.close()
    env = make_nethack(name, render_mode, **{**kwargs, "observation_keys": tuple(dict.fromkeys((*keys, "pixel")))})
    return gymnasium.wrappers.FilterObservation(env, keys)


class MetaWorldAdapter(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """A task of Meta-World with another goal in each episode, which is seeded by `reset(seed)`."""

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Starts an episode. After a seed, all goals depend on that seed only."""
        if seed is not None:
            self.unwrapped.seed(seed)  # pyright: ignore[reportAttributeAccessIssue]
        return self.env.reset(options=dict(options) if options else None)


def meta_world_names() -> Iterable[str]:
    """Returns the names of the tasks, such as "reach-v3"."""
    return import_module("metaworld.env_dict").ENV_CLS_MAP


def make_meta_world(
    name: str, render_mode: str | None = None, max_episode_steps: int | None = None, **kwargs: Any
) -> Env:
    """Makes a task of Meta-World, in which the goal is observed. Episodes have 500 steps, by default."""
    env = import_module("metaworld.env_dict").ENV_CLS_MAP[name](render_mode=render_mode, **kwargs)
    env._partially_observable = env._freeze_rand_vec = False
    del env.sawyer_observation_space  # which is computed again, with the goal
    env.observation_space = env.sawyer_observation_space
    env._set_task_called = env.seeded_rand_vec = True
    env.seed(random_seed(31))
    limit = env.max_path_length if max_episode_steps is None else max_episode_steps
    return MetaWorldAdapter(gymnasium.wrappers.TimeLimit(env, limit))


@contextmanager
def repair_meta_world() -> Iterator[None]:
    """Lets Meta-World run with newer versions of MuJoCo, in which a weld has twelve numbers instead of eleven."""
    yield
    mujoco, module = import_module("mujoco"), import_module("metaworld.sawyer_xyz_env")

    def reset_mocap_welds(self: Any) -> None:
        welds = self.model.eq_type == int(mujoco.mjtEq.mjEQ_WELD)
        if self.model.nmocap > 0:
            self.model.eq_data[welds, :11] = [0.0] * 6 + [-1.0, 0.0, 0.0, 0.0, 5.0]

    module.SawyerMocapBase.reset_mocap_welds = reset_mocap_welds


@contextmanager
def repair_robotics() -> Iterator[None]:
    """Lets gymnasium-robotics run with newer versions of MuJoCo: their constants do not equal NumPy's integers."""
    yield
    utils: Any = import_module("gymnasium_robotics.utils.mujoco_utils")
    mujoco = import_module("mujoco")
    joints = {name: int(value) for name, value in mujoco.mjtJoint.__members__.items()}
    utils.mujoco = SimpleNamespace(**{**vars(mujoco), "mjtJoint": SimpleNamespace(**joints)})


@contextmanager
def provide_pkg_resources() -> Iterator[None]:
    """Gives MiniHack the function of `pkg_resources` that it calls, a module that newer versions of setuptools lack."""
    name = "pkg_resources"
    if find_spec(name) is not None:
        yield
        return
    module: Any = ModuleType(name)
    module.resource_filename = lambda package, path: str(files(package) / path)
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


def adapt_vizdoom(env: Env) -> Env:
    """Lets ViZDoom write no settings into the working folder."""
    env.unwrapped.game.set_doom_config_path(os.devnull)  # pyright: ignore[reportAttributeAccessIssue]
    return env


def retro_games() -> Iterable[str]:
    """Returns the names of the games of stable-retro with a ROM."""
    data = import_module("stable_retro.data")
    for game in data.list_games(inttype=data.Integrations.STABLE):
        try:
            data.get_romfile_path(game)
        except FileNotFoundError:
            continue
        yield game


def make_retro(name: str, render_mode: str | None = None, max_episode_steps: int | None = None, **kwargs: Any) -> Env:
    """Makes a game of stable-retro, which without a render mode would open a window."""
    try:
        env = import_module("stable_retro").make(name, render_mode=render_mode or "rgb_array", **kwargs)
    except RuntimeError as error:
        raise RuntimeError(
            f'{error}. For several games, give backend="processes" and num_workers=num_envs, a process for each.'
        ) from error
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)
