"""Libraries that register their environments with gymnasium or the old gym when they are imported: Habitat, RoboHive.

They need more than their packages, so an error says what to install. This module must not know any dialect.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ..gym_interface import Env
from ..registries import check_name
from .foreign import named_env
from .gymnasium.make import apply_pixel_wrappers, make
from .imports import import_library
from .robohive import make_robohive


@dataclass(frozen=True, slots=True)
class Plugin:
    """A library that registers environments.

    Attributes:
        module: the module that registers them when it is imported.
        package: the package of their classes, by which they are found in the registry.
        hint: how to install the library.
        make: makes an environment by its id and the name of a library, "gymnasium" or "gym".
    """

    module: str
    package: str
    hint: str
    make: Callable[..., Env] = make


PLUGINS = {
    "habitat": Plugin(
        "habitat.gym",
        "habitat",
        "Habitat is not installed: habitat-sim is on conda only, for Python 3.9 (conda install habitat-sim -c "
        "conda-forge -c aihabitat), then pip install habitat-lab there, download a scene data set as its page says, "
        "and give the path of that interpreter as python=...",
    ),
    "robohive": Plugin(
        "robohive",
        "robohive",
        "RoboHive is not installed: pip install --no-deps robohive==0.7.0, since its pinned dependencies do not build "
        "on recent versions of Python, then pip install dm-control flatten-dict gitpython sk-video termcolor, then "
        "robohive_init, which downloads its models",
        make_robohive,
    ),
}


def load(plugin: str) -> dict[str, str]:
    """Imports a library and returns the ids of its environments, each with the registry that has it.

    Args:
        plugin: a key of `PLUGINS`.

    Returns:
        "gymnasium" or "gym" for each id.

    Raises:
        ImportError: the library cannot be imported; the message says how to install it.
    """
    found = PLUGINS[plugin]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what these old libraries import
        import_library(found.module, found.hint)
    ids: dict[str, str] = {}
    for library in ("gym", "gymnasium"):  # an id that both have is taken from gymnasium
        if library in sys.modules:
            ids |= {spec.id: library for spec in _specs(library) if _package_of(spec) == found.package}
    return ids


def _specs(library: str) -> list[Any]:
    registry: Any = import_module(f"{library}.envs.registration").registry
    return list(registry.values() if isinstance(registry, dict) else registry.all())


def _package_of(spec: Any) -> str:
    entry_point = spec.entry_point
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return module.partition(":")[0].partition(".")[0]


def library_of(plugin: str, name: str) -> str:
    """Returns "gymnasium" or "gym", whichever has the environment.

    Raises:
        ImportError: as `load`.
        ValueError: the library has no such environment.
    """
    ids = load(plugin)
    check_name(f"an environment of {plugin}", name, sorted(ids))
    return ids[name]


def env_fn(
    name: str, *, plugin: str, python: str | None = None, modules: tuple[str, ...] = (), **kwargs: Any
) -> Callable[[], Env]:
    """Returns a function that imports the library and makes its environment `name`.

    Args:
        name: the id.
        plugin: a key of `PLUGINS`.
        python, modules: another interpreter that has the library, and what to import there beside it, see
            `vecrl.simulators.foreign`.
        kwargs: `from_pixels` and `pixels_only`, see `apply_pixel_wrappers`; all others are passed to the environment.
    """
    if python is not None:
        return named_env(name, "gym", python=python, modules=(PLUGINS[plugin].module, *modules), **kwargs)
    return partial(_make, name, plugin, **kwargs)


def _make(
    name: str,
    plugin: str,
    *,
    from_pixels: bool = False,
    pixels_only: bool = True,
    render_mode: str | None = None,
    **kwargs: Any,
) -> Env:
    renders = from_pixels or render_mode == "rgb_array"
    env = PLUGINS[plugin].make(name, library_of(plugin, name), from_pixels=renders, **kwargs)
    return apply_pixel_wrappers(env, from_pixels=from_pixels, pixels_only=pixels_only)


def names(*, plugin: str) -> list[str]:
    """Returns the ids of the library's environments; raises ImportError as `load`."""
    return list(load(plugin))
