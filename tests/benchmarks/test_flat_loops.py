"""The floors of the benchmark do the same work as vecrl: the same values, or entries of the same keys and layouts."""

from __future__ import annotations

from functools import partial

import gymnasium
import pytest
import torch
from benchmarks.actions import discrete
from benchmarks.implementations import by_hand_flat as flat
from tensordict.nn import TensorDictModule

from vecrl.envs import GymEnv, SerialEnv, TransformedEnv
from vecrl.envs.transforms import Compose, ObservationNorm, RewardSum, StepCounter
from vecrl.vector import VectorEnv


@pytest.mark.parametrize("same_step", [False, True])
def test_the_flat_vector_env_returns_the_same_values(same_step):
    options = {"autoreset_mode": "same_step"} if same_step else {}
    expected = VectorEnv([partial(gymnasium.make, "CartPole-v1")] * 3, **options)
    actual = flat.FlatVectorEnv(3, same_step)
    assert (actual.reset(seed=0)[0] == expected.reset(seed=0)[0]).all()
    for actions in discrete(3):
        for one, other in zip(actual.step(actions)[:4], expected.step(actions)[:4], strict=True):
            assert one.dtype == other.dtype
            assert (one == other).all()
    with pytest.raises(ValueError, match="Expected 3 numbers"):
        actual.step(actions + 1)
    expected.close()


def test_flat_rollouts_have_the_same_entries():
    left = lambda obs: torch.zeros(obs.shape[:-1], dtype=torch.int64)  # noqa: E731 (ends episodes within 11 steps)
    policy = TensorDictModule(left, in_keys=["observation"], out_keys=["action"])
    make = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
    transforms = lambda: Compose(StepCounter(), RewardSum(), ObservationNorm(0.0, 1.0, in_keys=["observation"]))  # noqa: E731
    batch = SerialEnv(3, lambda: TransformedEnv(make(), transforms()))
    makers = [partial(gymnasium.make, "CartPole-v1")] * 3
    with torch.no_grad():
        pairs = [
            (make(), flat.flat_rollout(makers[0](), policy, 40)),
            (batch, flat.flat_serial_rollout([m() for m in makers], policy, 40)),
        ]
        for env, actual in pairs:
            expected = env.rollout(40, policy, break_when_any_done=False)
            assert _layout(actual) == _layout(expected)
            assert actual["next", "done"].any()  # so that rows were reset
            ended = actual["next", "done"][..., :-1, 0]
            assert (
                actual["observation"][..., 1:, :][~ended] == actual["next", "observation"][..., :-1, :][~ended]
            ).all()
            assert (actual["observation"][..., 1:, :][ended].abs() <= 0.05).all()
            env.close()


def _layout(data):
    return {(key, value.shape, value.dtype) for key, value in data.items(include_nested=True, leaves_only=True)}
