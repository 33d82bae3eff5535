"""PettingZoo and mpe2, in every dialect."""

import copy
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from mpe2 import simple_adversary_v3, simple_tag_v3

from vecrl.envs import MarlGroupMapType, ParallelEnv, PettingZooEnv, PettingZooWrapper, SerialEnv
from vecrl.errors import VersionError
from vecrl.simulators.agents import ActingAgentEnv, AgentsEnv
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.pettingzoo import env_fn, find_module, make, make_gym, names
from vecrl.snapshot.capture import capture
from vecrl.snapshot.restore import restore
from vecrl.testing import EnvConformance, SimulatorConformance
from vecrl.vector import make_vector_env

pytestmark = pytest.mark.simulators

F32, F64, BOOL, I8 = torch.float32, torch.float64, torch.bool, torch.int8
FLAGS = ("done", "terminated", "truncated")


class TestParallelSimulator(SimulatorConformance):
    def make(self, num_envs):
        return GymnasiumSimulator([env_fn("simple_spread_v3", max_cycles=12)] * num_envs)


class TestTurnsSimulator(SimulatorConformance):
    deterministic_reset = True

    def make(self, num_envs):
        return GymnasiumSimulator([env_fn("rps_v2", parallel=False)] * num_envs)


class TestSpread(EnvConformance):
    def make(self):
        return PettingZooEnv("simple_spread_v3", parallel=True, max_cycles=12, return_state=True)


class TestSpreadInTurns(EnvConformance):
    def make(self):
        return PettingZooEnv("simple_spread_v3", parallel=False, max_cycles=3, use_mask=True)


class TestTicTacToe(EnvConformance):
    deterministic = True

    def make(self):
        return PettingZooEnv("tictactoe_v3", parallel=False, use_mask=True)


def layout(data, *keys):
    group = data[keys] if keys else data
    return {key: (tuple(value.shape), value.dtype) for key, value in group.items(True, True)}


def flags(*shape):
    return dict.fromkeys(FLAGS, ((*shape, 1), BOOL))


def steps(env, count=1):
    data = env.reset()
    for _ in range(count):
        data = env.rand_step(data)["next"]
    return data


# Layouts as TorchRL's PettingZooWrapper has them on the same environments
def test_groups_of_simple_tag():
    env = PettingZooWrapper(simple_tag_v3.parallel_env())
    assert env.group_map == {"adversary": ["adversary_0", "adversary_1", "adversary_2"], "agent": ["agent_0"]}
    data = steps(env)
    assert layout(data, "adversary") == {"observation": ((3, 16), F32), "reward": ((3, 1), F32), **flags(3)}
    assert layout(data, "agent") == {"observation": ((1, 14), F32), "reward": ((1, 1), F32), **flags(1)}
    assert env.full_action_spec["adversary", "action"].shape == (3,)
    assert env.full_action_spec["adversary", "action"].dtype == torch.int64
    assert data["done"].shape == (1,)


def test_state_and_rows_of_simple_adversary():
    env = PettingZooWrapper(simple_adversary_v3.parallel_env(), return_state=True, categorical_actions=False)
    data = env.rand_step(env.reset())
    assert (data["state"].shape, data["state"].dtype) == ((28,), F32)
    assert (data["agent", "action"].shape, data["agent", "action"].dtype) == ((2, 5), torch.int64)


def test_entries_of_games_in_turns():
    env = PettingZooEnv("chess_v6", parallel=False, use_mask=True)
    assert env.group_map == {"player_0": ["player_0"], "player_1": ["player_1"]}
    assert layout(steps(env), "player_1") == {
        ("observation", "observation"): ((1, 8, 8, 111), BOOL),
        "action_mask": ((1, 4672), BOOL),
        "mask": ((1,), BOOL),
        "reward": ((1, 1), F32),
        **flags(1),
    }


@pytest.mark.parametrize(
    ("task", "group", "shape", "dtype", "kwargs"),
    [
        ("sisl/pursuit_v5", "pursuer", (8, 7, 7, 3), F32, {}),
        ("sisl/multiwalker_v9", "walker", (3, 31), F32, {}),
        ("butterfly/knights_archers_zombies_v11", "archer", (2, 27, 5), F64, {"use_mask": True}),
        ("butterfly/pistonball_v6", "piston", (3, 457, 120, 3), torch.uint8, {"n_pistons": 3}),
        ("butterfly/cooperative_pong_v6", "paddle", (2, 280, 480, 3), torch.uint8, {}),
        ("classic/rps_v2", "player", (2, 4), torch.int64, {}),
        ("atari/pong_v3", "first", (1, 210, 160, 3), torch.uint8, {}),
        ("mpe/simple_line_v1", "agent", (4, 8), F32, {}),
    ],
)
def test_families(task, group, shape, dtype, kwargs):
    env = PettingZooEnv(task, parallel=True, **kwargs)
    data = steps(env)
    assert (data[group, "observation"].shape, data[group, "observation"].dtype) == (shape, dtype)
    assert (data[group, "reward"].shape, data[group, "reward"].dtype) == ((shape[0], 1), F32)
    env.close()


def test_a_game_of_tictactoe():
    env = PettingZooWrapper(find_module("tictactoe_v3").env(), use_mask=True)
    data = env.reset()
    for cell in (0, 3, 1, 4, 2):  # the first column
        action = {"player_1": {"action": torch.tensor([cell])}, "player_2": {"action": torch.tensor([cell])}}
        data = env.step(data.update(action))["next"]
    assert data["done"]
    assert data["terminated"]
    assert [data[name, "reward"].item() for name in ("player_1", "player_2")] == [1, -1]
    assert not data["player_1", "mask"]
    assert data["player_2", "observation", "observation"][0, 0].tolist() == [[0, 1]] * 3


def test_random_players_of_games_obey_the_rules():
    env = PettingZooEnv("connect_four_v3", parallel=False, use_mask=True, seed=0)
    data = env.rollout(100, break_when_any_done=False)
    for name in env.group_map:
        acts = data[name, "mask"].squeeze(-1)
        allowed = data[name, "action_mask"].gather(-1, data[name, "action"].unsqueeze(-1)).squeeze()
        assert allowed[acts].all()
        assert data[name, "action_mask"][~acts].all()
    assert data["player_0", "mask"].logical_xor(data["player_1", "mask"]).all()
    assert data["next", "done"].any()


def test_agents_that_die():
    env = PettingZooEnv(
        "knights_archers_zombies_v11", parallel=True, use_mask=True, done_on_any=False, seed=1, spawn_delay=1
    )
    torch.manual_seed(0)
    data = env.rollout(900)["next"]
    dead = torch.cat([data[group, "done"][..., 0] for group in env.group_map], -1)
    masks = torch.cat([data[group, "mask"] for group in env.group_map], -1)
    assert dead[:-1].any()
    assert not dead[:-1].all(-1).any()  # until the last step, some agent lives
    assert (masks == ~dead).all()
    rewards = torch.cat([data[group, "reward"][..., 0] for group in env.group_map], -1)
    assert not rewards[1:][dead[:-1]].any()
    assert data["done"].flatten().tolist() == [False] * (len(data) - 1) + [True]


def test_dead_agents_that_act_in_turns_are_skipped():
    env = PettingZooEnv("knights_archers_zombies_v11", parallel=False, use_mask=True, seed=1, spawn_delay=1)
    torch.manual_seed(0)
    data = env.rollout(900)
    acts = torch.stack([data[name, "mask"].flatten() for name in env.group_map], -1)
    assert (acts.sum(-1) == 1).all()
    dead = torch.stack([data[name, "done"].flatten() for name in env.group_map], -1)
    assert dead.any()
    assert not acts[dead].any()


def test_a_group_of_unlike_agents():
    env = PettingZooEnv("simple_adversary_v3", True, group_map=MarlGroupMapType.ALL_IN_ONE_GROUP)
    env.check_env_specs()
    assert [agent["observation"].shape[-1] for agent in env.rollout(3)["agents"].unbind(-1)] == [8, 10, 10]


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_batches(batch):
    env = batch(2, partial(PettingZooEnv, "simple_tag_v3", parallel=True, max_cycles=3))
    try:
        env.set_seed(0)
        data = env.rollout(7, break_when_any_done=False)
        assert data["adversary", "observation"].shape == (2, 7, 3, 16)
        assert data["next", "done"][0].flatten().tolist() == [False, False, True] * 2 + [False]
        before = env.reset().clone()
        stepped = env.rand_step(before.clone())["next"]
        partly = env.reset(stepped.clone().set("_reset", torch.tensor([[True], [False]])))
        assert torch.equal(partly["agent", "observation"][1], stepped["agent", "observation"][1])
        assert not torch.equal(partly["agent", "observation"][0], stepped["agent", "observation"][0])
    finally:
        env.close()


def test_seeds():
    def observe(env):
        return env.reset()["agent", "observation"]

    env = PettingZooEnv("simple_spread_v3", True)
    assert not torch.equal(observe(env), observe(env))
    env.set_seed(5)
    plain = make("simple_spread_v3")
    plain.reset(seed=5)
    expected = plain.reset()[0]  # `set_seed` resets once too
    assert np.array_equal(observe(env).numpy(), np.stack([*expected.values()]))
    first, again = (PettingZooEnv("simple_spread_v3", True, seed=5) for _ in range(2))
    assert torch.equal(observe(first), observe(again))


def test_pixels():
    data = PettingZooEnv("simple_v3", True, from_pixels=True).rollout(2)
    assert (data["next", "pixels"].shape, data["next", "pixels"].dtype) == ((2, 700, 700, 3), torch.uint8)
    with make_vector_env("pettingzoo::simple_v3", num_envs=2, from_pixels=True) as env:
        assert env.reset()[0]["pixels"].shape == (2, 700, 700, 3)


def test_vectors_of_agents():
    with make_vector_env("pettingzoo::simple_spread_v3", num_envs=2, max_cycles=3) as env:
        assert env.single_action_space == spaces.Dict({f"agent_{i}": spaces.Discrete(5) for i in range(3)})
        env.reset(seed=1)
        _, reward, _, _, info = env.step(env.action_space.sample())
        own = [sum(row.values()) for row in info["rewards"]]
        assert np.allclose(reward, own)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("atari/pong_v3", {}),  # an emulator
        ("butterfly/cooperative_pong_v6", {}),  # pygame
        ("butterfly/knights_archers_zombies_v11", {"spawn_delay": 1}),
        ("sisl/pursuit_v5", {}),
    ],
)
def test_states(name, kwargs):
    def play(env, first):
        results = []
        for number in range(first, first + 12):
            env.action_space.seed(number)
            obs, reward, *_ = env.step(env.action_space.sample())
            results.append((copy.deepcopy(obs), reward))
        return results

    env, other = make_gym(name, **kwargs), make_gym(name, **kwargs)
    env.reset(seed=1)
    play(env, 0)
    state = capture(env)
    expected = play(env, 12)
    other.reset(seed=2)
    sprites = "pettingzoo.butterfly.knights_archers_zombies.src"  # that a game has none of at its start
    restore(other, state, allow=[f"{sprites}.{name}" for name in ("weapons.Sword", "weapons.Arrow", "zombie.Zombie")])
    for (obs, reward), (expected_obs, expected_reward) in zip(play(other, 12), expected, strict=True):
        assert all(np.array_equal(obs[agent], expected_obs[agent]) for agent in expected_obs)
        assert reward == expected_reward
    play(env, 24)  # which the other one has not changed
    env.close()
    other.close()


def test_parallel_or_in_turns():
    assert isinstance(make_gym("rps_v2"), AgentsEnv)
    env = make_gym("rps_v2", parallel=False)
    assert isinstance(env, ActingAgentEnv)
    assert isinstance(make_gym("tictactoe_v3"), ActingAgentEnv)
    assert env.action_space == spaces.Discrete(3)
    with pytest.raises(ValueError, match="Expected agents that act in parallel"):
        make("tictactoe_v3", parallel=True)
    with pytest.raises(ValueError, match="Expected use_mask=True for agents that act in turns"):
        PettingZooEnv("tictactoe_v3", parallel=False)


def test_names():
    assert {"classic/chess_v6", "mpe2/simple_spread_v3", "atari/pong_v3", "sisl/pursuit_v5"} <= {*names()}
    assert PettingZooEnv.available_envs == names()
    with pytest.raises(ValueError, match=r"got 'pong_v2'. Did you mean pong_v3"):
        env_fn("pong_v2")
    with pytest.raises(ValueError, match="got 'classic/pong_v3'"):
        env_fn("classic/pong_v3")
    with pytest.raises(TypeError, match="Expected an environment of PettingZoo, got 'chess_v6'"):
        PettingZooWrapper("chess_v6")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pettingzoo.atari", None)
    with pytest.raises(ImportError, match=r'pip install "vecrl\[pettingzoo\]"'):
        env_fn("chess_v6")
    with pytest.raises(VersionError, match=r'pip install "vecrl\[pettingzoo\]"'):
        PettingZooEnv("chess_v6", parallel=False)
    assert PettingZooEnv.available_envs == []


WITHOUT_MPE2 = """
import shutil, sys
from pathlib import Path

import mpe2, pettingzoo

folder, fallback = Path(mpe2.__file__).parent, Path(sys.argv[1])
if fallback.name:  # the games as a module of PettingZoo, where versions before 1.26 have them
    shutil.copytree(folder, fallback / "mpe", ignore=shutil.ignore_patterns("__pycache__"))
    for path in fallback.rglob("*.py"):
        path.write_text(path.read_text().replace("mpe2", "pettingzoo.mpe"))
    pettingzoo.__path__.insert(0, str(fallback))
for name in [name for name in sys.modules if name.partition(".")[0] == "mpe2"]:
    del sys.modules[name]

class WithoutMpe2:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *args):
        return None if name.partition(".")[0] == "mpe2" else self.finder.find_spec(name, *args)

sys.meta_path[:] = [WithoutMpe2(finder) for finder in sys.meta_path]

from vecrl.envs import PettingZooEnv
for name in ["simple_spread_v3", "mpe/simple_spread_v3", "mpe2/simple_spread_v3", "mpe/simple_sprad_v3"]:
    try:
        print(PettingZooEnv(name, parallel=True, max_cycles=5).rollout(9).shape)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


def without_mpe2(fallback: str) -> list[str]:
    args = [sys.executable, "-W", "ignore", "-c", WITHOUT_MPE2, fallback]
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout.splitlines()[-4:]


def test_games_of_mpe_in_pettingzoo_itself(tmp_path):
    *lines, unknown = without_mpe2(str(tmp_path / "pettingzoo"))
    assert lines == ["torch.Size([5])"] * 3
    assert "got 'mpe/simple_sprad_v3'. Did you mean mpe/simple_spread_v3" in unknown


def test_games_of_mpe_without_mpe2():
    names = ["simple_spread_v3", "mpe/simple_spread_v3", "mpe2/simple_spread_v3", "mpe/simple_sprad_v3"]
    assert without_mpe2("") == [
        f"VersionError: Expected mpe2 to be installed, which has {name!r}: pip install mpe2" for name in names
    ]


def test_battles_of_magent2_equal_those_of_the_library():
    from magent2.environments import battle_v4

    options = {"map_size": 16, "max_cycles": 12}
    with make_vector_env("pettingzoo::magent2/battle_v4", num_envs=2, autoreset_mode="same_step", **options) as env:
        raw = battle_v4.parallel_env(**options)
        raws, _ = raw.reset(seed=3)
        obs, _ = env.reset(seed=[2, 3])
        env.action_space.seed(0)
        ends = 0
        for _ in range(60):
            assert all(np.array_equal(obs[agent][1], value) for agent, value in raws.items())
            actions = env.action_space.sample()
            obs, reward, *_ = env.step(actions)
            raws, rewards, *_ = raw.step({agent: int(actions[agent][1]) for agent in raw.agents})
            assert float(reward[1]) == pytest.approx(sum(rewards.values()), rel=1e-6)
            if not raw.agents:
                ends += 1
                raws, _ = raw.reset()
    assert ends == 5
    assert len([name for name in names() if name.startswith("magent2/")]) == 6
