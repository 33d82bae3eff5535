"""Mountain Car: drive an underpowered car out of a valley by swinging back and forth.

A. W. Moore, "Efficient memory-based learning for robot control" (1990), as implemented in gymnasium's "MountainCar-v0"
and, with a continuous push, "MountainCarContinuous-v0".
"""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

from ...engine.simulator import Array, ResetOptions
from ..array_library import namespace_of, stack
from .base import NativeSimulator, start_bounds

FORCE = 0.001  # of a discrete push
POWER = 0.0015  # of a continuous push
GRAVITY = 0.0025
MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07
GOAL, CONTINUOUS_GOAL = 0.5, 0.45

_LOW = np.array([MIN_POSITION, -MAX_SPEED], np.float32)
_HIGH = np.array([MAX_POSITION, MAX_SPEED], np.float32)


class MountainCar(NativeSimulator):
    """Three discrete actions. State: position and speed along the valley, in units of the task; it is the observation.

    An episode terminates at the goal with a speed of at least `goal_velocity`.
    """

    id = "MountainCar-v0"
    episode_steps = 200
    fps = 30
    num_draws = 1
    observation_space = Box(_LOW, _HIGH, dtype=np.float32)
    action_space = Discrete(3)
    supports_numpy = True
    physics = ("goal_velocity",)
    goal_velocity = 0.0

    @staticmethod
    def initial(uniforms: Array, options: ResetOptions) -> Array:
        low, high = start_bounds(options, -0.6, -0.4)
        position = uniforms[0] * (high - low) + low
        xp = namespace_of(position)
        return stack([position, xp.zeros_like(position)])

    def advance(self, state: Array, action: Array) -> tuple[Array, Array, Array]:  # pyright: ignore[reportIncompatibleMethodOverride]
        state = drive(state, (action - 1) * FORCE)
        terminated = (state[0] >= GOAL) & (state[1] >= self.goal_velocity)
        return state, namespace_of(state).full_like(state[0], -1.0), terminated

    @staticmethod
    def observe(state: Array) -> Array:
        return state


class MountainCarContinuous(NativeSimulator):
    """A continuous push, which is clipped to [-1, 1] after its cost is computed. The state is that of `MountainCar`.

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
        terminated = (state[0] >= CONTINUOUS_GOAL) & (state[1] >= self.goal_velocity)
        cost = push * push * 0.1
        return state, namespace_of(state).where(terminated, 100.0 - cost, -cost), terminated

    @staticmethod
    def observe(state: Array) -> Array:
        return state


def drive(state: Array, push: Array) -> Array:
    """Computes the next state under `push` `[n]`; the left end of the track is a wall."""
    xp = namespace_of(state)
    position, speed = state
    speed = (speed + push - xp.cos(3 * position) * GRAVITY).clip(-MAX_SPEED, MAX_SPEED)
    position = position + speed
    speed = xp.where((position <= MIN_POSITION) & (speed < 0), 0.0, speed)
    return stack([position.clip(MIN_POSITION, MAX_POSITION), speed])
