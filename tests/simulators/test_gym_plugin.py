"""Habitat and RoboHive, with modules that register environments as theirs do."""

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


class Arm(Room):
    """An environment of RoboHive: a vector, with continuous actions."""

    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (3,), np.float32)

    def _obs(self):
        return np.array([self.x, self.t])

    def step(self, action):
        return super().step(action.sum())


@pytest.fixture
def libraries(monkeypatch):
    for name in ("habitat", "habitat.gym", "robohive"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    gymnasium.register("HabitatRenderPick-v0", Room)
    gymnasium.register("FK1_RelaxFixed-v4", "robohive.envs.arms:FrankaArm", max_episode_steps=2)
    arms = ModuleType("robohive.envs.arms")
    arms.FrankaArm = Arm
    monkeypatch.setitem(sys.modules, "robohive.envs", ModuleType("robohive.envs"))
    monkeypatch.setitem(sys.modules, "robohive.envs.arms", arms)
    yield
    del gymnasium.registry["HabitatRenderPick-v0"], gymnasium.registry["FK1_RelaxFixed-v4"]


def test_names_are_those_of_the_library(libraries):
    assert HabitatEnv.available_envs == ["HabitatRenderPick-v0"]
    assert RoboHiveEnv.available_envs == ["FK1_RelaxFixed-v4"]
    assert availability.available("habitat").names == ("HabitatRenderPick-v0",)
    assert availability.available("robohive").names == ("FK1_RelaxFixed-v4",)


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


def test_robohive_environments_have_their_time_limit(libraries):
    env = RoboHiveEnv("FK1_RelaxFixed-v4")
    check_env_specs(env)
    rollout = env.rollout(9)
    assert rollout.shape == (2,)
    assert rollout["next", "truncated"][-1].item()
    assert rollout["observation"].dtype == torch.float64


@pytest.mark.parametrize("name", ["habitat::HabitatRenderPick-v0", "robohive::FK1_RelaxFixed-v4"])
def test_prefixes_make_vector_environments(libraries, name):
    env = make_vector_env(name, num_envs=2)
    env.reset(seed=3)
    _, reward, *_ = env.step(env.action_space.sample())
    assert reward.shape == (2,)
    env.close()


def test_unknown_names_are_listed(libraries):
    with pytest.raises(ValueError, match=r"got 'CartPole-v1'\. There are HabitatRenderPick-v0"):
        HabitatEnv("CartPole-v1")


@pytest.mark.parametrize(
    ("env_class", "prefix", "hint"),
    [(HabitatEnv, "habitat", "conda install habitat-sim"), (RoboHiveEnv, "robohive", "pip install robohive")],
)
def test_missing_libraries_are_explained(monkeypatch, env_class, prefix, hint):
    monkeypatch.setitem(sys.modules, prefix, None)
    with pytest.raises(VersionError, match=hint):
        env_class("x")
    assert env_class.available_envs == []
    assert hint in (availability.available(prefix).missing or "")
