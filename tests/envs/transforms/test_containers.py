"""How containers of transforms are made: `Compose` of lists, and `TransformedEnv` of a `TransformedEnv`."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import assert_close

from vecrl._utils import auto_unwrap_transformed_env, set_auto_unwrap_transformed_env
from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import Compose, InitTracker, RewardSum, StepCounter, Transform, TransformedEnv, VecNorm

PENDULUM = partial(GymEnv, "Pendulum-v1")


def names(transform: Transform) -> list[str]:
    return [type(part).__name__ for part in transform] if isinstance(transform, Compose) else [type(transform).__name__]


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: Compose([a, b]),
        lambda a, b: Compose((a, b)),
        lambda a, b: Compose(transforms=[a, b]),
        lambda a, b: Compose([Compose([a]), b])[:],
    ],
)
def test_composes_of_lists(make: Any) -> None:
    env = TransformedEnv(PENDULUM(), make(StepCounter(), RewardSum()))
    check_env_specs(env)
    assert len(env.transform) == 2
    data = env.rollout(3)
    assert data["next", "step_count"].flatten().tolist() == [1, 2, 3]
    torch.testing.assert_close(data["next", "episode_reward"], data["next", "reward"].cumsum(0))


def test_invalid_lists() -> None:
    assert len(Compose([])) == len(Compose(transforms=[])) == 0
    for args, options in [
        ((RewardSum(),), {"transforms": [StepCounter()]}),
        (([RewardSum()], StepCounter()), {}),
        ((iter([RewardSum()]),), {}),
    ]:
        with pytest.raises(TypeError, match=r"Expected (transforms=, or|a Transform, or)"):
            Compose(*args, **options)


def nested(make: Any, auto_unwrap: bool | None, outer: Any = RewardSum) -> TransformedEnv:
    return TransformedEnv(TransformedEnv(make(), StepCounter(max_steps=4)), outer(), auto_unwrap=auto_unwrap)


@pytest.mark.parametrize("batch", [None, SerialEnv, ParallelEnv])
def test_auto_unwrap_changes_the_layout_and_no_value(batch: Any) -> None:
    make = PENDULUM if batch is None else lambda: batch(2, PENDULUM)
    actions = torch.full((9, 1) if batch is None else (2, 9, 1), 0.5)
    rollouts = []
    for auto_unwrap in (True, False, None):
        with nested(make, auto_unwrap) as env:
            unwrapped = auto_unwrap is True
            assert isinstance(env.base_env, TransformedEnv) != unwrapped
            assert names(env.transform) == (["StepCounter", "RewardSum"] if unwrapped else ["RewardSum"])
            env.set_seed(0)
            rollouts.append(env.rollout(9, actions=actions, break_when_any_done=False))
    assert rollouts[0]["next", "truncated"].sum() == (2 if batch is None else 4)
    for other in rollouts[1:]:
        assert_close(rollouts[0], other, rtol=0, atol=0)


def test_unwrapped_environments_keep_their_transforms() -> None:
    inner = TransformedEnv(PENDULUM(), Compose(VecNorm(["observation"]), StepCounter()))
    env = TransformedEnv(inner, Compose(RewardSum(), InitTracker()), auto_unwrap=True)
    assert names(env.transform) == ["VecNorm", "StepCounter", "RewardSum", "InitTracker"]
    assert env.base_env is inner.base_env
    assert env.transform[0] is not inner.transform[0]
    check_env_specs(env)
    check_env_specs(inner)
    env.rollout(5)
    assert inner.transform[0].loc["observation"].equal(env.transform[0].loc["observation"])  # clones share statistics
    assert names(TransformedEnv(inner, auto_unwrap=True).transform) == ["VecNorm", "StepCounter"]
    twice = TransformedEnv(TransformedEnv(inner, RewardSum()), InitTracker(), auto_unwrap=True)
    assert names(twice.transform) == ["RewardSum", "InitTracker"]
    assert twice.base_env is inner


def test_derived_classes_are_not_unwrapped() -> None:
    class Derived(TransformedEnv):
        pass

    inner = Derived(PENDULUM(), StepCounter())
    assert TransformedEnv(inner, RewardSum(), auto_unwrap=True).base_env is inner
    outer: EnvBase = Derived(TransformedEnv(PENDULUM(), StepCounter()), RewardSum(), auto_unwrap=True)
    assert names(outer.transform) == ["RewardSum"]


def test_the_default_of_auto_unwrap() -> None:
    @set_auto_unwrap_transformed_env(True)
    def decorated() -> list[str]:
        with set_auto_unwrap_transformed_env(False):
            assert names(nested(PENDULUM, None).transform) == ["RewardSum"]
            assert not auto_unwrap_transformed_env()
        assert names(nested(PENDULUM, False).transform) == ["RewardSum"]
        return names(nested(PENDULUM, None).transform)

    assert decorated() == ["StepCounter", "RewardSum"]
    assert names(nested(PENDULUM, None).transform) == ["RewardSum"]
    set_auto_unwrap_transformed_env(True).set()
    try:
        assert auto_unwrap_transformed_env()
    finally:
        set_auto_unwrap_transformed_env(False).set()
    assert not auto_unwrap_transformed_env()
