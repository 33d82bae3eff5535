"""Transforms that end episodes or mark the loss of lives."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tests.fixtures.nested_done_env import NestedDoneEnv

from vecrl.envs import EnvBase, GymEnv, GymWrapper, ParallelEnv, SerialEnv
from vecrl.envs.transforms import (
    Compose,
    EndOfLifeTransform,
    RandomTruncationTransform,
    StepCounter,
    TerminateTransform,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.testing import IndependentRowsEnv


class Ale:
    """Counts lives, as the emulator of Atari games does."""

    def __init__(self) -> None:
        self.count = 3

    def lives(self) -> int:
        return self.count


class Lives(gymnasium.Env[Any, Any]):
    """Loses one of three lives at every second step; the episode ends without lives, or after `limit` steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, limit: int = 100):
        self.ale, self.limit, self.ticks = Ale(), limit, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.ale.count, self.ticks = 3, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.ticks += 1
        self.ale.count -= self.ticks % 2 == 0
        return np.zeros(2, np.float32), 1.0, self.ale.count == 0, self.ticks >= self.limit, {}


def make_lives(limit: int = 100) -> GymWrapper:
    return GymWrapper(Lives(limit))


def make_marked(limit: int = 100) -> TransformedEnv:
    return TransformedEnv(make_lives(limit), EndOfLifeTransform())


class TestEndOfLife:
    def test_lost_lives_are_marked(self) -> None:
        rollout = make_marked().rollout(20)
        assert rollout["lives"].tolist() == [3, 3, 2, 2, 1, 1]
        assert rollout["end-of-life"].squeeze(-1).tolist() == [False, False, True, False, True, False]
        assert rollout["next", "lives"].tolist() == [3, 2, 2, 1, 1, 0]
        assert rollout["next", "end-of-life"].squeeze(-1).tolist() == [False, True, False, True, False, True]
        assert rollout["next", "done"].squeeze(-1).tolist() == [False] * 5 + [True]

    def test_the_end_of_an_episode_is_marked(self) -> None:
        assert make_marked(3).rollout(20)["next", "end-of-life"].squeeze(-1).tolist() == [False, True, True]

    @pytest.fixture(params=[SerialEnv, ParallelEnv])
    def envs(self, request: pytest.FixtureRequest) -> Iterator[list[EnvBase]]:
        makers: Any = [partial(make_lives, 3), make_lives]
        inside = request.param(2, [partial(make_marked, 3), make_marked])
        outside = TransformedEnv(request.param(2, makers), EndOfLifeTransform())
        yield [inside, outside]
        inside.close()
        outside.close()

    def test_batches(self, envs: list[EnvBase]) -> None:
        for env in envs:
            rollout = env.rollout(8, break_when_any_done=False)
            assert rollout["next", "lives"].tolist() == [[3, 2, 2, 3, 2, 2, 3, 2], [3, 2, 2, 1, 1, 0, 3, 2]]
            marks = rollout["next", "end-of-life"].squeeze(-1).int().tolist()
            assert marks == [[0, 1, 1, 0, 1, 1, 0, 1], [0, 1, 0, 1, 0, 1, 0, 1]]

    def test_names(self) -> None:
        env = TransformedEnv(
            make_lives(), EndOfLifeTransform("lost", ("game", "lives"), eol_attribute="unwrapped.limit")
        )
        assert env.rollout(3)["next", "game", "lives"].tolist() == [100] * 3

        class Loss:
            def set_keys(self, **keys: str) -> None:
                self.keys = keys

        EndOfLifeTransform("lost").register_keys(loss := Loss())
        assert loss.keys == {"done": "lost", "terminated": "lost"}

    def test_errors(self) -> None:
        with pytest.raises(
            AttributeError, match=r"number of lives at 'unwrapped.ale.lives', got an environment without"
        ):
            GymEnv("CartPole-v1").append_transform(EndOfLifeTransform()).reset()
        with pytest.raises(RuntimeError, match="Put it into a TransformedEnv"):
            EndOfLifeTransform()(TensorDict(done=torch.zeros(1)))


class TestTerminate:
    def test_flags(self) -> None:
        for write_done, done in ((True, [0, 1]), (False, [0, 0, 1])):
            env = TransformedEnv(
                IndependentRowsEnv(1), TerminateTransform(lambda td: td["ticks"] >= 2, write_done=write_done)
            )
            rollout = env.rollout(5)
            assert rollout["next", "done"].squeeze(-1).int().tolist() == done
            assert rollout["next", "terminated"].squeeze(-1).int().tolist() == [0, 1, 1][: len(done)]

    def test_results_of_stop(self) -> None:
        for stop, lengths in (
            (lambda td: True, [1, 1, 1]),
            (lambda td: torch.tensor([True, False, True]), [1, 3, 1]),
            (lambda td: td["ticks"].float() - 1, [2, 2, 2]),
        ):
            env = TransformedEnv(IndependentRowsEnv((0, 1, 2)), TerminateTransform(stop))
            done = env.rollout(4, break_when_any_done=False)["next", "done"].squeeze(-1)
            assert done.int().argmax(1).add(1).tolist() == lengths

    def test_nested_groups(self) -> None:
        env = TransformedEnv(NestedDoneEnv(((), ("a",))), TerminateTransform(lambda td: True))
        next_td: TensorDictBase = env.rand_step()["next"]
        for key in env.done_keys:
            assert next_td[key].all() or key == "truncated" or key[-1] == "truncated"

    def test_errors(self) -> None:
        with pytest.raises(TypeError, match="Expected stop to be a function"):
            TerminateTransform(3)  # pyright: ignore[reportArgumentType]
        env = TransformedEnv(IndependentRowsEnv((0, 1, 2)), TerminateTransform(lambda td: torch.zeros(2)))
        with pytest.raises(SpaceError, match=r"of the done flags, \(3, 1\), got shape \(2,\)"):
            env.rand_step()
        with pytest.raises(RuntimeError, match="got stored data"):
            TerminateTransform(bool)(TensorDict())


class Endless(IndependentRowsEnv):
    """Has episodes without an end."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        next_td = super()._step(tensordict)
        return next_td.update({name: torch.zeros_like(next_td[name]) for name in ("done", "terminated", "truncated")})


class TestRandomTruncation:
    def lengths(self, steps: int = 200, **options: Any) -> list[list[int]]:
        """Returns the lengths of the episodes of four rows."""
        transform = Compose(StepCounter(), RandomTruncationTransform(5, 20, **options))
        env = TransformedEnv(Endless(range(4)), transform)
        rollout = env.rollout(steps, break_when_any_done=False)["next"]
        assert rollout["done"].equal(rollout["truncated"])
        assert not rollout["terminated"].any()
        return [count[done].tolist() for count, done in zip(rollout["step_count"], rollout["done"], strict=True)]

    def test_first_episodes_are_spread(self) -> None:
        torch.manual_seed(0)
        firsts = []
        for _ in range(25):
            first, *others = zip(*self.lengths(60), strict=False)
            firsts += first
            assert all(length == 20 for row in others for length in row)
        assert set(firsts) == set(range(1, 21))

    def test_later_episodes(self) -> None:
        torch.manual_seed(0)
        rows = self.lengths(2000, prob=1.0)
        assert {length for row in rows for length in row[1:]} == set(range(5, 21))
        rows = self.lengths(2000, prob=0.5)
        shares = [sum(length == 20 for length in row[1:]) / len(row[1:]) for row in rows]
        assert all(0.4 < share < 0.67 for share in shares)
        rows = [row for _ in range(10) for row in self.lengths(100, first_episode_prob=1.0)]
        assert len({row[1] for row in rows}) > 8
        assert all(length == 20 for row in rows for length in row[2:])

    def test_earlier_ends_are_kept(self) -> None:
        env = TransformedEnv(Endless(range(4)), Compose(StepCounter(3), RandomTruncationTransform(5, 20)))
        assert env.rollout(50, break_when_any_done=False)["step_count"].max() == 2

    def test_partial_resets_keep_the_other_rows(self) -> None:
        truncation = RandomTruncationTransform(5, 20)
        env = TransformedEnv(Endless(range(4)), Compose(StepCounter(), truncation))
        root = env.reset()
        before = truncation.state_dict()["_horizon"].clone()
        env.reset(root.set("_reset", torch.tensor([[True], [False], [True], [False]])))
        after = truncation.state_dict()["_horizon"]
        assert after[[1, 3]].equal(before[[1, 3]])
        assert after[[0, 2]].tolist() == [[20], [20]]

    def test_errors(self) -> None:
        for low, high in ((0, 5), (6, 5)):
            with pytest.raises(ValueError, match=r"min_horizon to be an int of 1|min_horizon <= max_horizon"):
                RandomTruncationTransform(low, high)
        for options in ({"prob": 1.5}, {"first_episode_prob": -0.1}):
            with pytest.raises(ValueError, match="to be a number from 0 to 1"):
                RandomTruncationTransform(1, 5, **options)
        with pytest.raises(KeyError, match=r"Put a StepCounter\(\) before it"):
            TransformedEnv(Endless(), RandomTruncationTransform(1, 5)).reset()
        with pytest.raises(RuntimeError, match="got stored data"):
            RandomTruncationTransform(1, 5)(TensorDict())
