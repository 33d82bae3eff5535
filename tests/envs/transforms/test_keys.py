"""Transforms of keys."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.tensordict_envs import BoundedValuesEnv

from vecrl.envs import GymEnv, PendulumEnv, check_env_specs
from vecrl.envs.transforms import (
    CatTensors,
    Compose,
    DoubleToFloat,
    ExcludeTransform,
    LineariseRewards,
    ObservationNorm,
    RenameTransform,
    SelectTransform,
    StepCounter,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Unbounded
from vecrl.testing import IndependentRowsEnv

BATCHES = pytest.mark.parametrize("batch", [(), (4,)], ids=["single", "batch"])


def stored() -> TensorDict:
    """Returns a batch of two trajectories of three steps."""
    data = {"a": torch.zeros(2, 3, 2), "b": torch.ones(2, 3, 1), ("g", "c"): torch.full((2, 3), 2.0)}
    return TensorDict({**data, "reward": torch.ones(2, 3, 1), "action": torch.ones(2, 3, 1)}, [2, 3])


# -- CatTensors


@BATCHES
def test_cat_by_default_joins_the_observations_of_one_dimension(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), CatTensors())
    assert env.transform.in_keys == ["index", "observation", "row"]
    assert list(env.observation_spec.keys()) == ["image", "kind", "observation_vector"]
    assert env.observation_spec["observation_vector"] == Unbounded((*batch, 8))
    check_env_specs(env)


def test_cat_values_are_in_the_order_of_names() -> None:
    assert CatTensors(["b", "a"])(stored())["observation_vector"][0, 0].tolist() == [0, 0, 1]
    saved = CatTensors(["b", "a"], "both", sort=False, del_keys=False)(stored())
    assert saved["both"][0, 0].tolist() == [1, 0, 0]
    assert saved["a"].shape == (2, 3, 2)
    assert "a" not in CatTensors(["b", "a"])(stored())
    assert CatTensors(["b", "a"], "a")(stored())["a"].shape == (2, 3, 3)


def test_cat_dimensions() -> None:
    data = stored().set("d", torch.full((2, 3, 1), 5.0))
    wide = CatTensors(["b", "d"], "x", dim=-2, unsqueeze_if_oor=True)
    assert wide(data.copy())["x"].shape == (2, 3, 2, 1)
    assert CatTensors([("g", "c"), "b"], "x", unsqueeze_if_oor=True)(data.copy())["x"][1, 2].tolist() == [1, 2]
    assert CatTensors(["b", "d"], "x", dim=0)(data.copy())["x"].shape == (2, 3, 2)


@BATCHES
def test_cat_bounds_equal_the_parts(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), CatTensors(["observation", "index"], "x", del_keys=False))
    expected = Bounded(torch.tensor([0.0, -2, -2, -2]), torch.tensor([9.0, 4, 4, 4])).expand(*batch, 4)
    assert env.observation_spec["x"] == expected
    check_env_specs(env)
    env = TransformedEnv(BoundedValuesEnv(*batch), CatTensors(["kind", "index"], "x", unsqueeze_if_oor=True))
    assert env.observation_spec["x"] == Unbounded((*batch, 2), dtype=torch.int64)
    check_env_specs(env)


def test_cat_outside_an_environment_needs_keys() -> None:
    with pytest.raises(ValueError, match="have in_keys"):
        CatTensors()(stored())
    with pytest.raises(KeyError, match="'z'"):
        CatTensors(["a", "z"])(stored())


def test_cat_includes_counters() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), Compose(StepCounter(), DoubleToFloat(), CatTensors()))
    rollout = env.rollout(4)
    assert rollout["observation_vector"].shape == (2, rollout.shape[1], 4 + 3 + 2 + 1 + 1)
    check_env_specs(env)


# -- RenameTransform


@BATCHES
def test_rename_all_kinds(batch: Any) -> None:
    rename = RenameTransform(["observation", "reward"], ["seen", ("g", "pay")], ["action"], [("g", "act")])
    env = TransformedEnv(BoundedValuesEnv(*batch), rename)
    assert (env.reward_keys, env.action_keys) == ([("g", "pay")], [("g", "act")])
    assert env.observation_spec["seen"] == env.base_env.observation_spec["observation"]
    rollout = env.rollout(4)
    assert not {"observation", "reward", "action"} & set(rollout.keys())
    assert "reward" not in rollout["next"]
    check_env_specs(env)


def test_rename_with_copies() -> None:
    env = TransformedEnv(
        BoundedValuesEnv(4), RenameTransform(["observation", "done"], ["seen", "over"], create_copy=True)
    )
    root = env.reset()
    assert torch.equal(root["seen"], root["observation"])
    assert root["seen"].data_ptr() != root["observation"].data_ptr()
    assert env.done_keys == ["done", "over", "terminated"]
    check_env_specs(env)


def test_copied_actions_keep_both_keys() -> None:
    env = TransformedEnv(BoundedValuesEnv(4), RenameTransform([], [], ["action"], ["given"], create_copy=True))
    assert set(env.action_keys) == {"given", "action"}
    root = env.rand_action(env.reset())
    assert env.transform.inv(root)["action"].equal(root["given"])
    check_env_specs(env)


def test_transforms_before_a_renaming_read_the_old_keys() -> None:
    rename = RenameTransform(["step_count"], ["steps"], ["step_count"], ["steps"])
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(), rename))
    check_env_specs(env)
    assert env.rollout(3)["next", "steps"].flatten().tolist() == [1, 2, 3]
    root = env.rollout(3)[..., -1]["next"].exclude("reward").set("_reset", torch.tensor([False]))
    assert env.reset(root)["steps"] == 3


def test_rename_can_swap() -> None:
    data = RenameTransform(["a", "b"], ["b", "a"])(stored())
    assert (data["a"].shape[-1], data["b"].shape[-1]) == (1, 2)


def test_rename_stored_data_and_back() -> None:
    rename = RenameTransform(["a"], [("g", "a")], in_keys_inv=["a"], out_keys_inv=[("g", "a")])
    renamed = rename(stored())
    assert "a" not in renamed
    back = rename.inv(renamed)
    assert torch.equal(back["a"], stored()["a"])
    assert ("g", "a") in renamed.keys(include_nested=True)
    with pytest.raises(KeyError, match="'z'"):
        RenameTransform(["z"], ["y"])(stored())


def test_done_flags_keep_their_names() -> None:
    env = TransformedEnv(BoundedValuesEnv(4), RenameTransform(["done"], ["over"]))
    with pytest.raises(SpaceError, match="create_copy=True"):
        _ = env.done_spec


# -- SelectTransform and ExcludeTransform


@BATCHES
def test_select(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), SelectTransform("index"))
    assert list(env.observation_spec.keys()) == ["index"]
    assert sorted(env.reset().keys()) == ["done", "index", "terminated"]
    check_env_specs(env)
    env = TransformedEnv(BoundedValuesEnv(*batch), SelectTransform("index", keep_rewards=False))
    assert env.reward_keys == []
    assert "reward" not in env.rollout(3)["next"]
    check_env_specs(env)


def test_select_without_flags_never_ends() -> None:
    env = TransformedEnv(IndependentRowsEnv((0, 1)), SelectTransform("ticks", keep_dones=False))
    assert env.done_keys == []
    assert env.rollout(9).shape == (2, 9)
    check_env_specs(env)


def test_select_stored_data() -> None:
    assert sorted(SelectTransform("a")(stored()).keys()) == ["a", "reward"]
    assert sorted(SelectTransform("a", keep_rewards=False)(stored()).keys()) == ["a"]
    assert list(SelectTransform(("g", "c"), "z")(stored()).keys(True, True)) == [("g", "c"), "reward"]


@BATCHES
def test_exclude(batch: Any) -> None:
    env = TransformedEnv(BoundedValuesEnv(*batch), ExcludeTransform("index", "reward", "image"))
    assert list(env.observation_spec.keys()) == ["observation", "kind", "row"]
    assert env.reward_keys == []
    check_env_specs(env)
    with pytest.raises(KeyError, match="'nothing'"):
        check_env_specs(TransformedEnv(BoundedValuesEnv(*batch), ExcludeTransform("nothing")))


def test_exclude_inverse() -> None:
    exclude = ExcludeTransform("a", ("g", "c"), inverse=True)
    data = stored()
    assert "a" in exclude(data.copy())
    inner = exclude.inv(data)
    assert "a" not in inner
    assert ("g", "c") not in inner.keys(include_nested=True)
    assert ("g", "c") in data.keys(include_nested=True)
    assert "a" not in ExcludeTransform("a")(stored())
    env = TransformedEnv(BoundedValuesEnv(4), ExcludeTransform("image", inverse=True))
    env.step(env.rand_action(env.reset()))
    assert "image" not in env.base_env.given
    check_env_specs(env)


# -- environments with state entries that are transformed


@pytest.mark.parametrize(
    "transform",
    [
        lambda: CatTensors(["th", "thdot"], "state", unsqueeze_if_oor=True),
        lambda: RenameTransform(["th"], ["angle"], ["th"], ["angle"]),
        lambda: SelectTransform("th"),
        lambda: Compose(StepCounter(), SelectTransform("th")),
    ],
)
def test_state_entries_are_kept(transform: Any) -> None:
    env, plain = TransformedEnv(PendulumEnv(), transform()), PendulumEnv()
    check_env_specs(env)
    actions = torch.linspace(-1, 1, 4).unsqueeze(-1)
    for item in (env, plain):
        item.set_seed(0)
    rollout, expected = (item.rollout(4, actions=actions) for item in (env, plain))
    assert torch.equal(rollout["next", "reward"], expected["next", "reward"])


def test_renamed_observations_leave_rollouts_at_once() -> None:
    """Without keys of inputs there is no inverse, which would need a step at a time."""
    env = GymEnv("CartPole-v1").append_transform(RenameTransform(["observation"], ["obs"]))
    assert env._rollout_at_once(3, None, True) is not None
    env = GymEnv("CartPole-v1").append_transform(RenameTransform([], [], ["action"], ["choice"]))
    assert env._rollout_at_once(3, None, True) is None


def test_tuples_of_no_key_and_of_one() -> None:
    rename = RenameTransform(in_keys=(), out_keys=(), in_keys_inv=("action",), out_keys_inv=("act",))
    env = TransformedEnv(GymEnv("Pendulum-v1"), rename)
    check_env_specs(env)
    assert env.rollout(2)["act"].shape == (2, 1)
    assert LineariseRewards(in_keys=("reward",)).transform_reward_spec(Unbounded((2,))).shape == (1,)
    assert ObservationNorm(0.0, 1.0, in_keys=("observation",)).in_keys == ["observation"]
    assert RenameTransform(in_keys=("a", "b"), out_keys=("c", "d")).in_keys == [("a", "b")]


def test_a_tuple_of_names_is_several_keys_of_cat_tensors() -> None:
    data = TensorDict(observation=torch.zeros(2), other=torch.ones(3))
    for keys in (("observation", "other"), ["observation", "other"]):
        assert CatTensors(in_keys=keys, out_key="all")(data.copy())["all"].tolist() == [0, 0, 1, 1, 1]
    nested = TensorDict({"a": {"b": torch.zeros(2)}, "c": torch.ones(1)})
    assert CatTensors(in_keys=(("a", "b"), "c"), out_key="all")(nested)["all"].tolist() == [0, 0, 1]
