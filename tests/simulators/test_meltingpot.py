"""Melting Pot, in every dialect."""

import sys

import numpy as np
import pytest
import torch

from vecrl.envs import MarlGroupMapType, MeltingpotEnv, MeltingpotWrapper, ParallelEnv, SerialEnv
from vecrl.errors import VersionError
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.meltingpot import build, env_fn, names, substrates
from vecrl.testing import EnvConformance, SimulatorConformance
from vecrl.vector import VectorEnv

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(300)]

NAME = "prisoners_dilemma_in_the_matrix__repeated"  # two players
F64, U8 = torch.float64, torch.uint8


class TestSimulator(SimulatorConformance):
    num_steps = 8
    # Episodes cannot be repeated
    test_equal_seeds_give_equal_episodes = None
    test_environments_do_not_depend_on_the_worker = None
    test_partial_resets_and_steps_leave_other_rows_alone = None
    test_done_rows_are_reset_within_the_step = None
    test_states_restore_the_same_future = None

    def make(self, num_envs):
        return GymnasiumSimulator([env_fn(NAME, max_steps=5)] * num_envs)


class TestEnv(EnvConformance):
    num_steps = 8
    seeded = False
    test_states_restore_the_same_future = None
    test_in_a_batch_it_is_equal = None

    def make(self):
        return MeltingpotEnv(NAME, max_steps=5)


def layout(data):
    return {key: (tuple(value.shape), value.dtype) for key, value in data.items(True, True)}


# Layouts as TorchRL's MeltingpotWrapper has them on the same substrates
def test_entries():
    env = MeltingpotWrapper(build("commons_harvest__open"), max_steps=3)
    data = env.rollout(10)
    assert data.shape == (3,)
    assert layout(data["next"][0]) == {
        ("agents", "observation", "RGB"): ((7, 88, 88, 3), U8),
        ("agents", "observation", "READY_TO_SHOOT"): ((7, 1), F64),
        ("agents", "observation", "COLLECTIVE_REWARD"): ((7, 1), F64),
        ("agents", "reward"): ((7, 1), F64),
        "RGB": ((144, 192, 3), U8),
        "done": ((1,), torch.bool),
        "terminated": ((1,), torch.bool),
    }
    assert env.full_action_spec["agents", "action"].shape == (7,)
    assert data["next", "done"].flatten().tolist() == [False, False, True]
    assert data["next", "terminated"].equal(data["next", "done"])
    assert torch.equal(env.get_rgb_image(), data["next", "RGB"][-1])
    assert np.array_equal(env.render(), data["next", "RGB"][-1].numpy())
    env.close()


def test_a_group_for_each_player_and_rows_of_actions():
    env = MeltingpotEnv(NAME, categorical_actions=False, group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT)
    data = env.rand_step(env.reset())
    assert env.group_map == {"player_0": ["player_0"], "player_1": ["player_1"]}
    assert (data["player_1", "action"].shape, data["player_1", "action"].dtype) == ((1, 8), torch.int64)
    assert data["next", "player_0", "observation", "INTERACTION_INVENTORIES"].shape == (1, 2, 2)
    env.close()


def test_actions_reach_their_players():
    env = MeltingpotEnv(NAME)
    data = env.reset()
    ready = []
    for action in ([0, 0], [7, 0]):  # 7 is the beam
        data = env.step(data.set(("agents", "action"), torch.tensor(action)))["next"]
        ready.append(data["agents", "observation", "READY_TO_SHOOT"].flatten().tolist())
    assert ready[0] == [1, 1]
    assert ready[1][0] < 1
    assert ready[1][1] == 1
    env.close()


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_batches(batch):
    env = batch(2, lambda: MeltingpotEnv(NAME, max_steps=3))
    try:
        data = env.rollout(4, break_when_any_done=False)
        assert data["agents", "observation", "RGB"].shape == (2, 4, 2, 40, 40, 3)
        assert data["next", "done"][0].flatten().tolist() == [False, False, True, False]
        last = data["next"][:, -1].clone()
        partly = env.reset(last.clone().set("_reset", torch.tensor([[True], [False]])))
        assert torch.equal(partly["RGB"][1], last["RGB"][1])
    finally:
        env.close()


def test_vectors_of_players():
    with VectorEnv([env_fn(NAME, max_steps=2)] * 2, num_workers=1) as env:
        obs, _ = env.reset(seed=1)
        assert obs["player_1"]["RGB"].shape == (2, 40, 40, 3)
        truncated = [env.step(env.action_space.sample())[3].tolist() for _ in range(2)]
        assert truncated == [[False, False], [True, True]]


def test_pixels():
    env = MeltingpotEnv(NAME, from_pixels=True)
    assert env.reset()["pixels"].shape == (120, 184, 3)
    env.close()
    env = env_fn(NAME, from_pixels=True)()
    assert env.reset()[0]["pixels"].shape == (120, 184, 3)
    env.close()


def test_configurations_and_roles():
    config = substrates().get_config("commons_harvest__open")
    env = MeltingpotEnv(config, roles=["default"] * 2)
    assert env.group_map == {"agents": ["player_0", "player_1"]}
    env.close()
    with pytest.raises(ValueError, match="Invalid roles"):
        build(config, roles=["king"])


def test_names():
    assert len(names()) == 49
    assert MeltingpotEnv.available_envs == names()
    with pytest.raises(ValueError, match=r"got 'commons_harvest'\. Did you mean commons_harvest__"):
        build("commons_harvest")
    with pytest.raises(TypeError, match="Expected a substrate of Melting Pot, got 'commons'"):
        MeltingpotWrapper("commons")


def test_tensorflow_is_not_left_behind():
    substrates()
    assert "tensorflow" not in sys.modules


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr("vecrl.simulators.meltingpot.find_spec", lambda name: None)
    with pytest.raises(VersionError, match="Expected dm-meltingpot to be installed"):
        MeltingpotEnv(NAME)
