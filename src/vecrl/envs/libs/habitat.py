"""Habitat over TensorDicts, under TorchRL's name. It is imported when an environment is made."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...simulators.gymnasium.libraries import names
from .gym_backends import AvailableEnvs
from .gym_plugin import PluginEnv


class HabitatEnv(PluginEnv):
    """An environment of habitat-lab, made by the id with which `habitat.gym` registers it ("HabitatRenderPick-v0").

    Args:
        env_name: the id.
        kwargs: see `GymEnv`; all others are arguments of habitat-lab, such as `override_options`. `python` is another
            interpreter that has Habitat, and `modules` are imported there before, such as ones that register tasks.

    Attributes:
        available_envs: class attribute, the ids; empty if Habitat is not installed.

    Raises:
        VersionError: Habitat is not installed; the message says how to install it.
        ValueError: there is no such id.
    """

    _plugin = "habitat"
    available_envs: Any = AvailableEnvs(partial(names, library="habitat"))
