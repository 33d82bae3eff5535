"""Environments for those who do not look: random actions need no observation that a network could take.

Worker processes import this module, so it knows gymnasium alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class ConstantObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows one zero, whatever there is to see."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self.observation_space = Box(0.0, 0.0, (1,), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """Nothing of it."""
        return np.zeros(1, np.float32)


def make_constant_obs_env(make: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    """What `make` makes; where a network could not see it, `ConstantObservation`."""
    env = make()
    return env if isinstance(env.observation_space, Box | Discrete) else ConstantObservation(env)
