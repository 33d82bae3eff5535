"""Libraries that register their environments with gymnasium or the old gym when they are imported: Habitat, RoboHive.

They cannot be installed from PyPI alone, so an error says what to install. This module must not know any dialect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ..registries import check_name
from .gym_factory import make
from .imports import import_library
from .wrapper_bypass import Env


@dataclass(frozen=True, slots=True)
class Plugin:
    """A library that registers environments.

    Attributes:
        module: the module that registers them when it is imported.
        package: the package of their classes, by which they are found in the registry.
        hint: how to install the library.
    """

    module: str
    package: str
    hint: str


PLUGINS = {
    "habitat": Plugin(
        "habitat.gym",
        "habitat",
        "Habitat is not installed: conda install habitat-sim -c conda-forge -c aihabitat, then pip install "
        "habitat-lab, and download a scene data set, as its page says",
    ),
    "robohive": Plugin(
        "robohive",
        "robohive",
        "RoboHive is not installed: pip install robohive, then robohive_init, which downloads its models",
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


def env_fn(name: str, *, plugin: str, **kwargs: Any) -> Callable[[], Env]:
    """Returns a function that imports the library and makes its environment `name`."""
    return partial(_make, name, plugin, kwargs)


def _make(name: str, plugin: str, kwargs: dict[str, Any]) -> Env:
    return make(name, library_of(plugin, name), **kwargs)


def names(*, plugin: str) -> list[str]:
    """Returns the ids of the library's environments; raises ImportError as `load`."""
    return list(load(plugin))
