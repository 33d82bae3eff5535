"""Pendulum: swing up a hanging pendulum and balance it, with a torque that is too weak to lift it directly.

Same as gymnasium's "Pendulum-v1", which never terminates. Angle 0 is upright.
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium.spaces import Box

from ...engine.simulator import Array, ResetOptions
from ..array_library import namespace_of, stack
from .base import NativeSimulator, option_number

MASS = 1.0  # kg
LENGTH = 1.0  # m
TAU = 0.05  # s
MAX_SPEED = 8.0  # rad/s
MAX_TORQUE = 2.0  # N m

_HIGH = np.array([1.0, 1.0, MAX_SPEED], np.float32)


class Pendulum(NativeSimulator):
    """State: angle (rad, not wrapped) and its speed (rad/s). Observation: cosine and sine of the angle, the speed.

    `g` is the gravity in m/s².
    """

    id = "Pendulum-v1"
    episode_steps = 200
    fps = 30
    num_draws = 2
    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
    supports_numpy = True
    physics = ("g",)
    g = 10.0

    @staticmethod
    def initial(uniforms: Array, options: ResetOptions) -> Array:
        angle = option_number(options, "x_init", math.pi)
        speed = option_number(options, "y_init", 1.0)
        centered = 2 * uniforms - 1
        return stack([centered[0] * angle, centered[1] * speed])

    def advance(self, state: Array, action: Array) -> tuple[Array, Array, Array]:  # pyright: ignore[reportIncompatibleMethodOverride]
        xp = namespace_of(state)
        angle, speed = state
        torque = action[:, 0].clip(-MAX_TORQUE, MAX_TORQUE)
        wrapped = angle - xp.floor(angle / (2 * math.pi) + 0.5) * (2 * math.pi)  # remainder takes 15 times as long
        cost = wrapped * wrapped + 0.1 * (speed * speed) + 0.001 * (torque * torque)
        pull = xp.sin(angle) * (3 * self.g / (2 * LENGTH)) + torque * (3 / (MASS * LENGTH**2))
        speed = (speed + pull * TAU).clip(-MAX_SPEED, MAX_SPEED)
        return stack([angle + speed * TAU, speed]), -cost, xp.zeros_like(cost, dtype=bool)

    @staticmethod
    def observe(state: Array) -> Array:
        xp = namespace_of(state)
        angle, speed = state
        return stack([xp.cos(angle), xp.sin(angle), speed])
