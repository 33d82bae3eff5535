"""Several StepCounters with one count: each limit truncates."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.tensordict_envs import GroupsEnv

from vecrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import Compose, RewardSum, StepCounter, TransformedEnv
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Composite, Unbounded

PENDULUM = partial(GymEnv, "Pendulum-v1")


def counted(*limits: int | None, base: Any = PENDULUM) -> TransformedEnv:
    return TransformedEnv(base(), Compose(*[StepCounter(limit) for limit in limits], RewardSum()))


def nested(*limits: int | None, base: Any = PENDULUM) -> TransformedEnv:
    env = base()
    for limit in limits:
        env = TransformedEnv(env, StepCounter(limit))
    return env


MAKERS: dict[str, Any] = {
    "one Compose": counted,
    "nested": nested,
    "serial": partial(counted, base=lambda: SerialEnv(2, PENDULUM)),
    "inside and around a batch": lambda first, *others: counted(
        *others, base=lambda: SerialEnv(2, partial(nested, first))
    ),
    "inside and around processes": lambda first, *others: nested(
        *others, base=lambda: ParallelEnv(2, partial(nested, first))
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(("limits", "period"), [((2, 3), 2), ((3, 2), 2), ((None, 3), 3), ((3, None), 3)])
def test_the_first_limit_truncates(maker: str, limits: tuple[int | None, int | None], period: int) -> None:
    with MAKERS[maker](*limits) as env:
        data = env.rollout(6, break_when_any_done=False)["next"]
        ends = [step % period == 0 for step in range(1, 7)]
        for row in data.unbind(0) if env.batch_size else [data]:
            assert row["step_count"].flatten().tolist() == [(step % period) + 1 for step in range(6)]
            assert row["truncated"].flatten().tolist() == row["done"].flatten().tolist() == ends
        assert env.rollout(9).shape[-1] == period


def test_counts_without_limits_are_those_of_one() -> None:
    check_env_specs(counted(None, None))
    check_env_specs(counted(2, 3))
    actions = torch.full((5, 1), 0.5)
    for env in (counted(None, None), counted(None)):  # whole rollouts at once, then step by step
        for policy in ({"actions": actions}, {"policy": lambda td: td.set("action", torch.full((1,), 0.5))}):
            assert env.rollout(5, **policy)["next", "step_count"].flatten().tolist() == [1, 2, 3, 4, 5]


def test_groups_have_one_count_each() -> None:
    env = TransformedEnv(GroupsEnv(("a", "b"), root=False), Compose(StepCounter(), StepCounter(3)))
    data = env.rollout(6, break_when_any_done=False)["next"]
    for name in "ab":
        assert data[name, "step_count"].squeeze(-1).tolist() == [[1, 1], [2, 2], [3, 3]] * 2
        assert data[name, "truncated"].all(-2).flatten().tolist() == [False, False, True] * 2


class OwnCount(EnvBase):
    """Has an observation "step_count" of its own, which is no input of the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(step_count=Bounded(0, 9, (1,), dtype=torch.int64))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict(step_count=torch.tensor([7]), reward=torch.zeros(1), done=torch.zeros(1, dtype=torch.bool))

    def _set_seed(self, seed: int | None) -> None: ...


def test_an_observation_of_the_environment_is_not_replaced() -> None:
    with pytest.raises(SpaceError, match="Expected StepCounter to write a new entry, got 'step_count'"):
        TransformedEnv(OwnCount(), StepCounter()).reset()
