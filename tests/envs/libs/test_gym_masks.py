"""Masks of MultiDiscrete actions of gymnasium's environments: of each choice, and of all combinations."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.envs import ActionMask, GymWrapper, SerialEnv, TransformedEnv, check_env_specs
from vecrl.specs import Categorical, MultiCategorical, MultiOneHot, OneHot
from vecrl.vector import VectorEnv


class Masked(gymnasium.Env[Any, Any]):
    """Allows other actions at every step, and raises if another one comes."""

    def __init__(self, counts: tuple[int, ...] = (3, 4), mask_shape: tuple[int, ...] = (3, 4), start: int = 0):
        self.action_space = spaces.MultiDiscrete(counts, start=[start] * len(counts))
        self.observation_space = spaces.Dict(action_mask=spaces.MultiBinary(mask_shape))
        self.is_joint = mask_shape == counts
        self.start = start

    def _obs(self) -> dict[str, np.ndarray]:
        shape = self.observation_space["action_mask"].shape
        self.mask = self.np_random.random(shape) > 0.8
        self.mask[..., self.np_random.integers(shape[-1])] = True
        return {"action_mask": self.mask.astype(np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action), action
        index = action - self.start
        allowed = self.mask[tuple(index)] if self.is_joint else self.mask[np.arange(len(index)), index].all()
        assert allowed, (action, self.mask)
        return self._obs(), 1.0, False, False, {}


@pytest.mark.parametrize("categorical", [True, False])
@pytest.mark.parametrize(("counts", "start"), [((3, 4), 0), ((5, 5), 0), ((2, 3, 4), 0), ((3, 3), 2)])
def test_a_mask_of_combinations_makes_one_choice_of_them(
    counts: tuple[int, ...], start: int, categorical: bool
) -> None:
    env = TransformedEnv(GymWrapper(Masked(counts, counts, start), categorical), ActionMask())
    check_env_specs(env)
    spec, number = env.action_spec, int(np.prod(counts))
    assert type(spec) is (Categorical if categorical else OneHot)
    assert (spec.n, tuple(spec.shape)) == (number, () if categorical else (number,))
    rollout = env.rollout(30)
    assert rollout["action_mask"].shape == (30, *counts)
    assert rollout["action"].shape == (30, *spec.shape)
    assert env.action_spec.space.n == number


@pytest.mark.parametrize("categorical", [True, False])
def test_a_mask_of_each_choice_fits_choices_of_equal_size(categorical: bool) -> None:
    env = TransformedEnv(GymWrapper(Masked((5, 5, 5), (3, 5)), categorical), ActionMask())
    check_env_specs(env)
    assert tuple(env.action_spec.shape) == ((3,) if categorical else (3, 5))
    assert env.rollout(30).shape == (30,)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.MultiDiscrete([5, 5]), (Categorical(5, (2,)), OneHot(5, (2, 5), dtype=torch.int64))),
        (spaces.MultiDiscrete([[2, 2], [2, 2]]), (Categorical(2, (2, 2)), OneHot(2, (2, 2, 2), dtype=torch.int64))),
        (
            spaces.MultiDiscrete([3, 3], start=[1, 1]),
            (Categorical(3, (2,), min=1), OneHot(3, (2, 3), dtype=torch.int64, min=1)),
        ),
        (spaces.MultiDiscrete([3, 4]), (MultiCategorical([3, 4]), MultiOneHot([3, 4], dtype=torch.int64))),
        (
            spaces.MultiDiscrete([3, 3], start=[0, 1]),
            (
                MultiCategorical([3, 3], min=torch.tensor([0, 1])),
                MultiOneHot([3, 3], dtype=torch.int64, min=torch.tensor([0, 1])),
            ),
        ),
    ],
)
def test_choices_of_equal_size_are_one_spec(space: Any, expected: tuple[Any, Any]) -> None:
    class Choices(gymnasium.Env[Any, Any]):
        action_space = observation_space = space

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: np.ndarray) -> Any:
            assert self.action_space.contains(action), action
            return self.observation_space.sample(), 1.0, False, False, {}

    for categorical, spec in zip((True, False), expected, strict=True):
        env = GymWrapper(Choices(), categorical)
        assert env.action_spec == spec
        assert env.observation_spec["observation"] == spec
        check_env_specs(env)


def test_batches_split_combinations_too() -> None:
    for env in (SerialEnv(2, lambda: GymWrapper(Masked())), GymWrapper(VectorEnv([Masked] * 2, backend="serial"))):
        masked = TransformedEnv(env, ActionMask())
        assert masked.rollout(10)["action"].shape == (2, 10, 12)
        env.close()
