"""`PluginEnv`: environments that a library registers with gymnasium or the old gym when it is imported."""

from __future__ import annotations

from typing import Any, ClassVar

from .gym import GymEnv


class PluginEnv(GymEnv):
    """An environment of a library in `vecrl.simulators.gymnasium.libraries.PLUGINS`."""

    _plugin: ClassVar[str]

    def __init__(self, env_name: str, *, python: str | None = None, **kwargs: Any):
        super().__init__(f"{self._plugin}::{env_name}", python=python, **kwargs)
        self.env_name = env_name
