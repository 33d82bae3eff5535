"""Groups of agents: group maps, and an environment with two groups under all methods of `EnvBase`."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from vecrl.envs import EnvBase, MarlGroupMapType, SerialEnv, check_env_specs, check_marl_grouping
from vecrl.envs.transforms import (
    Compose,
    InitTracker,
    RewardSum,
    StepCounter,
    TargetReturn,
    TensorDictPrimer,
    TrajCounter,
    TransformedEnv,
)
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Categorical, Composite, OneHot, Unbounded


@pytest.mark.parametrize("kind", MarlGroupMapType)
def test_default_group_maps(kind: MarlGroupMapType) -> None:
    names = ["cat", "dog", "cow"]
    check_marl_grouping(kind.get_group_map(names), names)


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ({}, r"in no group: \[.cat., .dog.\]"),
        ({"a": ["cat"], "b": []}, r"empty groups \['b'\]"),
        ({"a": ["cat"]}, r"in no group: \['dog'\]"),
        ({"a": ["cat", "dog"], "b": ["dog"]}, r"in more than one place: \['dog'\]"),
        ({"a": ["cat", "cat"], "b": ["dog"]}, r"in more than one place: \['cat'\]"),
        ({"a": ["cat", "dog", "cow"]}, r"unknown: \['cow'\]"),
    ],
)
def test_invalid_groups_raise(groups: dict[str, list[str]], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        check_marl_grouping(groups, ["cat", "dog"])


def test_agents_with_equal_names_are_grouped() -> None:
    with pytest.raises(ValueError, match="different names"):
        check_marl_grouping({"a": ["cat"]}, ["cat", "cat"])


class GroupsEnv(EnvBase):
    """Has two sheep and three wolves in each of two fields. Every agent counts its own steps.

    Rewards and done flags are per agent, or shared by all at the root. The episode of an agent has as many steps as its
    index in its group plus one; the shared episode ends after three steps.
    """

    GROUPS = {"sheep": 2, "wolves": 3}

    def __init__(self, own: bool):
        super().__init__(batch_size=[2])
        self.own = own
        seen, acts, pays, done = (Composite(shape=[2]) for _ in range(4))
        for name, agents in self.GROUPS.items():
            age = Composite(age=Unbounded((2, agents, 1), dtype=torch.int64), shape=[2, agents])
            seen[name] = age
            acts[name] = Composite(
                action=OneHot(4, (2, agents, 4)) if name == "sheep" else Bounded(-1, 1, (2, agents, 2)),
                shape=[2, agents],
            )
            if own:
                pays[name] = Composite(reward=Unbounded((2, agents, 1)), shape=[2, agents])
                done[name] = Composite(done=Categorical(2, (2, agents, 1), dtype=torch.bool), shape=[2, agents])
        seen["grass"] = Unbounded((2, 5))
        if not own:
            pays["reward"], done["done"] = Unbounded((2, 1)), Categorical(2, (2, 1), dtype=torch.bool)
        self.observation_spec, self.action_spec, self.reward_spec, self.done_spec = seen, acts, pays, done
        self.ages = {name: torch.zeros(2, agents, 1, dtype=torch.int64) for name, agents in self.GROUPS.items()}

    def _seen(self) -> TensorDict:
        data = TensorDict({"grass": torch.rand(2, 5)}, [2])
        for name, agents in self.GROUPS.items():
            data[name] = TensorDict({"age": self.ages[name]}, [2, agents])
        return data

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        for name in self.GROUPS:
            mask = None if tensordict is None else tensordict.get((name, "_reset") if self.own else "_reset", None)
            if mask is not None:
                mask = mask if self.own else mask.unsqueeze(-1)
            self.ages[name] = torch.zeros_like(self.ages[name]) if mask is None else self.ages[name] * ~mask
        return self._seen()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.ages = {name: age + 1 for name, age in self.ages.items()}
        data = self._seen()
        if not self.own:
            old = self.ages["sheep"][:, 0]
            return data.update({"reward": old.float(), "done": old >= 3})
        for name, agents in self.GROUPS.items():
            life = torch.arange(1, agents + 1).unsqueeze(-1)
            data[name].update({"reward": self.ages[name].float(), "done": self.ages[name] >= life})
        return data

    def _set_seed(self, seed: int | None) -> None: ...


@pytest.mark.parametrize("own", [True, False])
def test_specs_and_keys_follow_the_groups(own: bool) -> None:
    env = GroupsEnv(own)
    check_env_specs(env, break_when_any_done="both")
    assert env.action_keys == [("sheep", "action"), ("wolves", "action")]
    assert env.reward_keys == ([("sheep", "reward"), ("wolves", "reward")] if own else ["reward"])
    assert env.reset_keys == ([("sheep", "_reset"), ("wolves", "_reset")] if own else ["_reset"])
    assert env.done_keys_groups[0] == ([("sheep", "done"), ("sheep", "terminated")] if own else ["done", "terminated"])


@pytest.mark.parametrize("own", [True, False])
def test_steps_keep_the_agent_dimensions(own: bool) -> None:
    data = GroupsEnv(own).rand_step()
    assert data["next"].batch_size == (2,)
    assert data["sheep"].batch_size == data["next", "sheep"].batch_size == (2, 2)
    assert data["next", "wolves"].batch_size == (2, 3)
    assert data["sheep", "action"].sum(-1).eq(1).all()
    assert data["next", "grass"].shape == (2, 5)
    assert (("next", "sheep", "reward") in data.keys(True)) == own


def test_agents_reset_independently() -> None:
    env = GroupsEnv(own=True)
    rollout = env.rollout(6, break_when_any_done=False)
    for name, agents in env.GROUPS.items():
        for agent in range(agents):
            life = agent + 1
            ages = [t % life for t in range(6)]
            assert rollout[name, "age"][:, :, agent, 0].tolist() == [ages, ages]
            assert rollout["next", name, "reward"][0, :, agent, 0].tolist() == [age + 1.0 for age in ages]
            assert rollout["next", name, "done"][0, :, agent, 0].tolist() == [age + 1 == life for age in ages]


def test_agents_reset_together() -> None:
    rollout = GroupsEnv(own=False).rollout(7, break_when_any_done=False)
    assert rollout["sheep", "age"][0, :, 1, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rollout["wolves", "age"][1, :, 2, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert rollout["next", "done"][0, :, 0].tolist() == [False, False, True, False, False, True, False]


def test_rollouts_stop_by_group_flags() -> None:
    assert GroupsEnv(own=True).rollout(9).shape == (2, 1), "the first of any agent"
    assert GroupsEnv(own=True).rollout(9, break_when_all_done=True).shape[1] == 3
    assert GroupsEnv(own=False).rollout(9).shape == (2, 3)


def sheep_and_memory() -> Composite:
    memory = Composite(cell=Unbounded((2, 4, 3)), shape=(2, 4))
    return Composite(sheep=Composite(hidden=Unbounded((2, 2, 3)), shape=(2,)), memory=memory, shape=(2,))


IN_GROUPS: dict[str, Any] = {
    "RewardSum": RewardSum,
    "StepCounter": StepCounter,
    "StepCounter that truncates": partial(StepCounter, 2),
    "TrajCounter": TrajCounter,
    "InitTracker": InitTracker,
    "TargetReturn": lambda: TargetReturn(9.0, in_keys=[("sheep", "reward")], out_keys=[("sheep", "target")]),
    "TensorDictPrimer": lambda: TensorDictPrimer(
        {("sheep", "hidden"): Unbounded((2, 3)), ("wolves", "x"): Unbounded((3, 1))}
    ),
    "TensorDictPrimer of a Composite": lambda: TensorDictPrimer(sheep_and_memory()),
    "all": lambda: Compose(
        RewardSum(), InitTracker(), TensorDictPrimer({("wolves", "h"): Unbounded((3, 2))}), StepCounter()
    ),
}


def batch_sizes(data: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], torch.Size]:
    """Returns the batch sizes of all nested TensorDicts or Composites, without those of a batch of steps."""
    names = [name for name in data.keys() if isinstance(data[name], TensorDictBase | Composite)]  # noqa: SIM118
    sizes = {(*prefix, name): data[name].shape for name in names}
    return {key: size for name in names for key, size in batch_sizes(data[name], (*prefix, name)).items()} | sizes


@pytest.mark.parametrize("name", IN_GROUPS)
def test_transforms_in_groups_keep_the_batch_sizes_of_groups(name: str) -> None:
    expected = {("sheep",): (2, 2), ("wolves",): (2, 3), ("memory",): (2, 4)}
    env = TransformedEnv(GroupsEnv(own=True), IN_GROUPS[name]())
    for spec in (env.full_state_spec, env.observation_spec, env.full_reward_spec, env.full_done_spec):
        assert batch_sizes(spec).items() <= expected.items()
    steps = env.rollout(4, break_when_any_done=False).unbind(1)
    for data in (env.reset(), env.fake_tensordict(), env.rand_step(env.reset()), *steps):
        for part in [data, data["next"]] if "next" in data else [data]:
            sizes = batch_sizes(part.exclude("next"))
            assert sizes.items() <= expected.items()
            assert {("sheep",), ("wolves",)} <= sizes.keys()
    check_env_specs(env)
    check_env_specs(SerialEnv(2, lambda: TransformedEnv(GroupsEnv(own=True), IN_GROUPS[name]())))


class OwnRewards(EnvBase):
    """Has observations and done flags at the root, and a reward for each of three agents."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(position=Unbounded((1,)))
        self.full_action_spec = Composite(agents=Composite(action=Unbounded((3, 1)), shape=(3,)))
        self.full_reward_spec = Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,)))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = self.observation_spec.zero().update(self.full_reward_spec.one())
        return result.set("done", torch.zeros(1, dtype=torch.bool))

    def _set_seed(self, seed: int | None) -> None: ...


def test_groups_that_only_a_transform_resets_have_the_batch_size_of_the_group() -> None:
    env = TransformedEnv(OwnRewards(), RewardSum())
    assert env.reset()["agents"].batch_size == env.fake_tensordict()["agents"].batch_size == (3,)
    rollout = env.rollout(4)
    assert rollout["agents"].batch_size == rollout["next", "agents"].batch_size == (4, 3)
    assert rollout["next", "agents", "episode_reward"][:, 0, 0].tolist() == [1, 2, 3, 4]
    check_env_specs(env)


def test_check_env_specs_reports_the_batch_sizes_of_groups() -> None:
    class Flat(GroupsEnv):
        def _seen(self) -> TensorDict:
            data = super()._seen()
            data["sheep"].batch_size = [2]
            return data

    with pytest.raises(SpaceError, match=r"reset: 'sheep': expected batch size \(2, 2\), found \(2,\)"):
        check_env_specs(Flat(own=True))


@pytest.mark.parametrize("kind", MarlGroupMapType)
def test_groups_without_agents_are_refused(kind: MarlGroupMapType) -> None:
    with pytest.raises(ValueError, match="one agent or more, got none"):
        check_marl_grouping(kind.get_group_map([]), [])
