"""Replaces observations for random actions, which need none: so any observation space works.

Worker processes import this module, so it knows only gymnasium.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from ..engine.space_layout import Tree
from ..gym_interface import Env


class ConstantObservation(gymnasium.ObservationWrapper[Tree, Tree, Tree]):
    """Replaces every observation by a zero of shape (1,), float32."""

    def __init__(self, env: Env):
        super().__init__(env)
        self.observation_space = Box(0.0, 0.0, (1,), np.float32)

    def observation(self, observation: Tree) -> np.ndarray:
        """Returns a zero."""
        return np.zeros(1, np.float32)


def make_constant_observation_env(make: Callable[[], Env]) -> Env:
    """Creates an environment; wraps it in `ConstantObservation` if its observations are neither Box nor Discrete."""
    env = make()
    return env if isinstance(env.observation_space, Box | Discrete) else ConstantObservation(env)
