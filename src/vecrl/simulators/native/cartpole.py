"""CartPole: keep a pole upright on a cart by pushing the cart left or right.

Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983),
with the corrected equations of R. V. Florian (2005), integrated as gymnasium's "CartPole-v1" does.
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium.spaces import Box, Discrete

from ...engine.simulator import Array, ResetOptions
from ..array_library import constants_like, namespace_of, stack
from .base import NativeSimulator, start_bounds

GRAVITY = 9.8  # m/s²
MASS_POLE = 0.1  # kg
MASS = 1.0 + MASS_POLE  # kg, cart and pole
LENGTH = 0.5  # m, half the pole
RATIO = LENGTH * MASS_POLE / MASS  # m
FORCE = 10.0  # N
TAU = 0.02  # s
MAX_X = 2.4  # m
MAX_ANGLE = math.radians(12)

# The terms of the accelerations, all divided by RATIO
_PUSH = FORCE / MASS / RATIO
_CONSTANTS = (2 * _PUSH, _PUSH, GRAVITY / RATIO, LENGTH * 4 / 3 / RATIO, RATIO, TAU, MAX_X, MAX_ANGLE)
_HIGH = np.array([2 * MAX_X, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)


class CartPole(NativeSimulator):
    """State: cart position (m), its speed (m/s), pole angle (rad), its speed (rad/s); the observation is the state.

    `sutton_barto_reward` replaces the reward of 1 per step by 0, and by -1 if the step terminates.
    """

    id = "CartPole-v1"
    episode_steps = 500
    fps = 50
    num_draws = 4
    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Discrete(2)
    supports_numpy = True
    physics = ("sutton_barto_reward",)
    sutton_barto_reward = False

    @staticmethod
    def initial(uniforms: Array, options: ResetOptions) -> Array:
        low, high = start_bounds(options, -0.05, 0.05)
        return uniforms * (high - low) + low

    def advance(self, state: Array, action: Array) -> tuple[Array, Array, Array]:  # pyright: ignore[reportIncompatibleMethodOverride]
        xp = namespace_of(state)
        push_scale, push_offset, gravity, lever, ratio, tau, max_x, max_angle = constants_like(state, _CONSTANTS)
        x, x_dot, angle, angle_dot = state
        cos, sin = xp.cos(angle), xp.sin(angle)
        push = action * push_scale - push_offset + angle_dot * angle_dot * sin  # 1/s²
        angle_acc = (sin * gravity - cos * push) / (lever - cos * cos)
        x_acc = (push - cos * angle_acc) * ratio
        state = state + stack([x_dot, x_acc, angle_dot, angle_acc]) * tau
        terminated = (abs(state[0]) > max_x) | (abs(state[2]) > max_angle)
        if self.sutton_barto_reward:
            return state, xp.where(terminated, xp.full_like(x, -1.0), xp.zeros_like(x)), terminated
        return state, xp.ones_like(x), terminated

    @staticmethod
    def observe(state: Array) -> Array:
        return state
