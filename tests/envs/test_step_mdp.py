"""`step_mdp` and `terminated_or_truncated`."""

import pytest
import torch
from tensordict import TensorDict

from vecrl.envs.utils import step_mdp, terminated_or_truncated


def _data() -> TensorDict:
    root = {"obs": 0, "action": 1, "other": 2, "a": {"obs": 0, "action": 1}}
    next_td = {"obs": 3, "reward": 4, "done": False, "a": {"obs": 3, "reward": 4, "done": True}}
    return TensorDict({**root, "next": next_td})


@pytest.mark.parametrize(
    ("switches", "keys"),
    [
        ({}, ["a", "done", "obs", "other"]),
        ({"keep_other": False}, ["a", "done", "obs"]),
        ({"exclude_reward": False}, ["a", "done", "obs", "other", "reward"]),
        ({"exclude_done": True}, ["a", "obs", "other"]),
        ({"exclude_action": False}, ["a", "action", "done", "obs", "other"]),
        ({"exclude_action": False, "keep_other": False}, ["a", "action", "done", "obs"]),
    ],
)
def test_options_select_the_copied_entries(switches: dict[str, bool], keys: list[str]) -> None:
    result = step_mdp(_data(), **switches)
    assert sorted(result.keys()) == keys
    assert result["obs"] == 3


def test_nested_keys_are_copied() -> None:
    groups = [("a", "reward"), "reward"], [("a", "done"), "done"], [("a", "action"), "action"]
    result = step_mdp(_data(), reward_keys=groups[0], done_keys=groups[1], action_keys=groups[2], exclude_done=True)
    assert sorted(result.keys(True, True), key=str) == [("a", "obs"), "obs", "other"]
    assert result["a", "obs"] == 3


def test_empty_groups_are_removed() -> None:
    data = TensorDict({"obs": 0, "a": {"action": 1}, "next": {"obs": 1, "a": {"reward": 1.0}, "b": {"reward": 1.0}}})
    result = step_mdp(data, reward_keys=[("a", "reward"), ("b", "reward")], action_keys=("a", "action"))
    assert list(result.keys()) == ["obs"]


def test_input_is_not_changed() -> None:
    data = _data()
    before = sorted(data.keys(True, True), key=str)
    step_mdp(data)["a", "more"] = torch.ones(())
    assert sorted(data.keys(True, True), key=str) == before


def test_next_tensordict_is_written() -> None:
    existing = TensorDict()
    assert step_mdp(_data(), existing) is existing
    assert existing["obs"] == 3


def test_lazy_stacks_are_stepped_part_by_part() -> None:
    steps = [TensorDict({"obs": torch.zeros(n), "next": {"obs": torch.ones(n)}}) for n in (1, 2)]
    result = step_mdp(TensorDict.lazy_stack(steps))
    assert [row["obs"].tolist() for row in result.unbind(0)] == [[1.0], [1.0, 1.0]]


def test_done_flags_of_groups() -> None:
    data = TensorDict({"done": torch.tensor([False]), "a": {"terminated": torch.tensor([True, False])}})
    assert terminated_or_truncated(data)
    assert data["_reset"].tolist() == [False]
    assert data["a", "_reset"].tolist() == [True, False]
    quiet = TensorDict({"done": torch.tensor([False])})
    assert not terminated_or_truncated(quiet)
    assert quiet.get("_reset", None) is None
    assert not terminated_or_truncated(quiet, write_full_false=True, key="ended")
    assert quiet["ended"].tolist() == [False]


def test_empty_nested_groups_are_removed() -> None:
    data = TensorDict({"next": TensorDict({"x": 1, "pays": TensorDict({"reward": 1.0}), "empty": TensorDict()})})
    root = step_mdp(data, reward_keys=("pays", "reward"))
    assert sorted(root.keys()) == ["x"]
