"""Environments follow edits of the bounds of their action specs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, PendulumEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv


def pendulum() -> EnvBase:
    return GymEnv("Pendulum-v1")


def counted() -> EnvBase:
    return TransformedEnv(pendulum(), StepCounter())


@pytest.mark.parametrize(
    "make",
    [
        pendulum,
        PendulumEnv,
        counted,
        lambda: TransformedEnv(counted(), RewardSum()),
        lambda: SerialEnv(2, pendulum),
        lambda: SerialEnv(2, counted),
        lambda: TransformedEnv(SerialEnv(2, pendulum), StepCounter()),
        lambda: ParallelEnv(2, pendulum),
    ],
)
def test_random_actions_follow_the_edited_spec(make: Callable[[], EnvBase]) -> None:
    env = make()
    try:
        env.rollout(3)
        assert env.action_spec_unbatched.low.tolist() == [-2]
        env.action_spec.space.low[:] = 1.5
        assert env.rollout(30)["action"].min() >= 1.5
        assert min(env.rand_action()["action"].min() for _ in range(30)) >= 1.5
        assert env.action_spec_unbatched.low.tolist() == [1.5]
        assert env.input_spec["full_action_spec", "action"] == env.action_spec
    finally:
        env.close()
