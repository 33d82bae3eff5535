"""`PluginEnv`: environments that a library registers with gymnasium or the old gym when it is imported."""

from __future__ import annotations

from typing import Any, ClassVar

from ...simulators.gym_plugin import library_of
from .gym import GymEnv


class PluginEnv(GymEnv):
    """An environment of a library in `vecrl.simulators.gym_plugin.PLUGINS`."""

    _plugin: ClassVar[str]

    def __init__(self, env_name: str, *, python: str | None = None, **kwargs: Any):
        if python is None:
            library_of(self._plugin, env_name)
        else:
            kwargs["python"] = python
        super().__init__(f"{self._plugin}::{env_name}", **kwargs)
        self.env_name = env_name
