"""SMACv2: the adapter with objects that have its documented methods, and PySC2's own types and mock."""

import random
import sys

import numpy as np
import pytest
import torch
from tests.fixtures.smac_game import SmacGame, smacv2_modules

from vecrl.envs import SMACv2Env, SMACv2Wrapper, check_env_specs
from vecrl.errors import SpaceError, VersionError, WorkerError
from vecrl.simulators import availability
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.smacv2 import SmacAgents, env_fn, shuffle_with_function
from vecrl.testing import EnvConformance, SimulatorConformance
from vecrl.vector import make_vector_env


@pytest.fixture(autouse=True)
def smacv2(monkeypatch):
    for name, module in smacv2_modules().items():
        monkeypatch.setitem(sys.modules, name, module)


class MaskedGame(SmacGame):
    """A game in which every action is allowed, for suites that choose actions without masks."""

    def get_avail_actions(self):
        return [[1] * self.num_actions] * self.num_agents


class TestSimulator(SimulatorConformance):
    num_steps = 8

    def make(self, num_envs):
        sys.modules["smacv2.env"].StarCraft2Env = MaskedGame
        return GymnasiumSimulator([env_fn("3m")] * num_envs)


class TestEnv(EnvConformance):
    num_steps = 8

    def make(self):
        sys.modules["smacv2.env"].StarCraft2Env = MaskedGame  # random actions of a batch ignore masks
        return SMACv2Env("3m")


# -- agents


def test_agents_get_the_reward_of_the_team_and_their_masks():
    agents = SmacAgents(SmacGame())
    observations, infos = agents.reset()
    assert agents.possible_agents == ["0", "1", "2"]
    assert {name: obs[:2].tolist() for name, obs in observations.items()} == {str(i): [i, 0] for i in range(3)}
    assert all(agents.observation_space(name).contains(obs) for name, obs in observations.items())
    assert infos["1"]["action_mask"].tolist() == [False] + [True] * 6
    _, rewards, terminations, truncations, _ = agents.step({"0": 1, "1": 2, "2": 3})
    assert rewards == dict.fromkeys("012", 6.0)
    assert not any(terminations.values())
    assert not any(truncations.values())
    assert agents.state().tolist() == [1.0] * 11


def test_the_time_limit_truncates_and_a_victory_terminates():
    agents = SmacAgents(SmacGame())
    agents.reset()
    for t in range(5):
        *_, terminations, truncations, infos = agents.step({"0": 1 if t < 3 else 0, "1": 2, "2": 3})
    assert set(truncations.values()) == {True}
    assert set(terminations.values()) == {False}
    assert infos["0"]["action_mask"].tolist() == [True] + [False] * 6  # it died
    assert agents.agents == []
    assert agents.last_info == {"battle_won": False, "episode_limit": True, "dead_allies": 1, "dead_enemies": 0}
    agents.reset()
    assert agents.last_info["dead_allies"] == 0
    *_, terminations, _truncations, _ = agents.step(dict.fromkeys("012", 6))
    assert set(terminations.values()) == {True}
    assert agents.last_info["battle_won"]


def test_gymnasium_environment_has_the_reward_and_infos_of_the_team():
    env = env_fn("3m", render_mode="rgb_array")()
    env.reset(seed=1)
    _, reward, _, _, info = env.step({"0": 1, "1": 2, "2": 3})
    assert reward == 6
    assert info["dead_enemies"] == 0
    assert env.render().shape == (4, 4, 3)


def test_a_seed_starts_a_new_game():
    agents = env_fn("3m")().agents_env
    first, _ = agents.reset(seed=4)
    game = agents.env
    again, _ = agents.reset(seed=4)
    other, _ = agents.reset(seed=5)
    assert game.closed
    assert first["0"][2] == again["0"][2] != other["0"][2]
    assert env_fn("3m")().reset()[0]["0"][2] != env_fn("3m")().reset()[0]["0"][2]


def test_a_running_game_takes_no_seed():
    with pytest.raises(SpaceError, match="StarCraft II takes a seed at its start"):
        SmacAgents(SmacGame()).reset(seed=1)


# -- dialects


def test_prefix_makes_vector_environments():
    env = make_vector_env("smac::3m", num_envs=2)
    obs, _ = env.reset(seed=0)
    assert {name: tuple(part.shape) for name, part in obs.items()} == dict.fromkeys("012", (2, 4))
    _, reward, *_ = env.step({name: torch.full((2,), 2) for name in "012"})
    assert reward.tolist() == [6, 6]
    with pytest.raises(WorkerError, match="Agent 0 cannot perform action 0"):
        env.step({name: torch.zeros(2, dtype=torch.int64) for name in "012"})


def test_names_are_those_of_the_maps():
    assert availability.available("smac").names == ("10gen_terran", "3m")
    assert SMACv2Env.available_envs == SMACv2Wrapper.available_envs == ["3m", "10gen_terran"]


@pytest.mark.parametrize("categorical", [True, False])
def test_entries_have_the_layout_of_torchrl(categorical):
    env = SMACv2Env("3m", categorical_actions=categorical)
    check_env_specs(env)
    flag, count = ((), torch.bool), ((), torch.int64)
    observed = {
        "agents.observation": ((3, 4), torch.float32),
        "agents.action_mask": ((3, 7), torch.bool),
        "state": ((11,), torch.float32),
        **{f"info.{key}": flag for key in ("battle_won", "episode_limit")},
        **{f"info.{key}": count for key in ("dead_allies", "dead_enemies")},
        **dict.fromkeys(("done", "terminated"), ((1,), torch.bool)),
    }
    action = {"agents.action": ((3,) if categorical else (3, 7), torch.int64)}
    td = env.rand_step(env.reset())
    assert layout(td.exclude("next")) == observed | action
    assert layout(td["next"]) == observed | {"reward": ((1,), torch.float32)}
    assert td["agents"].batch_size == (3,)
    assert env.group_map == {"agents": ["0", "1", "2"]}
    assert env.get_env_info()["n_actions"] == 7


def layout(td):
    keys = ((key,) if isinstance(key, str) else key for key in td.keys(True, True))
    return {".".join(key): (tuple(td[key].shape), td[key].dtype) for key in keys}


def test_random_rollouts_respect_the_masks():
    env = SMACv2Env("10gen_terran", capability_config={"n_units": 6, "n_enemies": 5}, seed=3, obs_own_pos=True)
    rollout = env.rollout(50, break_when_any_done=False)  # the game refuses actions that are not available
    assert rollout["agents", "action"].shape == (50, 6)
    assert rollout["next", "done"].flatten().nonzero().flatten().tolist() == [6, 13, 20, 27, 34, 41, 48]
    assert torch.equal(rollout["next", "terminated"], rollout["next", "done"])
    assert rollout["next", "info", "episode_limit"].sum() == 7
    assert env.options == {"obs_own_pos": True}
    assert env.config == {"n_units": 6, "n_enemies": 5}


def test_wrapper_takes_a_game():
    env = SMACv2Wrapper(SmacGame(), categorical_actions=False)
    td = env.reset()
    td["agents", "action"] = torch.eye(7, dtype=torch.int64)[[2, 3, 4]]
    assert env.step(td)["next", "reward"].item() == 9
    with pytest.raises(TypeError, match="Expected a StarCraft2Env of smacv2, got 3"):
        SMACv2Wrapper(3)


def test_a_missing_library_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "smacv2.env", None)
    message = r"pip install git\+https://github.com/oxwhirl/smacv2.git, and StarCraft II"
    with pytest.raises(VersionError, match=message):
        SMACv2Env("3m")
    monkeypatch.setitem(sys.modules, "smacv2.env.starcraft2.maps.smac_maps", None)
    assert "StarCraft II" in (availability.available("smac").missing or "")
    assert SMACv2Env.available_envs == []


# -- PySC2


def test_shuffle_takes_a_function_only_during_the_import():
    expected, shuffled = list(range(10)), list(range(10))
    with shuffle_with_function():
        random.shuffle(shuffled, random.Random(3).random)
        random.shuffle(expected)
    assert sorted(shuffled) == sorted(expected) == list(range(10))
    assert shuffled != list(range(10))
    with pytest.raises(TypeError):
        random.shuffle(shuffled, random.random)


@pytest.mark.unity
def test_a_game_over_the_mock_of_pysc2():
    with shuffle_with_function():
        from pysc2.env import mock_sc2_env, sc2_env
        from pysc2.lib import actions, features

    class MockGame(SmacGame):
        """The methods of `StarCraft2Env` over PySC2's mock: observations, rewards and ends of episodes."""

        def __init__(self, **options):
            super().__init__(**options)
            self.sc2 = mock_sc2_env.SC2TestEnv(
                players=[sc2_env.Agent(sc2_env.Race.terran)],
                agent_interface_format=features.AgentInterfaceFormat(
                    feature_dimensions=features.Dimensions(screen=8, minimap=8)
                ),
            )
            self.sc2.episode_length = 4

        def reset(self):
            (self.step_type,) = self.sc2.reset()
            return super().reset()

        def get_obs(self):
            return [self.step_type.observation["player"][:4]] * self.num_agents

        def get_state(self):
            return self.step_type.observation["score_cumulative"][:11]

        def get_avail_actions(self):
            available = [*self.step_type.observation["available_actions"]]
            return [[int(i in available) for i in range(self.num_actions)]] * self.num_agents

        def step(self, choices):
            (self.step_type,) = self.sc2.step([actions.FUNCTIONS.no_op()])
            return self.step_type.reward, self.step_type.last(), {"dead_allies": len(choices)}

        def close(self):
            self.sc2.close()

    env = SMACv2Wrapper(MockGame())
    rollout = env.rollout(10)
    assert rollout.shape == (4,)
    assert rollout["next", "done"].flatten().tolist() == [False] * 3 + [True]
    assert rollout["agents", "observation"].dtype == torch.float32
    assert rollout["next", "info", "dead_allies"].tolist() == [3] * 4
    expected = np.asarray(env.step_type.observation["player"][:4], np.float32)
    assert rollout["next", "agents", "observation"][-1, 0].tolist() == expected.tolist()
    env.close()
