"""RoboHive over TensorDicts, under TorchRL's name. It is imported when an environment is made."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

from ...simulators.gymnasium.libraries import env_fn, names
from .gym_backends import AvailableEnvs
from .gym_plugin import PluginEnv


class RoboHiveEnv(PluginEnv):
    """An environment of RoboHive, made by the id with which it is registered ("FK1_RelaxFixed-v4").

    With `from_pixels=True`, the entry "pixels" has the frames of several cameras, uint8 `[*batch, cameras, height,
    width, 3]`.

    Args:
        env_name: the id.
        kwargs: see `GymEnv`; `cameras` (names; all of the model by default), `height` and `width` (224 by default) of
            frames; all others are arguments of the environment. `python` is another interpreter that has RoboHive.

    Attributes:
        available_envs: class attribute, the ids; empty if RoboHive is not installed.

    Raises:
        VersionError: RoboHive is not installed; the message says how to install it.
        ValueError: there is no such id, or no such camera.
    """

    _plugin = "robohive"
    available_envs: Any = AvailableEnvs(partial(names, library="robohive"))

    @classmethod
    def get_available_cams(cls, env_name: str) -> list[str]:
        """Returns the names of the cameras of an environment."""
        with closing(env_fn(env_name, library=cls._plugin)()) as env:
            return list(env.get_wrapper_attr("cameras"))
