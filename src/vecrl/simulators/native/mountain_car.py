"""Mountain Car: drive an underpowered car out of a valley by swinging back and forth, with three discrete actions.

A. W. Moore, "Efficient memory-based learning for robot control" (1990), as implemented in gymnasium's "MountainCar-v0".
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from ...engine.simulator import ResetOptions
from .base import NativeSimulator, start_bounds

FORCE = 0.001
GRAVITY = 0.0025
MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07
GOAL = 0.5

_LOW = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
_HIGH = np.array([MAX_POSITION, MAX_SPEED], np.float32)


class MountainCar(NativeSimulator):
    """State: position and speed along the valley, in the task's own units; the observation is the state."""

    id = "MountainCar-v0"
    episode_steps = 200
    fps = 30
    num_draws = 1
    observation_space = Box(_LOW, _HIGH, dtype=np.float32)
    action_space = Discrete(3)

    @staticmethod
    def initial(uniforms: Tensor, options: ResetOptions) -> Tensor:
        low, high = start_bounds(options, -0.6, -0.4)
        position = uniforms[0] * (high - low) + low
        return torch.stack([position, torch.zeros_like(position)])

    @staticmethod
    def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = drive(state, (action - 1) * FORCE)
        terminated = (state[0] >= GOAL) & (state[1] >= 0)
        return state, torch.full_like(state[0], -1.0), terminated

    @staticmethod
    def observe(state: Tensor) -> Tensor:
        return state


def drive(state: Tensor, push: Tensor) -> Tensor:
    """Computes the next state under `push` `[n]`, also for the continuous task; the left end of the track is a wall."""
    position, speed = state.unbind(0)
    speed = torch.add(speed + push, torch.cos(3 * position), alpha=-GRAVITY).clamp(-MAX_SPEED, MAX_SPEED)
    position = position + speed
    speed = torch.where((position <= MIN_POSITION) & (speed < 0), 0.0, speed)
    return torch.stack([position.clamp(MIN_POSITION, MAX_POSITION), speed])
