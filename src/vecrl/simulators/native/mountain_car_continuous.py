"""Mountain Car with a continuous push; the cost of a push is proportional to its square.

Same as gymnasium's "MountainCarContinuous-v0": the push is clipped to [-1, 1], its cost is computed before clipping.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ...engine.simulator import ResetOptions
from .base import NativeSimulator
from .mountain_car import MountainCar, drive

POWER = 0.0015
GOAL = 0.45


class MountainCarContinuous(NativeSimulator):
    """State: position and speed along the valley, in the task's own units; the observation is the state."""

    id = "MountainCarContinuous-v0"
    episode_steps = 999
    fps = 30
    num_draws = 1
    observation_space = MountainCar.observation_space
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    @staticmethod
    def initial(uniforms: Tensor, options: ResetOptions) -> Tensor:
        return MountainCar.initial(uniforms, options)

    @staticmethod
    def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        push = action[:, 0]
        state = drive(state, push.clamp(-1, 1) * POWER)
        terminated = (state[0] >= GOAL) & (state[1] >= 0)
        reward = torch.add(terminated * 100.0, push.square(), alpha=-0.1).to(state.dtype)
        return state, reward, terminated

    @staticmethod
    def observe(state: Tensor) -> Tensor:
        return state
