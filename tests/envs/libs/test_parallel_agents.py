"""Environments of several agents over TensorDicts, with agents in groups."""

import pytest
import torch
from tests.fixtures.agents_envs import Countdown, Turns

from vecrl.envs import MarlGroupMapType, ParallelEnv, SerialEnv
from vecrl.envs.libs.parallel_agents import ParallelAgentsEnv
from vecrl.errors import SpaceError
from vecrl.simulators.agents import TurnBasedAgents
from vecrl.specs import Categorical, OneHot
from vecrl.testing import EnvConformance


def countdown(env=None, **kwargs):
    env = Countdown() if env is None else env
    return ParallelAgentsEnv(env, env, **kwargs)


def turns(env=None, **kwargs):
    env = Turns() if env is None else env
    options = {"use_mask": True, "done_on_any": False, "group_map": MarlGroupMapType.ONE_GROUP_PER_AGENT}
    return ParallelAgentsEnv(env, TurnBasedAgents(env), **{**options, **kwargs})


def dying():
    return countdown(Countdown(ends={"cat_1": 2}), use_mask=True, done_on_any=False)


class TestGroups(EnvConformance):
    def make(self):
        return countdown(Countdown(masks="observation", infos=True), return_state=True)


class TestDyingAgents(EnvConformance):
    def make(self):
        return dying()


def shapes(data):
    return {key: (tuple(value.shape), value.dtype) for key, value in data.items(True, True)}


def test_entries_of_a_group():
    env = countdown(Countdown(masks="info", infos=True), use_mask=True, return_state=True)
    data = env.rand_step(env.reset())["next"]
    flag = {"done": ((2, 1), torch.bool), "terminated": ((2, 1), torch.bool), "truncated": ((2, 1), torch.bool)}
    assert shapes(data["cat"]) == {
        "observation": ((2, 2), torch.float32),
        "action_mask": ((2, 4), torch.bool),
        "mask": ((2,), torch.bool),
        "reward": ((2, 1), torch.float32),
        ("info", "time"): ((2,), torch.float32),
        ("info", "position"): ((2, 3), torch.float32),
        **flag,
    }
    assert data["dog"].batch_size == (1,)
    assert (data["state"].item(), data["dog", "reward"].item(), data["dog", "info", "time"].item()) == (1, 1, 1)
    assert data["done"].shape == (1,)


@pytest.mark.parametrize(
    "group_map",
    [
        {"pets": ["dog_0", "cat_0"], "rest": ["cat_1"]},
        lambda names: {"pets": [names[2], names[0]], "rest": [names[1]]},
    ],
)
def test_groups_may_be_chosen(group_map):
    env = countdown(group_map=group_map)
    action = env.full_action_spec.zero()
    action["pets", "action"], action["rest", "action"] = torch.tensor([3, 1]), torch.tensor([2])
    data = env.step(env.reset().update(action))["next"]
    assert data["pets", "observation"][:, 1].tolist() == [3, 1]
    assert data["rest", "observation"][:, 1].tolist() == [2]


def test_group_map_types_and_wrong_groups():
    assert countdown(group_map=MarlGroupMapType.ALL_IN_ONE_GROUP).group_map == {"agents": Countdown.possible_agents}
    with pytest.raises(ValueError, match="in no group: \\['dog_0'\\]"):
        countdown(group_map={"cat": ["cat_0", "cat_1"]})
    with pytest.raises(TypeError, match="Expected a dict of groups"):
        countdown(group_map="cat")


def test_actions_are_indices_or_rows():
    assert isinstance(countdown().full_action_spec["cat", "action"], Categorical)
    env = countdown(categorical_actions=False)
    spec = env.full_action_spec["cat", "action"]
    assert isinstance(spec, OneHot)
    assert spec.shape == (2, 4)
    data = env.rand_step(env.reset())
    assert data["next", "cat", "observation"][:, 1].tolist() == data["cat", "action"].int().argmax(-1).tolist()


@pytest.mark.parametrize("masks", ["info", "observation"])
def test_random_actions_obey_the_action_mask(masks):
    env = countdown(Countdown(masks=masks, length=20))
    assert env.has_action_mask == {"cat": True, "dog": True}
    data = env.rollout(20)
    allowed = data["cat", "action_mask"].gather(-1, data["cat", "action"].unsqueeze(-1))
    assert allowed.all()
    assert not data["cat", "action_mask"].all()


def test_unlike_agents_in_one_group():
    env = countdown(Countdown(masks="observation", sizes=(2, 3, 2)), group_map=MarlGroupMapType.ALL_IN_ONE_GROUP)
    env.check_env_specs()
    for agent, size in zip(env.rollout(4)["agents"].unbind(-1), (2, 3, 2), strict=True):
        assert agent["observation", "view"].shape == (4, size)
        assert agent["action_mask"].gather(-1, agent["action"].unsqueeze(-1)).all()


def test_agents_that_die():
    env = dying()
    data = env.rollout(12)["next"]
    assert data["done"].flatten().tolist() == [False] * 4 + [True]
    assert data["cat", "mask"].tolist() == [[True, True]] + [[True, False]] * 3 + [[False, False]]
    assert data["cat", "done"][:, 1, 0].tolist() == [False] + [True] * 4
    assert not data["cat", "truncated"][:, 1].any()  # it died before the time limit
    assert data["cat", "reward"][:, 1, 0].tolist() == [1, 2, 0, 0, 0]
    assert data["cat", "observation"][2:, 1].eq(0).all()
    assert (data["terminated"][-1].item(), data["truncated"][-1].item()) == (False, True)


def test_dead_agents_are_reset_with_the_episode_only():
    data = dying().rollout(7, break_when_any_done=False)
    assert data["next", "done"].flatten().tolist() == [False] * 4 + [True, False, False]
    assert data["cat", "done"][:, 1, 0].tolist() == [False, False, True, True, True, False, False]


def test_dead_agents_need_a_mask():
    with pytest.raises(SpaceError, match=r"got none of \['cat_1'\], which died.*use_mask=True"):
        countdown(Countdown(ends={"cat_1": 2}), done_on_any=False).rollout(4)
    assert countdown(Countdown(ends={"cat_1": 2})).rollout(4).shape == (2,)


def test_agents_that_act_in_turns():
    env = turns()
    data = env.reset()
    masks = []
    for _ in range(3):
        data["first", "action"], data["second", "action"] = torch.tensor([3]), torch.tensor([1])
        masks.append([data[name, "mask"].item() for name in ("first", "second")])
        data = env.step(data)["next"]
        if data["done"]:
            break
    assert masks == [[True, False], [False, True], [True, False]]
    assert (data["first", "reward"].item(), data["second", "reward"].item()) == (1, -1)
    assert data["first", "observation"].item() == 7


def test_seeds_are_used_by_the_next_reset():
    env = countdown(seed=4)
    env.set_seed(7)
    env.reset()
    env.reset()
    assert env.seeds == [4, 7, None]
    assert env.possible_agents == Countdown.possible_agents
    assert env.render().shape == (4, 6, 3)


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_batches_reset_their_rows_one_by_one(batch):
    def make(length):
        return lambda: countdown(Countdown(ends={"cat_1": 1}, length=length), use_mask=True, done_on_any=False)

    env = batch(2, [make(2), make(4)])
    try:
        data = env.rollout(5, break_when_any_done=False)
        assert data["next", "done"].squeeze(-1).int().tolist() == [[0, 1, 0, 1, 0], [0, 0, 0, 1, 0]]
        assert data["cat", "done"][..., 1, 0].int().tolist() == [[0, 1, 0, 1, 0], [0, 1, 1, 1, 0]]
    finally:
        env.close()
