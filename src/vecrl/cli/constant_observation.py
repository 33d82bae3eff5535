"""Replaces observations for random actions, which need none: so any observation space works.

Worker processes import this module, so it knows only gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class ConstantObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Replaces every observation by a zero of shape (1,), float32."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self.observation_space = Box(0.0, 0.0, (1,), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """Returns a zero."""
        return np.zeros(1, np.float32)


def make_constant_observation_env(make: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    """Creates an environment; wraps it in `ConstantObservation` if its observations are neither Box nor Discrete."""
    env = make()
    return env if isinstance(env.observation_space, Box | Discrete) else ConstantObservation(env)
