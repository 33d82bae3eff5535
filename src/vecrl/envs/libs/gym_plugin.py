"""`PluginEnv`: environments that a library registers with gymnasium or the old gym when it is imported."""

from __future__ import annotations

from typing import Any, ClassVar

from ...simulators.gym_plugin import library_of
from .gym import GymEnv


class PluginEnv(GymEnv):
    """An environment of a library in `vecrl.simulators.gym_plugin.PLUGINS`."""

    _plugin: ClassVar[str]

    def __init__(self, env_name: str, **kwargs: Any):
        self._registry = library_of(self._plugin, env_name)
        super().__init__(env_name, **kwargs)

    def _library(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._registry
