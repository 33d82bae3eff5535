"""Failures of environments in a batch: the error names them and has their traceback, and the others continue."""

import gc
import re
import time
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.faulty_envs import is_killed, raises, sleeps_forever
from tests.fixtures.tensordict_envs import CountingTensorDictEnv, DynamicSizeEnv, FaultyTensorDictEnv

from vecrl.envs import GymEnv, ParallelEnv, SerialEnv
from vecrl.errors import PendingError, SpaceError, StepTimeout, WorkerCrash, WorkerError
from vecrl.specs import Unbounded

BOTH = pytest.mark.parametrize("kind", [SerialEnv, partial(ParallelEnv, envs_per_worker=2)])


@BOTH
def test_construction_failures_raise(kind: Any) -> None:
    gc.collect()
    before = len(psutil.Process().children(recursive=True))
    with pytest.raises(WorkerError, match=r"(?s)environment 1 .*'construct': ArithmeticError.*in raises") as exc_info:
        kind(3, [CountingTensorDictEnv, partial(FaultyTensorDictEnv, "construct", raises), CountingTensorDictEnv])
    assert exc_info.value.env_ids == (1,)
    assert len(psutil.Process().children(recursive=True)) <= before + 1, "at most the process that workers come from"


@BOTH
def test_reset_failures_raise(kind: Any) -> None:
    with (
        kind(3, [CountingTensorDictEnv, partial(FaultyTensorDictEnv, "reset", raises), CountingTensorDictEnv]) as env,
        pytest.raises(WorkerError, match=r"environment 1 .*'reset': ArithmeticError: went wrong on purpose"),
    ):
        env.reset()


@BOTH
def test_step_failures_raise(kind: Any) -> None:
    with kind(
        3,
        [
            partial(CountingTensorDictEnv, 99),
            partial(FaultyTensorDictEnv, "step", raises),
            partial(CountingTensorDictEnv, 99),
        ],
    ) as env:
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        with pytest.raises(WorkerError, match=r"(?s)environment 1 .*'step'.*in raises") as exc_info:
            env.step_and_maybe_reset(env.rand_action(root))
        yielded = exc_info.value.transition
        assert yielded["count"].flatten()[[0, 2]].tolist() == [2, 2], "the others stepped"
        data = env.rand_action(root.clone())
        with pytest.raises(PendingError, match=r"\[1\] failed before; reset them"):
            env.step(data)
        root = env.reset(yielded.exclude("reward").set("_reset", torch.tensor([[False], [True], [False]])))
        assert root["count"].flatten().tolist() == [2, 0, 2]
        assert env.step(env.rand_action(root))["next", "count"].flatten().tolist() == [3, 1, 3]


@BOTH
def test_outputs_outside_the_specs_raise(kind: Any) -> None:
    class Wrong(CountingTensorDictEnv):
        def _look(self) -> TensorDict:
            look = super()._look()
            return look.set("seen", torch.zeros(7)) if self.count else look

    class Double(CountingTensorDictEnv):
        def _look(self) -> TensorDict:
            return super()._look().set("count", torch.tensor([0.5]))

    class Less(CountingTensorDictEnv):
        def _look(self) -> TensorDict:
            return super()._look().exclude("seen")

    with kind(1, Wrong) as env, pytest.raises(WorkerError, match=r"Expected shape \(3,\) at 'seen'.*got \(7,\)"):
        env.rand_step(env.reset())
    with kind(1, Double) as env, pytest.raises(WorkerError, match=r"Expected int64 at 'count'.*got float32"):
        env.reset()
    with kind(1, Less) as env, pytest.raises(WorkerError, match=r"Expected 'seen', as in the specs"):
        env.reset()


def test_crashed_processes_raise() -> None:
    with ParallelEnv(
        3,
        [partial(CountingTensorDictEnv, 99), partial(FaultyTensorDictEnv, "step", is_killed), CountingTensorDictEnv],
        envs_per_worker=1,
    ) as env:
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        begin = time.monotonic()
        with pytest.raises(WorkerCrash, match=r"environment 1 .*was killed by SIGKILL"):
            env.step(env.rand_action(root))
        assert time.monotonic() - begin < 1
        env.close()
        assert env.reset()["count"].flatten().tolist() == [0, 0, 0], "closed and restarted"


def test_slow_environments_time_out() -> None:
    with ParallelEnv(
        2,
        [CountingTensorDictEnv, partial(FaultyTensorDictEnv, "step", sleeps_forever)],
        envs_per_worker=1,
        step_timeout=0.3,
    ) as env:
        root = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        with pytest.raises(StepTimeout, match=r"environment 1 .*no reply within 0.3 s"):
            env.step(env.rand_action(root))
        assert env.cancel([1]).tolist() == [1]
        assert env.reset()["count"].flatten().tolist() == [0, 0]


@BOTH
def test_failing_methods_raise(kind: Any) -> None:
    class FailingMethodEnv(CountingTensorDictEnv):
        def failing_method(self) -> None:
            raise KeyError("no way")

    with kind(2, FailingMethodEnv) as env, pytest.raises(WorkerError, match=r"(?s)'failing_method'.*no way"):
        env.failing_method()


@BOTH
def test_close_failures_raise(kind: Any) -> None:
    class FailingCloseEnv(CountingTensorDictEnv):
        def close(self, *, raise_if_closed: bool = False) -> None:
            raise OSError("will not")

    env = kind(2, [CountingTensorDictEnv, FailingCloseEnv])
    with pytest.raises(WorkerError, match=r"environment 1 .*'close': OSError: will not"):
        env.close()
    assert env.is_closed


@BOTH
def test_failed_rows_keep_objects_of_other_rows(kind: Any) -> None:
    class Bursting(DynamicSizeEnv):
        def _step(self, tensordict: Any) -> Any:
            if self.limit == 1:
                raise ArithmeticError("burst")
            return super()._step(tensordict)

    with kind(2, [partial(Bursting, 3), partial(Bursting, 1)]) as env:
        with pytest.raises(WorkerError, match="burst") as exc_info:
            env.rand_step(env.reset())
        assert exc_info.value.transition[0]["observation"].shape == (3, 2, 2)


@pytest.mark.parametrize("make", [CountingTensorDictEnv, partial(GymEnv, "Pendulum-v1")])
def test_actions_of_a_wrong_shape_raise(make: Any) -> None:
    with SerialEnv(2, make) as env:
        shape = tuple(env.action_spec.shape)
        data = env.reset().set("action", Unbounded((2, 5)).rand())
        with pytest.raises(SpaceError, match=rf"Expected shape {re.escape(str(shape))} at 'action'.*got \(2, 5\)"):
            env.step(data)
        with pytest.raises(SpaceError, match=r"at 'action'"):
            env.rollout(3, actions=torch.zeros(2, 3, 5))
