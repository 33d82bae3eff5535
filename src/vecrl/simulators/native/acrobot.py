"""Acrobot: swing the tip of a two-link chain above a line, with a torque at the joint between the links only.

R. S. Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding" (1996), with
the equations of Sutton and Barto's book and one fourth-order Runge-Kutta step, as in gymnasium's "Acrobot-v1".
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium.spaces import Box, Discrete

from ...engine.simulator import Array, ResetOptions
from ..array_library import namespace_of, stack
from .base import NativeSimulator, start_bounds

GRAVITY = 9.8  # m/s²
MASS = 1.0  # kg, of either link
LENGTH = 1.0  # m, of the first link
CENTER = 0.5  # m, from a link's joint to its center of mass
INERTIA = 1.0  # kg m², of either link
TAU = 0.2  # s
MAX_SPEEDS = (4 * math.pi, 9 * math.pi)  # rad/s

_HIGH = np.array([1, 1, 1, 1, *MAX_SPEEDS], np.float32)


class Acrobot(NativeSimulator):
    """State: angle of the first link (rad, 0 is down), angle of the second relative to it, and their speeds (rad/s).

    Observation: cosine and sine of the first angle, then of the second, and the two speeds.
    """

    id = "Acrobot-v1"
    episode_steps = 500
    fps = 15
    num_draws = 4
    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Discrete(3)
    supports_numpy = True

    @staticmethod
    def initial(uniforms: Array, options: ResetOptions) -> Array:
        low, high = start_bounds(options, -0.1, 0.1)
        return uniforms * (high - low) + low

    @staticmethod
    def advance(state: Array, action: Array) -> tuple[Array, Array, Array]:
        xp = namespace_of(state)
        torque = action - 1
        k1 = _derivative(state, torque)
        k2 = _derivative(state + k1 * (TAU / 2), torque)
        k3 = _derivative(state + k2 * (TAU / 2), torque)
        k4 = _derivative(state + k3 * TAU, torque)
        state = state + (k1 + 2 * (k2 + k3) + k4) * (TAU / 6)
        first, second = _wrap(state[0]), _wrap(state[1])
        speeds = [state[2 + i].clip(-limit, limit) for i, limit in enumerate(MAX_SPEEDS)]
        terminated = -xp.cos(first) - xp.cos(first + second) > 1
        return stack([first, second, *speeds]), xp.where(terminated, 0 * first, -1.0), terminated

    @staticmethod
    def observe(state: Array) -> Array:
        xp = namespace_of(state)
        first, second, first_dot, second_dot = state
        return stack([xp.cos(first), xp.sin(first), xp.cos(second), xp.sin(second), first_dot, second_dot])


def _derivative(state: Array, torque: Array) -> Array:
    """Computes the time derivative of `state` `[4, n]`, in rad/s and rad/s²."""
    xp = namespace_of(state)
    first, second, first_dot, second_dot = state
    cos, sin = xp.cos(second), xp.sin(second)
    lever = MASS * LENGTH * CENTER
    d1 = cos * (2 * lever) + (MASS * (LENGTH**2 + 2 * CENTER**2) + 2 * INERTIA)
    d2 = cos * lever + (MASS * CENTER**2 + INERTIA)
    # The cosine of an angle minus pi / 2 is its sine.
    weight2 = xp.sin(first + second) * (MASS * CENTER * GRAVITY)
    weight1 = weight2 + xp.sin(first) * (MASS * (CENTER + LENGTH) * GRAVITY)
    load1 = weight1 - lever * sin * second_dot * (second_dot + 2 * first_dot)
    ratio = d2 / d1
    load2 = weight2 + lever * sin * (first_dot * first_dot)
    second_acc = (torque + ratio * load1 - load2) / (MASS * CENTER**2 + INERTIA - ratio * d2)
    first_acc = -(d2 * second_acc + load1) / d1
    return stack([first_dot, second_dot, first_acc, second_acc])


def _wrap(angle: Array) -> Array:
    """Wraps an angle to [-pi, pi]."""
    return angle - 2 * math.pi * (angle / (2 * math.pi)).round()
