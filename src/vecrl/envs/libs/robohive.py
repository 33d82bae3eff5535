"""RoboHive over TensorDicts, under TorchRL's name. It is imported when an environment is made."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...simulators.gym_plugin import names
from .gym_backends import AvailableEnvs
from .gym_plugin import PluginEnv


class RoboHiveEnv(PluginEnv):
    """An environment of RoboHive, made by the id with which it is registered ("FK1_RelaxFixed-v4").

    Args:
        env_name: the id.
        kwargs: see `GymEnv`.

    Attributes:
        available_envs: class attribute, the ids; empty if RoboHive is not installed.

    Raises:
        VersionError: RoboHive is not installed; the message says how to install it.
        ValueError: there is no such id.
    """

    _plugin = "robohive"
    available_envs: Any = AvailableEnvs(partial(names, plugin="robohive"))
