"""Habitat, with a module that registers environments as its own does, and messages without the libraries."""

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.envs import HabitatEnv, RoboHiveEnv, check_env_specs
from vecrl.errors import VersionError
from vecrl.simulators import availability
from vecrl.vector import make_vector_env


class Room(gymnasium.Env):
    """Observes a depth image and a goal, as Habitat's environments do; moves to the goal end the episode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Dict(
        {"depth": spaces.Box(0, 1, (8, 8, 1), np.float32), "goal": spaces.Box(-9, 9, (2,), np.float32)}
    )
    action_space = spaces.Discrete(4)

    def __init__(self, render_mode=None, size=3):
        self.render_mode, self.size = render_mode, size

    def _obs(self):
        return {"depth": np.full((8, 8, 1), self.x, np.float32), "goal": np.float32([self.x, self.t])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, self.np_random.random()
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), float(action), self.t >= self.size, False, {}

    def render(self):
        return np.zeros((6, 7, 3), np.uint8)


Room.__module__ = "habitat.gym.rooms"


@pytest.fixture
def libraries(monkeypatch):
    for name in ("habitat", "habitat.gym"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    gymnasium.register("HabitatRenderPick-v0", Room)
    yield
    del gymnasium.registry["HabitatRenderPick-v0"]


def test_names_are_those_of_the_library(libraries):
    assert HabitatEnv.available_envs == ["HabitatRenderPick-v0"]
    assert availability.available("habitat").names == ("HabitatRenderPick-v0",)


def test_habitat_environments_have_the_entries_of_their_spaces(libraries):
    env = HabitatEnv("HabitatRenderPick-v0", size=4, categorical_action_encoding=True)
    check_env_specs(env)
    rollout = env.rollout(9)
    assert rollout.shape == (4,)
    assert rollout["depth"].shape == (4, 8, 8, 1)
    assert rollout["goal"][:, 1].tolist() == [0, 1, 2, 3]
    assert rollout["next", "reward"][:, 0].tolist() == rollout["action"].tolist()
    pixels = HabitatEnv("HabitatRenderPick-v0", from_pixels=True).reset()["pixels"]
    assert (tuple(pixels.shape), pixels.dtype) == ((6, 7, 3), torch.uint8)


def test_prefixes_make_vector_environments(libraries):
    env = make_vector_env("habitat::HabitatRenderPick-v0", num_envs=2)
    env.reset(seed=3)
    _, reward, *_ = env.step(env.action_space.sample())
    assert reward.shape == (2,)
    env.close()


def test_unknown_names_are_listed(libraries):
    with pytest.raises(ValueError, match=r"got 'CartPole-v1'\. There are HabitatRenderPick-v0"):
        HabitatEnv("CartPole-v1")


@pytest.mark.parametrize(
    ("env_class", "prefix", "hint"),
    [(HabitatEnv, "habitat", "conda install habitat-sim"), (RoboHiveEnv, "robohive", "pip install --no-deps robohive")],
)
def test_missing_libraries_are_explained(monkeypatch, env_class, prefix, hint):
    monkeypatch.setitem(sys.modules, prefix, None)
    with pytest.raises(VersionError, match=hint):
        env_class("x")
    assert env_class.available_envs == []
    assert hint in (availability.available(prefix).missing or "")
