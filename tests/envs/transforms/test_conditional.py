"""Transforms that skip steps, or let another policy take them."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase
from vecrl.envs.transforms import (
    Compose,
    ConditionalPolicySwitch,
    ConditionalSkip,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.specs import Composite, Unbounded


class Ticking(EnvBase):
    """Counts steps and records the actions of each; the k-th step has reward 10 k, and the episode ends at `limit`."""

    def __init__(self, limit: int, batch: tuple[int, ...] = ()):
        super().__init__(batch_size=batch)
        self.observation_spec = Composite(ticks=Unbounded((*batch, 1)), shape=batch)
        self.action_spec = Unbounded((*batch, 1))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.limit, self.ticks = limit, torch.zeros(*batch, 1)
        self.actions: list[list[float]] = []

    def _mask(self, tensordict: TensorDictBase | None, name: str) -> torch.Tensor:
        mask = None if tensordict is None else tensordict.get(name, None)
        return torch.ones_like(self.ticks).bool() if mask is None else mask.reshape(self.ticks.shape)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.ticks = self.ticks * ~self._mask(tensordict, "_reset")
        return TensorDict({"ticks": self.ticks}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = self._mask(tensordict, "_step")
        self.actions.append(torch.where(mask, tensordict["action"], torch.nan).flatten().tolist())
        self.ticks = self.ticks + mask
        return TensorDict(
            {"ticks": self.ticks, "reward": self.ticks * 10, "done": self.ticks >= self.limit}, self.batch_size
        )

    def _set_seed(self, seed: int | None) -> None: ...


def act(value: float) -> Any:
    """Returns a policy that always takes the same action."""
    return lambda td: td.set("action", torch.full((*td.batch_size, 1), value))


def rollout(env: EnvBase, transform: Transform, steps: int, policy: Any = None) -> TensorDictBase:
    return TransformedEnv(env, transform).rollout(steps, policy or act(1.0), break_when_any_done=False)


class TestSkip:
    def test_skipped_steps_change_nothing(self) -> None:
        actions = iter([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
        env = Ticking(9)
        transform = Compose(StepCounter(), RewardSum(), ConditionalSkip(lambda td: td["action"] < 0))
        played = rollout(env, transform, 6, lambda td: act(next(actions))(td))
        assert played["next", "ticks"].flatten().tolist() == [1, 1, 2, 2, 2, 3]
        assert played["next", "reward"].flatten().tolist() == [10, 0, 20, 0, 0, 30]
        assert played["next", "step_count"].flatten().tolist() == [1, 1, 2, 2, 2, 3]
        assert played["next", "episode_reward"].flatten().tolist() == [10, 10, 30, 30, 30, 60]
        assert env.actions == [[1]] * 3

    def test_results_of_conditions(self) -> None:
        for cond, ticks in (
            (lambda td: True, [0, 0]),
            (lambda td: False, [1, 1]),
            (lambda td: torch.tensor([True, False]), [0, 1]),
            (lambda td: torch.tensor([[False], [True]]), [1, 0]),
        ):
            played = rollout(Ticking(9, (2,)), ConditionalSkip(cond), 1)
            assert played["next", "ticks"].flatten().tolist() == ticks

    def test_several_conditions_and_partial_steps(self) -> None:
        skips = Compose(
            ConditionalSkip(lambda td: torch.tensor([True, False, False])),
            ConditionalSkip(lambda td: torch.tensor([False, True, False])),
        )
        env = TransformedEnv(Ticking(9, (3,)), skips)
        root = act(1.0)(env.reset())
        assert env.step(root.copy())["next", "ticks"].flatten().tolist() == [0, 0, 1]
        mask = torch.tensor([True, True, False])
        assert env.step(root.copy().set("_step", mask))["next", "ticks"].flatten().tolist() == [0, 0, 0]

    def test_errors(self) -> None:
        with pytest.raises(SpaceError, match=r"tensor of batch size \(2,\), got shape \(3,\)"):
            rollout(Ticking(9, (2,)), ConditionalSkip(lambda td: torch.zeros(3)), 1)
        with pytest.raises(RuntimeError, match="got stored data"):
            ConditionalSkip(bool)(TensorDict())


class TestPolicySwitch:
    def switch(self) -> ConditionalPolicySwitch:
        return ConditionalPolicySwitch(act(-1.0), lambda td: td["ticks"] % 2 == 1)

    def test_the_other_policy_takes_every_second_step(self) -> None:
        for limit, last in ((5, 5), (6, 6)):
            env = Ticking(limit)
            counters = [StepCounter(step_count_key=name) for name in ("both", "own")]
            played = rollout(env, Compose(counters[0], self.switch(), counters[1]), 5)
            assert played["next", "ticks"].flatten().tolist() == [2, 4, last, 2, 4]
            assert played["next", "both"].flatten().tolist() == [2, 4, last, 2, 4]
            assert played["next", "own"].flatten().tolist() == [1, 2, 3, 1, 2]
            assert played["next", "reward"].flatten().tolist() == [20, 40, last * 10, 20, 40]
            assert played["action"].flatten().tolist() == [1] * 5
            assert [action for [action] in env.actions[:last]] == [1, -1, 1, -1, 1, -1][:last]

    def test_it_steps_after_resets(self) -> None:
        env = Ticking(5)
        played = rollout(env, ConditionalPolicySwitch(act(-1.0), lambda td: True), 4)
        assert played["ticks"].flatten().tolist() == [1, 3, 1, 3]
        assert played["next", "ticks"].flatten().tolist() == [3, 5, 3, 5]
        assert [action for [action] in env.actions] == [-1, 1, -1, 1, -1] * 2

    def test_rows(self) -> None:
        parity = torch.tensor([[0], [1]])
        switch = ConditionalPolicySwitch(act(-1.0), lambda td: td["ticks"] % 2 == parity)
        played = rollout(Ticking(5, (2,)), switch, 3)
        assert played["ticks"].squeeze(-1).tolist() == [[1, 3, 1], [0, 2, 4]]
        assert played["next", "ticks"].squeeze(-1).tolist() == [[3, 5, 3], [2, 4, 5]]
        assert played["next", "reward"].squeeze(-1).tolist() == [[30, 50, 30], [20, 40, 50]]

    def test_errors(self) -> None:
        with pytest.raises(SpaceError, match="done after its reset"):
            TransformedEnv(Ticking(1), ConditionalPolicySwitch(act(-1.0), lambda td: True)).reset()
        with pytest.raises(RuntimeError, match="got stored data"):
            self.switch()(TensorDict())
