"""Mountain Car with a continuous push; the cost of a push is proportional to its square.

Same as gymnasium's "MountainCarContinuous-v0": the push is clipped to [-1, 1], its cost is computed before clipping.
"""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box

from ...engine.simulator import Array, ResetOptions
from ..array_library import namespace_of
from .base import NativeSimulator
from .mountain_car import MountainCar, drive

POWER = 0.0015
GOAL = 0.45


class MountainCarContinuous(NativeSimulator):
    """State: position and speed along the valley, in the task's own units; the observation is the state.

    An episode terminates at the goal with a speed of at least `goal_velocity`.
    """

    id = "MountainCarContinuous-v0"
    episode_steps = 999
    fps = 30
    num_draws = 1
    observation_space = MountainCar.observation_space
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    supports_numpy = True
    physics = ("goal_velocity",)
    goal_velocity = 0.0

    @staticmethod
    def initial(uniforms: Array, options: ResetOptions) -> Array:
        return MountainCar.initial(uniforms, options)

    def advance(self, state: Array, action: Array) -> tuple[Array, Array, Array]:  # pyright: ignore[reportIncompatibleMethodOverride]
        push = action[:, 0]
        state = drive(state, push.clip(-1, 1) * POWER)
        terminated = (state[0] >= GOAL) & (state[1] >= self.goal_velocity)
        cost = push * push * 0.1
        return state, namespace_of(state).where(terminated, 100.0 - cost, -cost), terminated

    @staticmethod
    def observe(state: Array) -> Array:
        return state
