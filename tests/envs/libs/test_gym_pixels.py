"""Rendered pixels as observations."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.envs import GymEnv, GymWrapper, check_env_specs
from vecrl.errors import SpaceError


class Drawn(gymnasium.Env[Any, Any]):
    """Renders the number of its steps, and counts its renderings."""

    action_space = spaces.Discrete(2)

    def __init__(self, keyed: bool = False, mode: str | None = "rgb_array", name: str = "x"):
        box = spaces.Box(0, 99, (1,), np.float32)
        self.observation_space = spaces.Dict({name: box}) if keyed else box
        self.render_mode, self.keyed, self.name, self.frames = mode, keyed, name, 0

    def _look(self) -> Any:
        now = np.array([self.steps], np.float32)
        return {self.name: now} if self.keyed else now

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._look(), 1.0, self.steps == 6, False, {}

    def render(self) -> Any:
        self.frames += 1
        return None if self.render_mode is None else np.full((4, 5, 3), self.steps, np.uint8)[:, ::-1]


def test_pixels_instead_of_observations() -> None:
    env = GymWrapper(Drawn(), from_pixels=True)
    check_env_specs(env, break_when_any_done="both")
    rollout = env.rollout(4)
    assert rollout["pixels"].shape == (4, 4, 5, 3)
    assert rollout["pixels"].dtype == torch.uint8
    assert rollout["pixels"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert rollout["next", "pixels"][:, 0, 0, 0].tolist() == [1, 2, 3, 4]
    assert list(env.observation_spec.keys()) == ["pixels"]


@pytest.mark.parametrize(("keyed", "key"), [(False, "observation"), (True, "x")])
def test_pixels_with_observations(keyed: bool, key: str) -> None:
    env = GymWrapper(Drawn(keyed), from_pixels=True, pixels_only=False)
    check_env_specs(env)
    rollout = env.rollout(4)
    assert rollout[key].flatten().tolist() == rollout["pixels"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_skipped_frames_are_not_rendered() -> None:
    samples = Drawn()
    env = GymWrapper(samples, from_pixels=True, frame_skip=4)
    samples.frames = 0
    rollout = env.rollout(5)
    assert samples.frames == 1 + 2
    assert rollout["next", "pixels"][:, 0, 0, 0].tolist() == [4, 6]
    assert rollout["next", "reward"].flatten().tolist() == [4, 2]


def test_pixels_of_environments_by_name() -> None:
    env = GymEnv("CartPole-v1", from_pixels=True, device="cpu")
    assert (env.from_pixels, env.pixels_only) == (True, True)
    assert not GymEnv("CartPole-v1").from_pixels
    env.set_seed(0)
    assert env.rollout(2)["next", "pixels"].shape == (2, 400, 600, 3)
    many = GymEnv("CartPole-v1", from_pixels=True, pixels_only=False, num_envs=2)
    assert (many.from_pixels, many.pixels_only) == (True, False)
    assert many.rollout(2)["pixels"].shape == (2, 2, 400, 600, 3)
    assert many.observation_spec["observation"].shape == (2, 4)


def test_environments_without_frames_raise() -> None:
    with pytest.raises(SpaceError, match='render_mode="rgb_array"'):
        GymWrapper(Drawn(mode=None), from_pixels=True)
    with pytest.raises(SpaceError, match="no key 'pixels'"):
        GymWrapper(Drawn(keyed=True, name="pixels"), from_pixels=True, pixels_only=False)
