"""Libraries that register environments with gymnasium or gym, or have the old interface: one row of a table for each.

An environment is made by a function that imports its library first, so that worker processes need not have imported
it. What a library does otherwise than gymnasium demands is put right here: how it is seeded, rewards that are vectors,
an old interface. Worker processes import this module, so it must not import torch, nor any of the libraries.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

from ...engine.simulator import ResetOptions
from ...engine.space_layout import Tree
from ...errors import SpaceError
from ...gym_interface import Env, EnvReset, EnvStep
from ...imports import import_library
from ...registries import check_name
from ...seeding import random_seed
from ..legacy_gym import LegacyGymAdapter
from ..robohive import make_robohive
from .make import RewardInInfo, apply_pixel_wrappers
from .make import make as make_by_id


@dataclass(frozen=True, slots=True)
class Plugin:
    """A library of environments.

    Attributes:
        module: the module that registers the environments when it is imported.
        extra: the extra of vecrl that installs it; "" if none does.
        entry_points: what the entry points of its environments begin with; by default the module.
        unavailable: parts of the names of environments that need more than the library's package.
        adapt: adapts an environment that gymnasium made.
        make: makes an environment by its name; by default `gymnasium.make`.
        names: returns the names of environments if they are in no registry.
        hint: how to install it without an extra.
    """

    module: str
    extra: str = ""
    entry_points: str = ""
    unavailable: tuple[str, ...] = ()
    adapt: Callable[[Env], Env] | None = None
    make: Callable[..., Env] | None = None
    names: Callable[[], Iterable[str]] | None = None
    hint: str = ""

    def load(self) -> ModuleType:
        """Imports the library; raises ImportError with what to install."""
        library = self.module.partition(".")[0]
        hint = self.hint or f'{library} is not installed: pip install "vecrl[{self.extra}]"'
        with warnings.catch_warnings():
            # a worker process may have got the spec of its environment already
            warnings.filterwarnings("ignore", ".*Overriding environment")
            warnings.simplefilter("ignore", DeprecationWarning)  # of what old libraries import
            return import_library(self.module, hint)

    def ids(self) -> dict[str, str]:
        """Imports the library; returns its names, each with the library that makes it, gymnasium or gym."""
        self.load()
        if self.names is not None:
            return dict.fromkeys(self.names(), "gymnasium")
        start = (self.entry_points or self.module) + "."
        registries = [library for library in ("gym", "gymnasium") if library in sys.modules]  # the last one wins
        return {spec.id: library for library in registries for spec in _specs(library) if _path(spec).startswith(start)}


def _specs(library: str) -> Iterable[Any]:
    registry: Any = import_module(f"{library}.envs.registration").registry
    return registry.values() if isinstance(registry, dict) else registry.all()


def _path(spec: Any) -> str:
    entry_point = spec.entry_point
    return f"{entry_point if isinstance(entry_point, str) else getattr(entry_point, '__module__', '')}."


def names(library: str) -> list[str]:
    """Returns the names of a library's environments that can be made.

    Raises:
        ImportError: the library is not installed; the message says how to install it.
    """
    plugin = PLUGINS[library]
    return [name for name in plugin.ids() if not any(part in name for part in plugin.unavailable)]


def env_fn(
    name: str, *, library: str, python: str | None = None, modules: tuple[str, ...] = (), **kwargs: Any
) -> Callable[[], Env]:
    """Returns a function that makes an environment of a library, also in workers that have not imported it.

    Args:
        name: the name of the environment.
        library: the prefix of the library, a key of `PLUGINS`.
        python, modules: another interpreter that has the library, and what to import there beside it, see
            `vecrl.simulators.foreign`.
        kwargs: `from_pixels`, `pixels_only` and `frame_skip`, see `apply_pixel_wrappers`; all others are passed to
            `gymnasium.make`.

    Raises:
        ImportError: the library is not installed; the message says how to install it.
        ValueError: the library has no environment of that name.
    """
    plugin = PLUGINS[library]
    if python is not None:
        from ..foreign import named_env

        gym = "gymnasium" if plugin.extra else "gym"
        return named_env(name, gym, python=python, modules=(plugin.module, *modules), **kwargs)
    if name not in plugin.ids():
        check_name(f"an environment of {library}", name, names(library))
    return partial(make, library, name, **kwargs)


def make(
    library: str,
    name: str,
    *,
    from_pixels: bool = False,
    pixels_only: bool = True,
    frame_skip: int | None = None,
    **kwargs: Any,
) -> Env:
    """Imports a library and makes one of its environments."""
    plugin = PLUGINS[library]
    plugin.load()
    if from_pixels:
        kwargs.setdefault("render_mode", "rgb_array")
    if plugin.names is None:
        kwargs.setdefault("disable_env_checker", True)
    env = (plugin.make or gymnasium.make)(name, **kwargs)
    env = env if plugin.adapt is None else plugin.adapt(env)
    return apply_pixel_wrappers(env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip)


def _make_habitat(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
    return make_by_id(name, PLUGINS["habitat"].ids()[name], from_pixels=render_mode == "rgb_array", **kwargs)


def _make_robohive(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
    return make_robohive(name, PLUGINS["robohive"].ids()[name], from_pixels=render_mode == "rgb_array", **kwargs)


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


def _make_minigrid(name: str, mission: str = "codes", **kwargs: Any) -> Env:
    """Makes an environment of MiniGrid with the mission as "codes", or as "text", of which tensors cannot be made."""
    if mission not in ("codes", "text"):
        raise ValueError(f"Expected mission 'codes' or 'text', got {mission!r}.")
    env = gymnasium.make(name, **kwargs)
    return MissionCodes(env) if mission == "codes" else env


_NETHACK_RENDER_MODES = {"pixel": "rgb_array", "ansi": "ansi"}


def _make_nethack(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
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


def _adapt_highway(env: Env) -> Env:
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


_CRAFTER_REWARDS = {"CrafterReward-v1": True, "CrafterNoReward-v1": False}


def _make_crafter(name: str, render_mode: str | None = None, **kwargs: Any) -> Env:
    """Makes a Crafter. Without a seed it would draw one from NumPy's global generator, equal in forked workers."""
    kwargs.setdefault("seed", random_seed(31))
    crafter = import_module("crafter")
    return CrafterAdapter(crafter.Env(reward=_CRAFTER_REWARDS[name], **kwargs), render_mode)


PLUGINS = {
    "minigrid": Plugin("minigrid", "minigrid", make=_make_minigrid, unavailable=("-WFC-",)),  # files are missing
    "atari": Plugin("ale_py", "atari"),
    "box2d": Plugin("Box2D", "box2d", entry_points="gymnasium.envs.box2d"),
    "mo": Plugin("mo_gymnasium", "mo-gym", unavailable=("supermario",), adapt=MoAdapter),
    "highway": Plugin("highway_env", "highway", adapt=_adapt_highway),
    "pybullet": Plugin("pybullet_envs_gymnasium", "pybullet"),
    "nle": Plugin("nle", "nle", make=_make_nethack),
    "crafter": Plugin("crafter", "crafter", names=lambda: _CRAFTER_REWARDS, make=_make_crafter),
    "habitat": Plugin(
        "habitat.gym",
        entry_points="habitat",
        make=_make_habitat,
        hint="Habitat is not installed: habitat-sim is on conda only, for Python 3.9 (conda install habitat-sim -c "
        "conda-forge -c aihabitat), then pip install habitat-lab there, download a scene data set as its page says, "
        "and give the path of that interpreter as python=...",
    ),
    "robohive": Plugin(
        "robohive",
        make=_make_robohive,
        hint="RoboHive is not installed: pip install --no-deps robohive==0.7.0, since its pinned dependencies do not "
        "build on recent versions of Python, then pip install dm-control flatten-dict gitpython sk-video termcolor, "
        "then robohive_init, which downloads its models",
    ),
}
"""The libraries by their prefixes."""
