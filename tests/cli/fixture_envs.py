"""Environments that each violate their declaration in one way, and a noisy environment."""

import os
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Sound(gymnasium.Env):
    """Matches its declaration. Episodes have ten steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 1.0, self.t == 10, False, {}

    def render(self):
        return np.full((33, 47, 3), 20 * self.t, np.uint8)


class WrongDtype(Sound):
    def observe(self):
        return super().observe().astype(np.float64)


class OutOfBounds(Sound):
    def observe(self):
        return super().observe() + 5


class Unseeded(Sound):
    def observe(self):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class OddFlag(Sound):
    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, float(self.t == 10), False, info


class Raising(Sound):
    def step(self, action):
        raise RuntimeError("out of order")


class Unmakeable(Sound):
    def __init__(self, render_mode=None):
        raise RuntimeError("no such level\nand more about it")


class Spaceless(gymnasium.Env):
    """Declares no spaces."""


class NoObservationSpace(Sound):
    observation_space = None


class Exiting(Sound):
    def reset(self, *, seed=None, options=None):
        os._exit(4)


class Stuck(Sound):
    def step(self, action):
        time.sleep(1000)


class Unclosable(Sound):
    def close(self):
        raise RuntimeError("it will not close")


class Noisy(gymnasium.Env):
    """Has one-step episodes. The reward is minus the distance of the action from 0.5, plus ten times larger noise."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        reward = -abs(float(action[0]) - 0.5) + self.np_random.normal(0.0, 10.0)
        return np.ones(1, np.float32), reward, True, False, {}
