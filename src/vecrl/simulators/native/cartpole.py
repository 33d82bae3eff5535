"""CartPole: keep a pole upright on a cart by pushing the cart left or right.

Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems" (1983),
with the corrected equations of R. V. Florian (2005), integrated as gymnasium's "CartPole-v1" does.
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
MASS_POLE = 0.1  # kg
MASS = 1.0 + MASS_POLE  # kg, cart and pole
LENGTH = 0.5  # m, half the pole
FORCE = 10.0  # N
TAU = 0.02  # s
MAX_X = 2.4  # m
MAX_ANGLE = math.radians(12)

_HIGH = np.array([2 * MAX_X, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)


class CartPole(NativeSimulator):
    """State: cart position (m), its speed (m/s), pole angle (rad), its speed (rad/s); the observation is the state."""

    id = "CartPole-v1"
    episode_steps = 500
    fps = 50
    num_draws = 4
    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Discrete(2)

    @staticmethod
    def initial(uniforms: Tensor, options: ResetOptions) -> Tensor:
        low, high = start_bounds(options, -0.05, 0.05)
        return uniforms * (high - low) + low

    @staticmethod
    def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, x_dot, angle, angle_dot = state.unbind(0)
        cos, sin = angle.cos(), angle.sin()
        push = torch.addcmul(action * (2 * FORCE) - FORCE, angle_dot.square(), sin, value=MASS_POLE * LENGTH) / MASS
        lever = LENGTH * 4 / 3 - cos.square() * (LENGTH * MASS_POLE / MASS)
        angle_acc = torch.addcmul(sin * GRAVITY, cos, push, value=-1) / lever
        x_acc = torch.addcmul(push, angle_acc, cos, value=-MASS_POLE * LENGTH / MASS)
        x = x.add(x_dot, alpha=TAU)
        angle = angle.add(angle_dot, alpha=TAU)
        state = torch.stack([x, x_dot.add(x_acc, alpha=TAU), angle, angle_dot.add(angle_acc, alpha=TAU)])
        terminated = (x.abs() > MAX_X) | (angle.abs() > MAX_ANGLE)
        return state, torch.ones_like(x), terminated

    @staticmethod
    def observe(state: Tensor) -> Tensor:
        return state
