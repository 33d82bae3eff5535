"""Pendulum: swing up a hanging pendulum and balance it, with a torque that is too weak to lift it directly.

Same as gymnasium's "Pendulum-v1", which never terminates. Angle 0 is upright.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ...engine.simulator import ResetOptions
from .base import NativeSimulator, option_number

GRAVITY = 10.0  # m/s²
MASS = 1.0  # kg
LENGTH = 1.0  # m
TAU = 0.05  # s
MAX_SPEED = 8.0  # rad/s
MAX_TORQUE = 2.0  # N m

_HIGH = np.array([1.0, 1.0, MAX_SPEED], np.float32)


class Pendulum(NativeSimulator):
    """State: angle (rad, not wrapped) and its speed (rad/s). Observation: cosine and sine of the angle, the speed."""

    id = "Pendulum-v1"
    episode_steps = 200
    fps = 30
    num_draws = 2
    observation_space = Box(-_HIGH, _HIGH, dtype=np.float32)
    action_space = Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)

    @staticmethod
    def initial(uniforms: Tensor, options: ResetOptions) -> Tensor:
        angle = option_number(options, "x_init", math.pi)
        speed = option_number(options, "y_init", 1.0)
        centred = 2 * uniforms - 1
        return torch.stack([centred[0] * angle, centred[1] * speed])

    @staticmethod
    def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind(0)
        torque = action[:, 0].clamp(-MAX_TORQUE, MAX_TORQUE)
        wrapped = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = wrapped.square().add(speed.square(), alpha=0.1).add(torque.square(), alpha=0.001)
        pull = angle.sin() * (3 * GRAVITY / (2 * LENGTH)) + torque * (3 / (MASS * LENGTH**2))
        speed = speed.add(pull, alpha=TAU).clamp(-MAX_SPEED, MAX_SPEED)
        state = torch.stack([angle.add(speed, alpha=TAU), speed])
        return state, -cost, torch.zeros_like(cost, dtype=torch.bool)

    @staticmethod
    def observe(state: Tensor) -> Tensor:
        angle, speed = state.unbind(0)
        return torch.stack([angle.cos(), angle.sin(), speed])
