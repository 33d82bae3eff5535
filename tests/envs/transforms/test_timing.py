"""Timers and trajectory numbers."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.tensordict_envs import CountingRowsEnv, GroupsEnv

from vecrl.envs import EnvBase
from vecrl.envs.transforms import (
    ActionMask,
    AutoResetTransform,
    Compose,
    FrameSkipTransform,
    InitTracker,
    RewardSum,
    StepCounter,
    Timer,
    TrajCounter,
    TransformedEnv,
    VecGymEnvTransform,
)


def test_timer_measures_each_phase() -> None:
    timer = Timer()
    ticks = count()
    timer._now = lambda: float(next(ticks) ** 2)  # 0, 1, 4, 9: intervals of 1, 3 and 5
    env = TransformedEnv(CountingRowsEnv(2, 3), timer)
    root = env.reset()
    assert root["time_reset"].tolist() == [1, 1]
    assert root["time_step"].tolist() == root["time_policy"].tolist() == [0, 0]
    step_td = env.rand_step(root)["next"]
    laps = step_td["time_policy"], step_td["time_step"], step_td["time_reset"]
    assert [lap.tolist() for lap in laps] == [[3, 3], [5, 5], [0, 0]]
    assert step_td["time_step"].dtype == torch.float32


def test_timer_records_resets_in_rollouts() -> None:
    rollout = TransformedEnv(CountingRowsEnv(2), Timer(time_key="t")).rollout(6, break_when_any_done=False)[0]
    assert (rollout["t_reset"] > 0).tolist() == [True, False, True, False, True, False]
    assert (rollout["next", "t_step"] > 0).all()
    assert not rollout["next", "t_reset"].any()


def test_timer_has_three_keys() -> None:
    assert Timer(out_keys=["a", "b", "c"]).out_keys == ["a", "b", "c"]
    with pytest.raises(TypeError, match="three"):
        Timer(out_keys=["a"])


@pytest.mark.parametrize(
    "make",
    [Timer, lambda: FrameSkipTransform(2), ActionMask, VecGymEnvTransform, AutoResetTransform],
    ids=["Timer", "FrameSkip", "ActionMask", "VecGym", "AutoReset"],
)
def test_transforms_of_steps_refuse_stored_data(make: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Expected \w+ (in|to be part of) an environment"):
        make()(TensorDict(observation=torch.ones(2)))


def test_keys_of_counts_and_marks_are_public() -> None:
    env = TransformedEnv(GroupsEnv(("a", "b"), root=True), Compose(StepCounter(3, "over"), InitTracker("first")))
    count, mark = env.transform
    assert count.step_count_keys == ["step_count", ("a", "step_count"), ("b", "step_count")]
    assert count.truncated_keys == ["over", ("a", "over"), ("b", "over")]
    assert mark.init_keys == ["first", ("a", "first"), ("b", "first")]
    assert StepCounter().step_count_keys == ["step_count"]


def test_trajectories_are_numbered_in_order() -> None:
    rollout = TransformedEnv(CountingRowsEnv(2, 3, 4), TrajCounter()).rollout(7, break_when_any_done=False)
    expected = [[0, 0, 3, 3, 5, 5, 7], [1, 1, 1, 4, 4, 4, 8], [2, 2, 2, 2, 6, 6, 6]]  # the numbering of TorchRL
    assert rollout["traj_count"].squeeze(-1).tolist() == expected
    assert torch.equal(rollout["next", "traj_count"], rollout["traj_count"])


@pytest.mark.parametrize("key", [("c", "number"), ("a", "x", "number")])
def test_keys_in_groups_without_done_flags_raise(key: tuple[str, ...]) -> None:
    for use in (EnvBase.reset, lambda env: env.rollout(3), lambda env: env.observation_spec):
        with pytest.raises(RuntimeError, match="beside one of the done flags"):
            use(TransformedEnv(GroupsEnv(("a", "b"), root=True), TrajCounter(key)))


@pytest.mark.parametrize("tracker", [TrajCounter, InitTracker, StepCounter, RewardSum, lambda: TrajCounter(("a", "n"))])
def test_trajectories_without_flags_raise(tracker: Any) -> None:
    stored = TensorDict({"next": TensorDict({"reward": torch.ones(4, 1)}, [4])}, [4])
    for use in (tracker(), torch.nn.Sequential(tracker())):
        with pytest.raises(KeyError, match="expects an entry 'done', but there are only"):
            use(stored)
    stored["next", "done"] = torch.zeros(4, 1, dtype=torch.bool)
    with pytest.raises(KeyError, match=r"expects an entry \('a', 'done'\)"):
        TrajCounter(("a", "n"))(stored)
    with pytest.raises(KeyError, match="expects an entry 'pay'"):
        RewardSum(["pay"])(stored)


@pytest.mark.parametrize("tracker", [StepCounter, TrajCounter, InitTracker, RewardSum])
@pytest.mark.parametrize("size", [[], [3]])
def test_data_that_are_no_trajectories_raise(tracker: Any, size: list[int]) -> None:
    data = TensorDict({"reward": torch.ones(*size, 1), "done": torch.zeros(*size, 1, dtype=torch.bool)}, size)
    with pytest.raises(ValueError, match=r"Expected trajectories \[\.\.\., time\] .* as input of"):
        tracker()(data)


def test_clones_and_repeats_count_on() -> None:
    reset_td = TrajCounter(repeats=2)
    envs = [TransformedEnv(CountingRowsEnv(2), reset_td), TransformedEnv(CountingRowsEnv(2), reset_td.clone())]
    assert [int(env.reset()["traj_count"]) for env in envs * 3] == [0, 0, 1, 1, 2, 2]


def test_groups_have_separate_numbers() -> None:
    env = TransformedEnv(GroupsEnv(("a", "b"), root=False), TrajCounter(("a", "number")))
    assert env.reset()["a", "number"].flatten().tolist() == [0, 1]
    both = TransformedEnv(GroupsEnv(("a", "b"), root=False), TrajCounter()).reset()
    assert [both[name, "traj_count"].flatten().tolist() for name in "ab"] == [[0, 1], [2, 3]]


def test_stored_trajectories_are_numbered_too() -> None:
    stored = CountingRowsEnv(2, 3).rollout(6, break_when_any_done=False)
    assert TrajCounter()(stored)["traj_count"].squeeze(-1).tolist() == [[0, 0, 1, 1, 2, 2], [3, 3, 3, 4, 4, 4]]


def test_counts_are_part_of_the_state() -> None:
    counter = TrajCounter()
    TransformedEnv(CountingRowsEnv(2), Compose(StepCounter(), counter)).rollout(5, break_when_any_done=False)
    other = TrajCounter()
    other.load_state_dict(counter.state_dict())
    assert int(TransformedEnv(CountingRowsEnv(2), other).reset()["traj_count"]) == 3


def test_copies_never_share_a_trajectory_number() -> None:
    counter = TrajCounter()
    assert counter._counter.next_values(5) == 0
    copies = [pickle.loads(pickle.dumps(counter._counter)) for _ in range(4)]  # copies as in other processes
    with ThreadPoolExecutor(4) as workers:
        numbers = workers.map(lambda counter: [counter.next_values(1) for _ in range(50)], copies)
    assert sorted(n for subset in numbers for n in subset) == list(range(5, 205))
    assert copies[0].value == counter._counter.value == 205


def test_copies_without_the_shared_file_count_separately() -> None:
    counter = TrajCounter()
    counter._counter.next_values(3)
    state = counter._counter.__getstate__()
    alone = TrajCounter()._counter
    alone.__setstate__({**state, "_file": state["_file"] + ".gone"})
    assert alone.next_values(1) == 3
    assert counter._counter.value == 3


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="repeats"):
        TrajCounter(repeats=0)
    env = TransformedEnv(CountingRowsEnv(2), TrajCounter())
    with pytest.raises(KeyError, match="traj_count"):
        env.rand_step()
