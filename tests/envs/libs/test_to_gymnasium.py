"""Environments of vecrl made by `gymnasium.make`."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from tensordict import TensorDict

from vecrl.envs import EnvBase, GymEnv
from vecrl.errors import SpaceError
from vecrl.specs import Composite, OneHot, Unbounded


class Walk(EnvBase):
    def __init__(self, size: int = 3):
        super().__init__()
        self.size = size
        self.observation_spec = Composite(x=Unbounded((1,)), deep=Composite(y=Unbounded((2,))))
        self.action_spec = OneHot(2)
        self.reward_spec = Unbounded((*self.batch_size, 1))

    def _observe(self) -> dict[str, Any]:
        return {"x": torch.tensor([float(self.x)]), "deep": {"y": torch.full((2,), float(self.x))}}

    def _reset(self, tensordict: Any = None) -> Any:
        self.x = 0
        return TensorDict(self._observe())

    def _step(self, tensordict: Any) -> Any:
        self.x += int(tensordict["action"].int().argmax())
        flags = {"reward": torch.tensor([float(self.x)]), "done": torch.tensor([self.x >= self.size])}
        return TensorDict({**self._observe(), **flags})

    def _set_seed(self, seed: int | None) -> None:
        self.seed = seed


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    gymnasium.registry.pop("Walk-v0", None)


def test_tensors_are_passed_through() -> None:
    Walk.register_gym("Walk-v0", size=2)
    env: Any = gymnasium.make("Walk-v0", disable_env_checker=True)
    obs, info = env.reset(seed=4)
    assert env.unwrapped.env_base.seed == 4
    assert obs["x"].tolist() == [0]
    assert obs["deep"]["y"].tolist() == [0, 0]
    assert info == {}
    obs, *remaining, _ = env.step(1)
    assert [value.tolist() for value in (obs["x"], *remaining)] == [[1], [1], [False], [False]]
    assert env.step(1)[2].all()


def test_arrays_and_infos() -> None:
    EnvBase.register_gym("Walk-v0", entry_point=Walk, to_numpy=True, info_keys=[("deep", "y")], max_episode_steps=2)
    env: Any = gymnasium.make("Walk-v0")
    with pytest.warns(UserWarning, match="Box observation space m.*imum value is"):
        check_env(env.unwrapped, skip_render_check=True)
    assert env.action_space == gymnasium.spaces.Discrete(2)
    _, info = env.reset()
    assert info["deep"]["y"].tolist() == [0, 0]
    obs, reward, terminated, truncated, info = env.step(1)
    assert isinstance(obs["x"], np.ndarray)
    assert (reward, terminated, truncated) == (1.0, False, False)
    assert env.step(0)[3] is True
    env.close()


def test_make_arguments_override_registered_ones() -> None:
    Walk.register_gym("Walk-v0")
    env: Any = gymnasium.make("Walk-v0", to_numpy=True, size=1, info_keys=["x"])
    assert list(env.observation_space.spaces) == ["deep"]
    env.reset()
    assert env.step(np.int64(1))[2] is True


def test_round_trip() -> None:
    GymEnv.register_gym("Walk-v0", env_name="CartPole-v1", to_numpy=True)
    env, plain = GymEnv("Walk-v0"), GymEnv("CartPole-v1")
    actions = env.action_spec.rand((9,))
    for each in (env, plain):
        each.set_seed(3)
    assert env.rollout(9, actions=actions)["observation"].equal(plain.rollout(9, actions=actions)["observation"])


def test_batched_environments_raise() -> None:
    GymEnv.register_gym("Walk-v0", env_name="CartPole-v1", num_envs=2)
    with pytest.raises(SpaceError, match="without batch dimensions"):
        gymnasium.make("Walk-v0")


def test_a_reward_without_a_spec() -> None:
    class Unpriced(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.full_reward_spec = Composite()

    Unpriced.register_gym("Walk-v0", to_numpy=True)
    env: Any = gymnasium.make("Walk-v0", disable_env_checker=True)
    env.reset()
    assert env.step(1)[1] == 1
    assert env.step(1)[1] == 2
