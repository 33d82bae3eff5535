"""Libraries that register environments with gymnasium or gym, or have the old interface: one row of a table for each.

An environment is made by a function that imports its library first, so that worker processes need not have imported
it. What a library does otherwise than gymnasium demands is put right in `library_adapters`. Worker processes import
this module, so it must not import torch, nor any of the libraries.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import gymnasium

from ...gym_interface import Env
from ...imports import import_library
from ...registries import check_name
from ..robohive import make_robohive
from ..teams import FORAGING_LIMIT, make_agents
from . import library_adapters as adapters
from .make import apply_pixel_wrappers
from .make import make as make_by_id


@dataclass(frozen=True, slots=True)
class Plugin:
    """A library of environments.

    Attributes:
        module: the module that registers the environments when it is imported.
        extra: the extra of vecrl that installs it; "" if none does.
        entry_points: what the entry points of its environments begin with; by default the module.
        unavailable: a regular expression of the names of environments that need more than the library's package.
        adapt: adapts an environment that gymnasium made.
        make: makes an environment by its name; by default `gymnasium.make`.
        names: returns the names of environments if they are in no registry.
        importing: a context manager around each import, which makes the library work with newer versions of what it
            needs.
        registry: the library by which another interpreter makes its environments, "gymnasium" or "gym"; "" if they are
            in no registry, or need an adapter of vecrl.
        hint: how to install it without an extra.
    """

    module: str
    extra: str = ""
    entry_points: str = ""
    unavailable: str = ""
    adapt: Callable[[Env], Env] | None = None
    make: Callable[..., Env] | None = None
    names: Callable[[], Iterable[str]] | None = None
    importing: Callable[[], AbstractContextManager[None]] = nullcontext
    registry: str = "gymnasium"
    hint: str = ""

    def load(self) -> ModuleType:
        """Imports the library; raises ImportError with what to install."""
        library = self.module.partition(".")[0]
        hint = self.hint or f'{library} is not installed: pip install "vecrl[{self.extra}]"'
        with warnings.catch_warnings(), self.importing():
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
    return f"{entry_point if isinstance(entry_point, str) else getattr(entry_point, '__module__', '')}.".replace(
        ":", "."
    )


def names(library: str) -> list[str]:
    """Returns the names of a library's environments that can be made.

    Raises:
        ImportError: the library is not installed; the message says how to install it.
    """
    plugin = PLUGINS[library]
    return [name for name in plugin.ids() if not plugin.unavailable or not re.search(plugin.unavailable, name)]


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

        if not plugin.registry:
            raise ValueError(
                f"Expected no python=... for {library}::, which is in no registry or needs an adapter of vecrl, got "
                f"{python!r}. Omit it."
            )
        return named_env(name, plugin.registry, python=python, modules=(plugin.module, *modules), **kwargs)
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


PLUGINS = {
    "minigrid": Plugin("minigrid", "minigrid", make=adapters.make_minigrid, unavailable="-WFC-"),  # files are missing
    "atari": Plugin("ale_py", "atari"),
    "box2d": Plugin("Box2D", "box2d", entry_points="gymnasium.envs.box2d"),
    "mo": Plugin("mo_gymnasium", "mo-gym", unavailable="supermario", adapt=adapters.MoAdapter),
    "highway": Plugin("highway_env", "highway", adapt=adapters.adapt_highway),
    "pybullet": Plugin("pybullet_envs_gymnasium", "pybullet"),
    "nle": Plugin("nle", "nle", make=adapters.make_nethack),
    "crafter": Plugin(
        "crafter", "crafter", names=lambda: adapters.CRAFTER_REWARDS, make=adapters.make_crafter, registry=""
    ),
    "robotics": Plugin(
        "gymnasium_robotics",
        "robotics",
        unavailable=r"-v0$|^Fetch.*-v1$|^(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Inverted\w+|Pusher|Reacher|Swimmer"
        r"|Walker2d)-v[23]$",  # those of mujoco-py
        importing=adapters.repair_robotics,
    ),
    "metaworld": Plugin(
        "metaworld",
        make=adapters.make_meta_world,
        names=adapters.meta_world_names,
        registry="",
        importing=adapters.repair_meta_world,
        hint="Meta-World is not installed: pip install --no-deps metaworld==3.1.1, since it pins an old version of "
        'MuJoCo, then pip install "vecrl[mujoco]" scipy',
    ),
    "ogbench": Plugin(
        "ogbench",
        "ogbench",
        unavailable="humanoidmaze-teleport",  # MuJoCo misses a material
        adapt=adapters.OwnNumpyRandom,
    ),
    "minihack": Plugin(
        "minihack",
        make=adapters.make_minihack,
        unavailable="-Custom-|-MultiRoom-|Crossing|Boxo",  # levels to write or download, or made by an old MiniGrid
        importing=adapters.provide_pkg_resources,
        hint="MiniHack is not installed: pip install --no-deps minihack==1.0.2 nle==1.3.0, since NLE pins an old "
        "version of gymnasium",
    ),
    "vizdoom": Plugin(
        "vizdoom.gymnasium_wrapper",
        "vizdoom",
        entry_points="vizdoom",
        unavailable=r"^VizdoomDoom2?(E\d|MAP)",  # levels of the games that are sold
        adapt=adapters.adapt_vizdoom,
    ),
    "popgym": Plugin("popgym", "popgym"),
    "miniworld": Plugin("miniworld", "miniworld"),
    "memorygym": Plugin(
        "memory_gym",
        "memory-gym",
        make=adapters.make_memory_gym,
        unavailable="^Sanity|-Grid",  # the library's own code raises there
        registry="",
    ),
    "bsuite": Plugin("bsuite", "bsuite", make=adapters.make_bsuite, names=adapters.bsuite_names, registry=""),
    "flappybird": Plugin("flappy_bird_gymnasium", "flappybird", adapt=adapters.clip_observations),
    "pusht": Plugin("gym_pusht", "pusht", importing=adapters.repair_pymunk),
    "panda": Plugin("panda_gym", "panda", unavailable="Flip", adapt=adapters.SeededResets),  # a texture is missing
    "rware": Plugin("rware", "rware", make=partial(make_agents, limit="max_steps"), registry=""),
    "lbforaging": Plugin("lbforaging", "lbforaging", make=partial(make_agents, limit=FORAGING_LIMIT), registry=""),
    "retro": Plugin("stable_retro", "retro", make=adapters.make_retro, names=adapters.retro_games, registry=""),
    "habitat": Plugin(
        "habitat.gym",
        registry="gym",
        entry_points="habitat",
        make=_make_habitat,
        hint="Habitat is not installed: habitat-sim is on conda only, for Python 3.9 (conda install habitat-sim -c "
        "conda-forge -c aihabitat), then pip install habitat-lab there, download a scene data set as its page says, "
        "and give the path of that interpreter as python=...",
    ),
    "robohive": Plugin(
        "robohive",
        registry="gym",
        make=_make_robohive,
        hint="RoboHive is not installed: pip install --no-deps robohive==0.7.0, since its pinned dependencies do not "
        "build on recent versions of Python, then pip install dm-control flatten-dict gitpython sk-video termcolor, "
        "then robohive_init, which downloads its models",
    ),
}
"""The libraries by their prefixes."""
