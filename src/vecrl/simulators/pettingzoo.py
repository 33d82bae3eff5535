"""Makes environments of PettingZoo, mpe2 and magent2 by name, such as "sisl/pursuit_v5" or "pursuit_v5".

Worker processes import this module, so it must not import torch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from ..errors import VersionError
from ..gym_interface import Env
from ..imports import import_library
from ..registries import check_name
from .agents import TurnBasedAgents, as_gym
from .gymnasium.make import apply_pixel_wrappers

FAMILIES = {
    "atari": "pettingzoo.atari",
    "butterfly": "pettingzoo.butterfly",
    "classic": "pettingzoo.classic",
    "sisl": "pettingzoo.sisl",
    "mpe2": "mpe2",
    "mpe": "pettingzoo.mpe",
    "magent2": "magent2.environments",
}
_MPE = ("mpe2", "mpe")  # the same games: PettingZoo had them before mpe2
_VERSIONED = re.compile(r".+_v\d+")


def names() -> list[str]:
    """Returns the names of all environments, with their family. "mpe" is listed where mpe2 is not installed.

    Raises:
        ImportError: PettingZoo is not installed; the message names the extra.
    """
    found: list[str] = []
    for family, package in FAMILIES.items():
        if (family in _MPE and package != _mpe_package()) or (family == "magent2" and find_spec("magent2") is None):
            continue
        path = import_library(package, 'PettingZoo is not installed: pip install "vecrl[pettingzoo]"').__path__
        found += [f"{family}/{info.name}" for info in iter_modules(path) if _VERSIONED.fullmatch(info.name)]
    return found


def _mpe_package() -> str | None:
    """Returns the package of the MPE games: mpe2 if it is installed, else that of older versions of PettingZoo."""
    if find_spec("mpe2") is not None:
        return "mpe2"
    try:
        with warnings.catch_warnings():  # that it will be removed
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module("pettingzoo.mpe").__name__
    except ImportError:  # newer versions of PettingZoo
        return None


def find_module(name: str) -> ModuleType:
    """Returns the module of an environment, which has `env` and may have `parallel_env`.

    Args:
        name: with its family ("sisl/pursuit_v5") or without ("pursuit_v5"). "mpe" and "mpe2" are the same family: the
            games of mpe2 if it is installed, else those in PettingZoo.

    Raises:
        ValueError: there is no environment of that name.
        ImportError: PettingZoo, or a package that the environment needs, is not installed.
    """
    known: dict[str, str] = {}
    for full in names():
        family, _, env_name = full.partition("/")
        known |= dict.fromkeys((full, env_name, *(f"{mpe}/{env_name}" for mpe in _MPE if family in _MPE)), full)
    is_mpe = name.startswith(("simple_", *(f"{mpe}/" for mpe in _MPE)))
    if is_mpe and _mpe_package() is None:
        raise VersionError(f"Expected mpe2 to be installed, which has {name!r}: pip install mpe2")
    check_name("an environment of PettingZoo", name, known)
    family, _, env_name = known[name].partition("/")
    with warnings.catch_warnings():  # newer versions want another way to make environments, which older ones have not
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(f"{FAMILIES[family]}.{env_name}")


def make(name: str, parallel: bool | None = None, **kwargs: Any) -> Any:
    """Makes an environment of PettingZoo.

    Args:
        name: see `find_module`.
        parallel: whether all agents act at the same time (PettingZoo's parallel interface) or in turns (AEC); None for
            the former where the environment has it.
        kwargs: of the environment. ROMs of Atari games are those of ale-py, unless an argument says otherwise.

    Raises:
        ValueError: there is no such environment, or its agents act in turns only.
    """
    module = find_module(name)
    if parallel and not hasattr(module, "parallel_env"):
        raise ValueError(f"Expected agents that act in parallel, got {name!r}, where they act in turns: parallel=False")
    if module.__name__.startswith("pettingzoo.atari") and "rom_path" not in kwargs:
        kwargs.setdefault("auto_rom_install_path", _rom_folder())
    is_parallel = hasattr(module, "parallel_env") if parallel is None else parallel
    return module.parallel_env(**kwargs) if is_parallel else module.env(**kwargs)


def _rom_folder() -> str | None:
    """Returns the folder of the ROMs in ale-py."""
    try:
        ale_py = import_module("ale_py")
    except ImportError:
        return None
    return str(Path(ale_py.__file__ or "").parent / "roms")


def acts_in_turns(env: object) -> bool:
    """Returns whether an environment has PettingZoo's AEC interface."""
    return callable(getattr(env, "agent_iter", None))


def make_gym(
    name: str,
    parallel: bool | None = None,
    done_on_any: bool = False,
    *,
    from_pixels: bool = False,
    pixels_only: bool = True,
    frame_skip: int | None = None,
    **kwargs: Any,
) -> Env:
    """Makes an environment of PettingZoo with gymnasium's interface, see `vecrl.simulators.agents`.

    Args:
        name, parallel, kwargs: see `make`.
        done_on_any: whether the episode ends when the first agent is done, rather than the last one.
        from_pixels, pixels_only: see `ObservePixels`.
        frame_skip: number of steps per step.
    """
    if from_pixels:
        kwargs.setdefault("render_mode", "rgb_array")
    env = make(name, parallel, **kwargs)
    gym_env = as_gym(TurnBasedAgents(env) if acts_in_turns(env) else env, done_on_any)
    return apply_pixel_wrappers(gym_env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip)


def env_fn(name: str, **kwargs: Any) -> Callable[[], Env]:
    """Returns a function that makes an environment by `make_gym`.

    Raises:
        ValueError: there is no environment of that name.
    """
    find_module(name)
    return partial(make_gym, name, **kwargs)
