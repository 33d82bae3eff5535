"""Environments that record their calls, for the tests of populations."""

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from vecrl.engine.simulator import BatchStep

LOG: list[tuple[str, int]] = []  # the calls of serial environments, with the step of the episode


class Walk(gymnasium.Env):
    """Ends after 3 to 12 steps, depending on its seed. The reward is the action; the observation is seed and step."""

    observation_space = Box(-1e6, 1e6, (2,), np.float64)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.noise = self.np_random.normal()
        self.length = 3 + int(self.np_random.integers(10))
        self.t = 0
        LOG.append(("reset", 0))
        return np.array([self.noise, self.t]), {}

    def step(self, action):
        self.t += 1
        LOG.append(("step", self.t))
        is_over = self.t == self.length
        invalid = self.length % 2 == 1
        return np.array([self.noise, self.t]), float(action[0]), is_over and invalid, is_over and not invalid, {}


class FailingWalk(Walk):
    """Raises at step 2."""

    def step(self, action):
        if self.t == 1:
            raise RuntimeError("out of order")
        return super().step(action)


class Pictures(Walk):
    """Has observations that no network accepts."""

    observation_space = gymnasium.spaces.Dict({"image": Box(0, 255, (4, 4), np.uint8)})


class RoomIdWalk(Walk):
    """Observes a number and takes actions that start at 5. The reward is the action."""

    observation_space = Discrete(3, start=1)
    action_space = Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 1, {}

    def step(self, action):
        *_, terminated, truncated, info = super().step([action])
        return 1 + self.t % 3, float(action), terminated, truncated, info


class WalkBatch:
    """Runs `Walk` as a batch of fixed size, in which ended rows return nan."""

    observation_space, action_space = Walk.observation_space, Walk.action_space
    metadata: dict = {"render_modes": []}
    render_mode = None
    device = "cpu"

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.walks = [Walk() for _ in range(num_envs)]
        self.over = np.zeros(num_envs, bool)

    def reset(self, seeds=None, options=None):
        seeds = seeds or [None] * self.num_envs
        self.obs = np.stack([walk.reset(seed=seed)[0] for walk, seed in zip(self.walks, seeds, strict=True)])
        self.over[:] = False
        return torch.from_numpy(self.obs.copy())

    def reset_where(self, mask):
        for row in mask.nonzero().flatten().tolist():
            self.obs[row] = self.walks[row].reset()[0]
            self.over[row] = False
        return torch.from_numpy(self.obs.copy())

    def step(self, actions):
        rewards, flags = np.full(self.num_envs, np.nan), np.zeros((2, self.num_envs), bool)
        for row in np.flatnonzero(~self.over).tolist():
            self.obs[row], rewards[row], *flags[:, row], _ = self.walks[row].step(actions[row].numpy())
        self.obs[self.over] = np.nan
        self.over |= flags.any(0)
        return BatchStep(*map(torch.from_numpy, (self.obs.copy(), rewards, *flags)))

    def render(self, row):
        return None

    def close(self):
        self.closed = True
