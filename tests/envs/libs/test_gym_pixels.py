"""Environments of gymnasium with observations that are images: the entry "pixels", which holds each frame once."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecrl.envs import GymWrapper, ParallelEnv, SerialEnv, check_env_specs
from vecrl.vector import VectorEnv

IMAGE = spaces.Box(0, 255, (8, 6, 3), np.uint8)
FRAME = 77


class Screen(gymnasium.Env[Any, Any]):
    """Returns samples of its space, or a frame that is larger, if it is rendered."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any] = IMAGE):
        self.observation_space = space
        space.seed(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, False, False, {}

    def render(self) -> np.ndarray:
        return np.full((9, 9, 3), FRAME, np.uint8)


def entries(env: Any) -> dict[str, tuple[int, ...]]:
    check_env_specs(env)
    root = env.reset()
    return {str(key): tuple(root[key].shape) for key in env.observation_keys}


@pytest.mark.parametrize(
    ("space", "key"),
    [
        (IMAGE, "pixels"),
        (spaces.Box(0, 255, (8, 6, 3), np.float32), "pixels"),
        (spaces.Box(0, 1, (8, 6, 3), np.float32), "observation"),
        (spaces.Box(0, 10, (8, 6, 3), np.uint8), "observation"),
        (spaces.Box(0, 255, (8, 6, 1), np.uint8), "observation"),
        (spaces.Box(0, 255, (3, 8, 6), np.uint8), "observation"),
        (spaces.Box(0, 255, (8, 6), np.uint8), "observation"),
    ],
)
def test_images_are_pixels(space: Any, key: str) -> None:
    env = GymWrapper(Screen(space))
    assert entries(env) == {key: space.shape}
    assert env.from_pixels == (key == "pixels")
    assert env.rollout(3)["next", key].dtype == env.observation_spec[key].dtype


@pytest.mark.parametrize("pixels_only", [True, False])
def test_images_are_kept_once_with_from_pixels(pixels_only: bool) -> None:
    env = GymWrapper(Screen(), from_pixels=True, pixels_only=pixels_only)
    assert entries(env) == {"pixels": IMAGE.shape}


def test_other_observations_are_kept_beside_frames() -> None:
    space = spaces.Dict(observation=IMAGE, x=spaces.Box(0, 1, (2,)))
    assert entries(GymWrapper(Screen(space))) == {"observation": (8, 6, 3), "x": (2,)}
    env = GymWrapper(Screen(space), from_pixels=True, pixels_only=False)
    assert entries(env) == {"observation": (8, 6, 3), "pixels": (9, 9, 3), "x": (2,)}
    assert (env.reset()["pixels"] == FRAME).all()
    assert entries(GymWrapper(Screen(space), from_pixels=True)) == {"pixels": (9, 9, 3)}


def test_batches_have_the_entry_too() -> None:
    vector = GymWrapper(VectorEnv([Screen, Screen], backend="serial"))
    assert entries(vector) == {"pixels": (2, 8, 6, 3)}
    vector.close()
    for batch_class in (SerialEnv, ParallelEnv):
        env = batch_class(2, lambda: GymWrapper(Screen()))
        assert env.rollout(3)["next", "pixels"].shape == (2, 3, 8, 6, 3)
        env.close()
