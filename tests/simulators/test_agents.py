"""Environments of several agents behind gymnasium's interface."""

import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.agents_envs import Countdown, Turns

from vecrl.errors import SpaceError
from vecrl.simulators.agents import ActingAgentEnv, AgentsEnv, TurnBasedAgents, as_gym, zeros_in
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.testing import SimulatorConformance
from vecrl.vector import VectorEnv

ACTIONS = {"cat_0": np.int64(1), "cat_1": np.array(2), "dog_0": 3}


class TestParallel(SimulatorConformance):
    def make(self, num_envs):
        return GymnasiumSimulator([lambda: AgentsEnv(Countdown(ends={"cat_1": 2}))] * num_envs)


class TestTurns(SimulatorConformance):
    deterministic_reset = True

    def make(self, num_envs):
        return GymnasiumSimulator([lambda: as_gym(TurnBasedAgents(Turns()))] * num_envs)


def test_agents_act_together():
    env = AgentsEnv(Countdown(masks="info"))
    obs, info = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert info["infos"]["dog_0"]["action_mask"].tolist() == [0, 1, 1, 1]
    obs, reward, terminated, truncated, info = env.step(ACTIONS)
    assert [obs[name][1] for name in env.possible_agents] == [1, 2, 3]
    assert (reward, terminated, truncated) == (3.0, False, False)
    assert info["rewards"] == dict.fromkeys(env.possible_agents, 1.0)
    assert env.render().shape == (4, 6, 3)
    env.close()
    assert env.agents_env.closed


def test_an_agent_that_dies_observes_zeros_and_the_others_go_on():
    env = AgentsEnv(Countdown(ends={"cat_1": 2}))
    env.reset(seed=0)
    ends = [env.step(ACTIONS) for _ in range(5)]
    assert [step[2:4] for step in ends] == [(False, False)] * 4 + [(False, True)]
    obs, reward, *_, info = ends[2]
    assert obs["cat_1"].tolist() == [0, 0]
    assert reward == 6
    assert info["rewards"]["cat_1"] == 0
    assert info["active"] == {"cat_0": True, "cat_1": False, "dog_0": True}
    assert (info["terminations"]["cat_1"], info["truncations"]["cat_1"]) == (True, False)


def test_the_first_agent_that_is_done_may_end_the_episode():
    env = AgentsEnv(Countdown(ends={"cat_1": 2}), done_on_any=True)
    env.reset()
    assert [env.step(ACTIONS)[2:4] for _ in range(2)] == [(False, False), (True, False)]


def test_an_episode_terminates_if_all_agents_do():
    env = AgentsEnv(Countdown(ends={"cat_0": 1, "cat_1": 2, "dog_0": 2}))
    env.reset()
    assert [env.step(ACTIONS)[2:4] for _ in range(2)] == [(False, False), (True, False)]


def test_agents_that_act_in_turns_are_one_agent():
    env = as_gym(TurnBasedAgents(Turns(goal=4)))
    assert isinstance(env, ActingAgentEnv)
    _, info = env.reset()
    assert info["active"] == {"first": True, "second": False}
    steps = [env.step(np.array(action)) for action in (1, 2, 1)]
    assert [obs.tolist() for obs, *_ in steps] == [[-1], [3], [4]]  # what the next agent sees; the last one at the end
    assert [step[1] for step in steps] == [0, 0, 1]
    assert steps[-1][2:4] == (True, False)
    assert steps[-1][4]["rewards"] == {"first": 1, "second": -1}
    with pytest.raises(SpaceError, match="Expected the action of no agent"):
        env.step(1)


def test_the_turns_of_dead_agents_are_skipped():
    env = TurnBasedAgents(Turns(dies="first"))
    env.reset()
    assert [env.step({agent: 1})[2] for agent in ("first", "second", "second")] == [
        {"first": True, "second": False},
        {"first": True, "second": False},
        {"second": False},
    ]
    assert env.acting == env.agents == ["second"]
    with pytest.raises(SpaceError, match=r"Expected the action of \['second'\], got those of \['first'\]"):
        env.step({"first": 1})


def test_agents_that_act_in_turns_need_equal_spaces():
    with pytest.raises(SpaceError, match="Expected equal spaces of all agents that act in turns"):
        as_gym(TurnBasedAgents(Turns(sizes=(1, 2))))


def test_zeros_lie_in_every_space():
    space = spaces.Dict(
        a=spaces.Tuple([spaces.Box(-3, -1, (2,)), spaces.MultiBinary(2)]),
        b=spaces.MultiDiscrete([3, 4], start=[1, 2]),
        c=spaces.Discrete(2),
    )
    assert space.contains(zeros_in(space))
    with pytest.raises(SpaceError, match="Expected agents that observe numbers"):
        zeros_in(spaces.Text(3))


def test_a_vector_of_agents():
    with VectorEnv([lambda: AgentsEnv(Countdown(ends={"cat_1": 1}))] * 2) as env:
        obs, _ = env.reset(seed=[1, 2])
        assert obs["dog_0"].shape == (2, 2)
        *_, info = env.step(env.action_space.sample())
        assert info["active"]["cat_1"].tolist() == [False, False]
        assert env.get_attr("possible_agents")[0] == ["cat_0", "cat_1", "dog_0"]
