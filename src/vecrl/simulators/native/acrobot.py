"""Acrobot: swing the tip of a two-link chain above a line, with a torque at the joint between the links only.

R. S. Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding" (1996), with
the equations of Sutton and Barto's book and one fourth-order Runge-Kutta step, as in gymnasium's "Acrobot-v1".
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from ...engine.simulator import ResetOptions
from .base import NativeSimulator, start_bounds

GRAVITY = 9.8  # m/s²
MASS = 1.0  # kg, of either link
LENGTH = 1.0  # m, of the first link
CENTRE = 0.5  # m, from a link's joint to its centre of mass
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

    @staticmethod
    def initial(uniforms: Tensor, options: ResetOptions) -> Tensor:
        low, high = start_bounds(options, -0.1, 0.1)
        return uniforms * (high - low) + low

    @staticmethod
    def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torque = (action - 1).to(state.dtype)
        k1 = _derivative(state, torque)
        k2 = _derivative(state.add(k1, alpha=TAU / 2), torque)
        k3 = _derivative(state.add(k2, alpha=TAU / 2), torque)
        k4 = _derivative(state.add(k3, alpha=TAU), torque)
        state = state.add(k1 + 2 * (k2 + k3) + k4, alpha=TAU / 6)
        first, second = _wrap(state[0]), _wrap(state[1])
        speeds = [state[2 + i].clamp(-limit, limit) for i, limit in enumerate(MAX_SPEEDS)]
        terminated = -first.cos() - (first + second).cos() > 1
        return torch.stack([first, second, *speeds]), terminated.to(state.dtype) - 1, terminated

    @staticmethod
    def observe(state: Tensor) -> Tensor:
        first, second, first_dot, second_dot = state.unbind(0)
        return torch.stack([first.cos(), first.sin(), second.cos(), second.sin(), first_dot, second_dot])


def _derivative(state: Tensor, torque: Tensor) -> Tensor:
    """Computes the time derivative of `state` `[4, n]`, in rad/s and rad/s²."""
    first, second, first_dot, second_dot = state.unbind(0)
    cos, sin = second.cos(), second.sin()
    lever = MASS * LENGTH * CENTRE
    d1 = cos * (2 * lever) + (MASS * (LENGTH**2 + 2 * CENTRE**2) + 2 * INERTIA)
    d2 = cos * lever + (MASS * CENTRE**2 + INERTIA)
    # The cosine of an angle minus pi / 2 is its sine.
    weight2 = torch.sin(first + second) * (MASS * CENTRE * GRAVITY)
    weight1 = weight2 + first.sin() * (MASS * (CENTRE + LENGTH) * GRAVITY)
    load1 = weight1 - lever * sin * second_dot * (second_dot + 2 * first_dot)
    ratio = d2 / d1
    load2 = weight2 + lever * sin * first_dot.square()
    second_acc = (torque + ratio * load1 - load2) / (MASS * CENTRE**2 + INERTIA - ratio * d2)
    first_acc = -(d2 * second_acc + load1) / d1
    return torch.stack([first_dot, second_dot, first_acc, second_acc])


def _wrap(angle: Tensor) -> Tensor:
    """Wraps an angle to [-pi, pi]."""
    return angle - 2 * math.pi * torch.round(angle / (2 * math.pi))
