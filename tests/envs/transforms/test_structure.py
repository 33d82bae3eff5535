"""Stacks, expanded entries and empty groups."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase, assert_close

from vecrl.envs import EnvBase, ParallelEnv, SerialEnv, check_env_specs
from vecrl.envs.transforms import (
    CatFrames,
    Compose,
    ExpandAs,
    InitTracker,
    RemoveEmptySpecs,
    Stack,
    StepCounter,
    Transform,
    TransformedEnv,
    VecNormV2,
)
from vecrl.errors import SpaceError
from vecrl.specs import Bounded, Categorical, Composite, Unbounded


class TwoAgents(EnvBase):
    """Two agents "a" and "b" with entries of their own; the observation of each is its last action, or 0."""

    def __init__(self, *batch: int, own_done: bool = False) -> None:
        super().__init__(batch_size=batch)
        group = Composite(seen=Unbounded((*batch, 3)), shape=batch)
        self.observation_spec = Composite(a=group, b=group.clone(), nothing=Composite(shape=batch), shape=batch)
        actions = {name: Composite(action=Bounded(-1, 1, (*batch, 3)), shape=batch) for name in "ab"}
        self.full_action_spec = Composite(actions, shape=batch)
        pay = {name: Composite(pay=Unbounded((*batch, 1)), shape=batch) for name in "ab"}
        self.full_reward_spec = Composite(pay, shape=batch)
        if own_done:
            flags = {flag: Categorical(2, (*batch, 1), dtype=torch.bool) for flag in ("done", "terminated")}
            self.full_done_spec = Composite({name: Composite(flags, shape=batch) for name in "ab"}, shape=batch)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        next_td = self.observation_spec.zero().update(self.full_done_spec.zero())
        for name, sign in (("a", 1), ("b", -1)):
            next_td[name, "seen"] = tensordict[name, "action"]
            next_td[name, "pay"] = sign * tensordict[name, "action"].sum(-1, keepdim=True)
        return next_td

    def _set_seed(self, seed: int | None) -> None: ...


def with_stacked_agents(base: EnvBase) -> TransformedEnv:
    return TransformedEnv(base, Stack(["a", "b"], "agents", "agents", ["a", "b"]))


# -- Stack


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("own_done", [False, True])
def test_groups_of_agents_are_stacked(batch: tuple[int, ...], own_done: bool) -> None:
    env = with_stacked_agents(TwoAgents(*batch, own_done=own_done))
    check_env_specs(env, break_when_any_done="both")
    assert env.action_keys == [("agents", "action")]
    assert env.reward_keys == [("agents", "pay")]
    assert env.observation_keys == [("agents", "seen")]
    assert env.done_keys[0] == (("agents", "done") if own_done else "done")
    assert env.full_action_spec["agents"].shape == (*batch, 2)
    actions = torch.rand(*batch, 2, 3)
    root = env.reset()
    next_td = env.step(root.set(("agents", "action"), actions))["next"]
    assert next_td["agents", "seen"].equal(actions)
    assert next_td["agents", "pay"].squeeze(-1).equal(actions.sum(-1) * torch.tensor([1, -1]))
    assert next_td["agents"].batch_size == (*batch, 2)


@pytest.mark.parametrize("batch_class", [SerialEnv, ParallelEnv])
def test_stacks_in_batches(batch_class: Any) -> None:
    inside = batch_class(2, lambda: with_stacked_agents(TwoAgents()))
    around = with_stacked_agents(batch_class(2, TwoAgents))
    for env in (inside, around):
        check_env_specs(env)
        assert env.rollout(3)["agents", "seen"].shape == (2, 3, 2, 3)
        env.close()


class EndingAgents(TwoAgents):
    """Two agents of which "a" is done after 2 steps, and "b" after 3."""

    def __init__(self) -> None:
        super().__init__(own_done=True)
        self.steps = {"a": 0, "b": 0}

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        for name in "ab":
            mask = None if tensordict is None else tensordict.get((name, "_reset"), None)
            if mask is None or mask.any():
                self.steps[name] = 0
        return super()._reset(tensordict)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        next_td = super()._step(tensordict)
        for name, length in (("a", 2), ("b", 3)):
            self.steps[name] += 1
            for flag in ("done", "terminated"):
                next_td[name, flag] = torch.tensor([self.steps[name] >= length])
        return next_td


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "make_other",
    [
        lambda agents: StepCounter(),
        lambda agents: InitTracker(),
        lambda agents: CatFrames(2, -1, [(agent, "seen") for agent in agents]),
        lambda agents: VecNormV2([(agent, "seen") for agent in agents]),
    ],
)
@pytest.mark.parametrize("is_before", [True, False])
def test_transforms_beside_a_stack_get_inputs_as_in_nested_environments(
    batch: int, make_other: Any, is_before: bool
) -> None:
    def make_chain() -> list[Transform]:
        other = make_other(["a", "b"] if is_before else ["agents"])
        stack = Stack(["a", "b"], "agents", "agents", ["a", "b"])
        return [other, stack] if is_before else [stack, other]

    bases = [EndingAgents() if batch == 1 else SerialEnv(batch, EndingAgents) for _ in range(2)]
    first, second = make_chain()
    nested = TransformedEnv(TransformedEnv(bases[0], first), second)
    env = TransformedEnv(bases[1], Compose(*make_chain()))
    expected, actual = [_seeded_rollout(each) for each in (nested, env)]
    assert actual["next", "agents", "done"].any()
    assert assert_close(actual, expected)


def _seeded_rollout(env: EnvBase) -> TensorDictBase:
    torch.manual_seed(0)
    return env.rollout(7, break_when_any_done=False)


def test_dimensions_of_stacks() -> None:
    data = TensorDict({"x": torch.zeros(4, 3), "y": torch.ones(4, 3)}, [4])
    shapes = {(-1,): (4, 3, 2), (-2,): (4, 2, 3), (0, True): (4, 2, 3), (1, True): (4, 3, 2)}
    for (dim, *positive), shape in shapes.items():
        stack = Stack(["x", "y"], "both", "both", ["x", "y"], dim, *positive)
        stacked = stack(data.copy())
        assert set(stacked.keys()) == {"both"}
        assert stacked["both"].shape == shape
        assert stack.inv(stacked)["y"].equal(data["y"])
    kept = Stack(["x", "y"], "x", dim=-2, del_keys=False)(data.copy())
    assert kept["x"].shape == (4, 2, 3)
    assert Stack(["x", "y"], "x", dim=-2)(data.copy())["x"].shape == (4, 2, 3)


def test_stacks_of_entries_of_groups() -> None:
    env = TransformedEnv(TwoAgents(2), Stack([("a", "seen"), ("b", "seen")], "seen", dim=-2))
    check_env_specs(env)
    assert env.reset()["seen"].shape == (2, 2, 3)
    assert "a" not in env.reset().keys()  # noqa: SIM118 - a TensorDict is no dict
    assert "a" not in env.full_observation_spec


def test_entries_that_the_next_step_needs_are_kept() -> None:
    env = TransformedEnv(TwoAgents(), StepCounter(step_count_key="count"))
    env = TransformedEnv(env, Stack(["count", "count"], "counts"))
    assert env.rollout(3)["next", "counts"].tolist() == [[[1, 1]], [[2, 2]], [[3, 3]]]


def test_errors_of_stacks() -> None:
    with pytest.raises(ValueError, match="Expected a negative dim"):
        Stack(["x"], "y", dim=0)
    with pytest.raises(ValueError, match="Expected in_key_inv and out_keys_inv, or neither"):
        Stack(["x"], "y", "z")
    data = TensorDict({"x": torch.zeros(3)})
    with pytest.raises(KeyError, match="expects an entry 'y'"):
        Stack(["x", "y"], "z")(data)
    with pytest.raises(SpaceError, match="to have 2 parts"):
        Stack(["x"], "z", "x", ["a", "b"]).inv(data)
    with pytest.raises(SpaceError, match="Expected entries of one shape to stack along dim=-1"):
        _ = TransformedEnv(TwoAgents(), Stack([("a", "seen"), "nothing"], "z")).observation_spec
    with pytest.raises(SpaceError, match=r"got the shapes .*'a': \{'seen': \(3,\)\}, 'b': \{'seen': \(4,\)\}"):
        _ = TransformedEnv(UnlikeAgents(), Stack(["a", "b"], "agents")).observation_spec
    with pytest.raises(KeyError, match=r"got \('c', 'seen'\). Did you mean \('b', 'seen'\)"):
        _ = TransformedEnv(TwoAgents(), Stack([("a", "seen"), ("c", "seen")], "z")).observation_spec


class UnlikeAgents(TwoAgents):
    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite({name: Composite(seen=Unbounded((n,))) for name, n in (("a", 3), ("b", 4))})


# -- ExpandAs


@pytest.mark.parametrize("batch", [(), (4,)])
def test_flags_are_expanded_to_the_shape_of_rewards(batch: tuple[int, ...]) -> None:
    env = TransformedEnv(with_stacked_agents(TwoAgents(*batch)), ExpandAs("done", ("agents", "pay"), "agents_done"))
    check_env_specs(env, break_when_any_done="both")
    assert env.reset()["agents_done"].shape == (*batch, 2, 1)
    assert env.rollout(2)["next", "agents_done"].shape == (*batch, 2, 2, 1)


def test_values_are_repeated_at_the_end() -> None:
    data = TensorDict({"x": torch.arange(4.0), "y": torch.zeros(4, 3, 2)}, [4])
    expanded = ExpandAs("x", "y")(data)["x"]
    assert expanded.equal(torch.arange(4.0).reshape(4, 1, 1).expand(4, 3, 2))
    assert expanded.is_contiguous()
    assert ExpandAs("x", ("n", "y"), ("n", "x"))(TensorDict({"x": torch.ones(1), "n": {"y": torch.zeros(2)}}))[
        "n", "x"
    ].equal(torch.ones(2))


def test_bounds_are_expanded() -> None:
    class Env(TwoAgents):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Composite(x=Bounded(0, 1, (1,)), y=Unbounded((3,)))

    spec = TransformedEnv(Env(), ExpandAs("x", "y", "z")).observation_spec["z"]
    assert isinstance(spec, Bounded)
    assert spec.high.tolist() == [1, 1, 1]


def test_errors_of_expanded_entries() -> None:
    with pytest.raises(SpaceError, match="can be expanded to"):
        ExpandAs("x", "y")(TensorDict({"x": torch.zeros(4, 2), "y": torch.zeros(4, 3, 2)}, [4]))
    with pytest.raises(KeyError, match="expects an entry 'y'"):
        ExpandAs("x", "y")(TensorDict({"x": torch.zeros(4)}))
    with pytest.raises(KeyError, match="expects an entry 'x'"):
        ExpandAs("x", "y")(TensorDict({"y": torch.zeros(4)}))
    with pytest.raises(SpaceError, match="Expected keys of the environment"):
        _ = TransformedEnv(TwoAgents(), ExpandAs("done", "x")).observation_spec


def test_a_flag_is_expanded_beside_done() -> None:
    expand = ExpandAs("terminated", ("a", "seen"), ("x", "terminated"))
    with pytest.raises(
        SpaceError, match=r"Expected \('x', 'done'\) beside the done flag \('x', 'terminated'\), got none"
    ):
        _ = TransformedEnv(TwoAgents(), expand).full_done_spec
    env = TransformedEnv(TwoAgents(), Compose(ExpandAs("done", ("a", "seen"), ("x", "done")), expand.clone()))
    check_env_specs(env)
    assert env.rollout(2)["next", "x", "terminated"].shape == (2, 3)


# -- RemoveEmptySpecs


class EmptyGroups(TwoAgents):
    """Has empty groups in its specs, and needs them in its input."""

    def __init__(self, *batch: int) -> None:
        super().__init__(*batch)
        empty = Composite(deeper=Composite(shape=batch), shape=batch)
        rewards = self.full_reward_spec.clone().unlock_(recurse=True)
        self.full_reward_spec = rewards.update(Composite(none=empty, shape=batch))
        self.state_spec = Composite(memory=Composite(shape=batch), shape=batch)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert tensordict["memory"].is_empty()
        return super()._step(tensordict).set("none", {"deeper": {}})


@pytest.mark.parametrize("batch", [(), (3,)])
def test_empty_groups_are_removed(batch: tuple[int, ...]) -> None:
    env = TransformedEnv(EmptyGroups(*batch), RemoveEmptySpecs())
    assert set(env.full_observation_spec.keys()) == {"a", "b"}
    assert set(env.full_reward_spec.keys()) == {"a", "b"}
    assert not list(env.full_state_spec.keys())
    rollout = env.rollout(2)
    assert set(rollout.keys()) == {"a", "b", "done", "terminated", "next"}
    assert set(rollout["next"].keys()) == {"a", "b", "done", "terminated"}
    check_env_specs(env)


def test_texts_are_no_empty_groups() -> None:
    data = RemoveEmptySpecs()(TensorDict({"text": "", "group": {"empty": {}}, "x": 1}))
    assert set(data.keys()) == {"text", "x"}
