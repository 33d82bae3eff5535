"""Libraries that register environments with gymnasium, or have its old interface."""

import os
import subprocess
import sys
from importlib import import_module

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.envs import GymEnv, MOGymEnv, check_env_specs
from vecrl.errors import SpaceError
from vecrl.simulators.availability import available
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.gymnasium.libraries import env_fn, names
from vecrl.simulators.gymnasium.library_adapters import CrafterAdapter, MissionCodes
from vecrl.simulators.registry import find_entry
from vecrl.snapshot import capture, restore
from vecrl.testing import EnvConformance, SimulatorConformance
from vecrl.vector import VectorEnv, make_vector_env

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
pytestmark = pytest.mark.simulators

EXAMPLES = {
    "minigrid": "MiniGrid-LavaCrossingS11N5-v0",
    "atari": "ALE/Breakout-v5",
    "box2d": "LunarLander-v3",
    "mo": "mo-mountaincar-v0",
    "highway": "highway-fast-v0",
    "pybullet": "HopperBulletEnv-v0",
    "nle": "NetHackScore-v0",
    "crafter": "CrafterReward-v1",
    "robotics": "FetchReach-v4",
    "metaworld": "reach-v3",
    "ogbench": "pointmaze-medium-v0",
    "minihack": "MiniHack-Room-5x5-v0",
    "vizdoom": "VizdoomBasic-v1",
    "popgym": "popgym-CountRecallEasy-v0",
    "miniworld": "MiniWorld-OneRoom-v0",
    "memorygym": "MortarMayhemB-v0",
    "bsuite": "catch/0",
    "flappybird": "FlappyBird-v0",
    "pusht": "gym_pusht/PushT-v0",
    "panda": "PandaReach-v3",
}
KWARGS = {"crafter": {"area": (16, 16)}}  # the whole area takes seconds
COUNTS = {"minigrid": 172, "atari": 352, "box2d": 5, "mo": 39, "highway": 31, "pybullet": 13, "nle": 9, "crafter": 2}
COUNTS |= {
    "robotics": 153,
    "metaworld": 50,
    "ogbench": 276,
    "minihack": 122,
    "vizdoom": 364,
    "popgym": 42,
    "miniworld": 23,
    "memorygym": 4,
    "bsuite": 408,
    "flappybird": 1,
    "pusht": 1,
    "panda": 20,
}
OF_MINIHACK = {"MiniGrid-MultiRoom-N10-v0", "MiniGrid-LavaCrossingS19N13-v0", "MiniGrid-LavaCrossingS19N17-v0"}
SLOW = "minecart-rgb", "mo-highway", "fruit-tree"  # of mo: many pixels; slow; draws a large tree


def quick_names(library):
    """The names of the environments that are quickly made."""
    found = names(library)
    if library == "mo":
        return [name for name in found if not name.startswith(SLOW)]
    every = {
        "atari": 50,
        "robotics": 20,
        "metaworld": 10,
        "ogbench": 60,
        "minihack": 20,
        "vizdoom": 200,
        "miniworld": 6,
        "bsuite": 40,
        "panda": 4,
    }
    return [name for name in found if name.endswith("-v0")] if library == "highway" else found[:: every.get(library, 1)]


class TestMiniGrid(SimulatorConformance):
    def make(self, num_envs):
        return GymnasiumSimulator([env_fn(EXAMPLES["minigrid"], library="minigrid")] * num_envs)


class TestCrafter(SimulatorConformance):
    num_steps = 6

    def make(self, num_envs):
        return GymnasiumSimulator([env_fn("CrafterReward-v1", library="crafter", area=(16, 16), length=4)] * num_envs)


@pytest.fixture
def constants_of_highway(monkeypatch):
    """Restores the constants of all vehicles, which the `intersection` tasks change."""
    behavior = import_module("highway_env.vehicle.behavior")
    for name in ("DISTANCE_WANTED", "COMFORT_ACC_MAX", "COMFORT_ACC_MIN"):
        monkeypatch.setattr(behavior.IDMVehicle, name, getattr(behavior.IDMVehicle, name))


class TestNetHack(SimulatorConformance):
    num_steps = 12
    test_states_restore_the_same_future = None

    def make(self, num_envs):
        return GymnasiumSimulator([env_fn(EXAMPLES["nle"], library="nle", max_episode_steps=8)] * num_envs)


class TestMiniGridEnv(EnvConformance):
    def make(self):
        return GymEnv("minigrid::MiniGrid-Dynamic-Obstacles-Random-5x5-v0")


class TestHighwayEnv(EnvConformance):
    num_steps = 6

    def make(self):
        return GymEnv("highway::highway-fast-v0", config={"duration": 3, "vehicles_count": 5})


@pytest.mark.parametrize("library", EXAMPLES)
def test_names_are_those_of_the_library(library):
    found = names(library)
    others = {"minigrid": OF_MINIHACK}.get(library, set())  # if MiniHack is imported
    assert len(set(found) - others) == COUNTS[library]
    assert EXAMPLES[library] in found
    assert "CartPole-v1" not in found
    assert sorted(found) == [*available(library).names]
    with pytest.raises(ValueError, match=f"environment of {library}, got 'CartPole-v9'"):
        env_fn("CartPole-v9", library=library)


@pytest.mark.parametrize("library", EXAMPLES)
def test_seeds_in_worker_processes_and_in_this_one(library):
    make = env_fn(EXAMPLES[library], library=library, **KWARGS.get(library, {}))
    with VectorEnv([make] * 2) as here, VectorEnv([make] * 2, backend="processes", num_workers=2) as processes:
        here.action_space.seed(0)
        actions = here.action_space.sample()
        for env in (here, processes):
            env.reset(seed=[3, 4])
        obs, reward = here.step(actions)[:2]
        other_obs, other_reward = processes.step(actions)[:2]
    assert str(obs) == str(other_obs)
    assert np.array_equal(reward, other_reward)


def test_workers_import_the_library_themselves():
    code = """
from functools import partial
from vecrl.simulators.gymnasium.libraries import make
from vecrl.vector import VectorEnv
import sys
with VectorEnv([partial(make, "minigrid", "MiniGrid-Empty-5x5-v0")] * 2, backend="processes", num_workers=2) as env:
    print(env.reset(seed=1)[0]["image"].shape, "minigrid" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(2, 7, 7, 3) False"


@pytest.mark.parametrize("library", EXAMPLES)
def test_batches_of_tensors(library):
    with make_vector_env(f"{library}::{EXAMPLES[library]}", num_envs=2, **KWARGS.get(library, {})) as env:
        obs, _ = env.reset(seed=1)
        leaves = obs.values() if isinstance(obs, dict) else [obs]
        assert all(leaf.shape[0] == 2 and isinstance(leaf, torch.Tensor) for leaf in leaves)


@pytest.mark.parametrize(
    "library", [library for library in EXAMPLES if library not in ("minigrid", "atari", "popgym", "bsuite")]
)
def test_frames_are_images(library):
    env = env_fn(EXAMPLES[library], library=library, from_pixels=True, **KWARGS.get(library, {}))()
    frame = env.reset(seed=1)[0]["pixels"]
    assert (frame.ndim, frame.shape[-1], frame.dtype) == (3, 3, np.uint8)
    assert frame.std() > 0


@pytest.mark.parametrize(("library", "module"), [("highway", "highway_env"), ("pusht", "gym_pusht")])
def test_a_missing_library_is_named(library, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"vecrl\[{library}\]"):
        names(library)
    assert available(library).install == f'pip install "vecrl[{library}]"'


def test_missions_are_codes_or_text():
    env = env_fn("BabyAI-GoToRedBall-v0", library="minigrid")()
    text = env_fn("BabyAI-GoToRedBall-v0", library="minigrid", mission="text")()
    codes, mission = (each.reset(seed=1)[0]["mission"] for each in (env, text))
    assert (codes.shape, codes.dtype) == ((256,), np.uint8)
    assert bytes(codes).rstrip(b"\0").decode() == mission == "go to the red ball"
    with VectorEnv([env_fn("BabyAI-GoToRedBall-v0", library="minigrid", mission="text")] * 2) as rows:
        assert rows.reset(seed=[1, 1])[0]["mission"] == ("go to the red ball",) * 2
    with pytest.raises(ValueError, match="'codes' or 'text', got 'tokens'"):
        env_fn("BabyAI-GoToRedBall-v0", library="minigrid", mission="tokens")()
    with pytest.raises(SpaceError, match=r"at most 256 bytes, got 300.*mission=\"text\""):
        MissionCodes(text).observation({"mission": "a" * 300})


def test_rewards_of_several_objectives_are_summed():
    env = env_fn("deep-sea-treasure-v0", library="mo")()
    env.reset(seed=0)
    _, reward, *_, info = env.step(1)
    assert isinstance(reward, float)
    assert reward == info["vector_reward"].sum()
    assert info["vector_reward"].shape == (2,)
    assert find_entry("mo::minecart-v0")[0].env_class == "gym_libraries:MOGymEnv"
    rows = MOGymEnv("minecart-v0", num_envs=2)
    check_env_specs(rows)
    assert rows.rollout(3)["next", "reward"].shape == (2, 3, 3)


def test_games_of_nethack_differ_after_a_seed_and_repeat_with_it():
    make = env_fn(EXAMPLES["nle"], library="nle")
    games = []
    for _ in range(2):
        env = make()
        games.append([env.reset(seed=seed)[0]["chars"].copy() for seed in (5, None, None)])
    assert all(np.array_equal(*pair) for pair in zip(*games, strict=True))
    assert not np.array_equal(games[0][0], games[0][1])
    assert not np.array_equal(games[0][1], games[0][2])
    assert make().render() is None
    assert isinstance(env_fn(EXAMPLES["nle"], library="nle", render_mode="ansi")().render_mode, str)


def test_crafter_ends_by_death_or_by_length():
    env = env_fn("CrafterReward-v1", library="crafter", area=(16, 16), length=3)()
    env.reset(seed=1)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env.reset()
    env.unwrapped._player.health = 0
    assert env.step(0)[2:4] == (True, False)
    state = capture(env)
    futures = []
    for _ in range(2):
        restore(env, state)
        futures.append([env.reset()[0], env.step(1)[0]])
    assert np.array_equal(futures[0], futures[1])
    assert env.render() is None
    env.close()
    assert isinstance(env.unwrapped, CrafterAdapter) or env.unwrapped is env.legacy_env


def test_names_with_prefixes_over_tensordicts():
    env = GymEnv("minigrid::MiniGrid-Empty-5x5-v0", num_workers=2)
    assert env.rollout(2)["next", "image"].shape == (2, 2, 7, 7, 3)
    env.close()
    pixels = GymEnv("box2d::LunarLander-v3", from_pixels=True)
    assert pixels.reset()["pixels"].shape == (400, 600, 3)
    assert GymEnv("gym::CartPole-v1").reset()["observation"].shape == (4,)
    with pytest.raises(ValueError, match="simulator of single environments, got 'native::CartPole-v1'"):
        GymEnv("native::CartPole-v1")
    assert "Hopper" in str(GymEnv("pybullet::HopperBulletEnv-v0"))
    assert gymnasium.spec("HopperBulletEnv-v0").max_episode_steps == 1000


@pytest.mark.parametrize("library", EXAMPLES)
@pytest.mark.usefixtures("constants_of_highway")
def test_environments_are_made_reset_and_stepped(library):
    for name in quick_names(library):
        env = env_fn(name, library=library, **KWARGS.get(library, {}))()
        assert env.observation_space.contains(env.reset()[0]), name
        env.action_space.seed(0)
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs), name
        assert np.isfinite(float(reward)), name
        assert {type(terminated), type(truncated)} <= {bool, np.bool_}, name
        env.close()


def test_environments_of_memory_gym_survive_the_end_of_others_and_take_turns_on_threads():
    make = env_fn(EXAMPLES["memorygym"], library="memorygym")
    actions = np.random.default_rng(0).integers(3, size=(40, 4, 2))
    frames = []
    for backend in ("serial", "threads"):
        make().close()
        import_module("pygame").quit()
        with VectorEnv([make] * 4, backend=backend, num_workers=4 if backend == "threads" else 1) as envs:
            envs.reset(seed=1)
            other = gymnasium.make("CartPole-v1", render_mode="rgb_array")
            other.reset()
            other.render()
            other.close()
            frames.append([envs.step(action)[0]["visual_observation"] for action in actions])
    assert np.array_equal(*frames)
    assert np.ptp(frames[0]) > 0


def test_seeds_of_bsuite_set_the_noise_too():
    episodes = []
    for _ in range(2):
        env = env_fn("catch_noise/0", library="bsuite")()
        env.reset(seed=7)
        episodes.append([env.step(1)[1] for _ in range(12)])
        env.reset(seed=8)
        episodes.append([env.step(1)[1] for _ in range(12)])
    assert episodes[0] == episodes[2] != episodes[1] == episodes[3]


def test_episodes_of_panda_depend_on_the_last_seed_only():
    env = env_fn("PandaReach-v3", library="panda")()
    goals = []
    for seed in (5, None, None, 5, None, None):
        goals.append(env.reset(seed=seed)[0]["desired_goal"].tolist())
        env.step(env.action_space.sample())
    assert goals[:3] == goals[3:]
    assert goals[0] != goals[1] != goals[2]


@pytest.mark.usefixtures("constants_of_highway")
def test_several_agents_of_highway_have_one_reward_and_one_end():
    env = env_fn("intersection-multi-agent-v1", library="highway")()
    env.reset(seed=1)
    for _ in range(30):
        _, reward, terminated, truncated, info = env.step((1, 1))
        assert reward == sum(info["vector_reward"])
        assert isinstance(terminated, bool)
        if terminated or truncated:
            break
        assert not all(info["agents_terminated"])
    assert terminated or truncated


def test_minecart_takes_only_its_actions() -> None:
    env = env_fn("minecart-v0", library="mo")()
    env.reset(seed=0)
    for action in (-1, 77):
        with pytest.raises(
            SpaceError, match=rf"Expected an action of Discrete\(6\), got {action}. Give one of its numbers"
        ):
            env.step(action)
    env.step(np.int64(5))


def _meta_world(name, **kwargs):
    """As the library's own environments with goals that are observed, but with another goal in each episode."""
    task = import_module("metaworld.env_dict").ENV_CLS_MAP[name]()
    task._partially_observable = task._freeze_rand_vec = False
    del task.sawyer_observation_space
    task._set_task_called = task.seeded_rand_vec = True
    return gymnasium.wrappers.TimeLimit(task, **kwargs)


def _memory_gym(name, **kwargs):
    import_module("memory_gym")
    return import_module("gym").make(name, disable_env_checker=True, **kwargs)


def _flappy_bird(name, **kwargs):
    env = gymnasium.make(name, **kwargs)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs.clip(0, 1), env.observation_space)


class _Panda(gymnasium.Wrapper):
    """Gives the library, which draws entropy in resets without a seed, the seeds of a stream."""

    def __init__(self, name, **kwargs):
        super().__init__(gymnasium.make(name, **kwargs))

    def reset(self, *, seed=None, options=None):
        if seed is None:
            return self.env.reset(seed=int(self.rng.integers(2**31)))
        self.rng = np.random.default_rng(seed)
        return self.env.reset(seed=seed)


class _Bsuite:
    def __init__(self, name):
        self.env = import_module("bsuite").load_from_id(name)

    def reset(self, seed=None):
        if seed is not None:
            self.env._rng.seed(seed)
        return self.env.reset().observation, {}

    def step(self, action):
        time_step = self.env.step(action)
        return time_step.observation, time_step.reward, time_step.last(), False, {}

    def close(self):
        self.env.close()


RAW = {
    "metaworld": _meta_world,
    "memorygym": _memory_gym,
    "flappybird": _flappy_bird,
    "panda": _Panda,
    "bsuite": _Bsuite,
}
OTHERS = "robotics", "ogbench", "vizdoom", "popgym", "miniworld", "pusht"


@pytest.mark.parametrize("library", [*RAW, *OTHERS])
def test_three_hundred_steps_equal_those_of_the_library(library, tmp_path, monkeypatch):
    """With episode ends; of two rows, which the library steps one after the other."""
    monkeypatch.chdir(tmp_path)  # ViZDoom itself writes there
    kwargs = {} if library in ("popgym", "bsuite") else {"max_episode_steps": 40}
    with make_vector_env(f"{library}::{EXAMPLES[library]}", num_envs=2, autoreset_mode="same_step", **kwargs) as env:
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(300)]
        obs, _ = env.reset(seed=[3, 4])
        steps = [(obs, None, None)]
        for action in actions:
            obs, reward, terminated, truncated, _ = env.step(action)
            steps.append((obs, reward, terminated | truncated))
    ends = 0
    for row, seed in enumerate((3, 4)):
        raw = RAW.get(library, gymnasium.make)(EXAMPLES[library], **kwargs)
        if library == "metaworld":
            raw.unwrapped.seed(seed)
        if library == "ogbench":
            np.random.seed(seed)  # noqa: NPY002 -- it draws from it
        obs, _ = raw.reset(seed=seed)
        _assert_row(steps[0][0], row, obs)
        for action, (found, rewards, dones) in zip(actions, steps[1:], strict=True):
            obs, reward, terminated, truncated, _ = raw.step(action[row])
            done = terminated or truncated
            if done:
                ends += 1
                obs, _ = raw.reset()
            _assert_row(found, row, obs)
            assert (rewards[row], dones[row]) == (reward, done)
        raw.close()
    assert ends > 2


def _assert_row(found, row, expected):
    if isinstance(expected, dict):
        for name, value in expected.items():
            _assert_row(found[name], row, value)
    elif isinstance(expected, tuple):
        for part, value in zip(found, expected, strict=True):
            _assert_row(part, row, value)
    else:
        assert np.array_equal(np.asarray(found[row]), expected)


def test_vizdoom_writes_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with make_vector_env("vizdoom::VizdoomBasic-v1", num_envs=2) as env:
        env.reset(seed=1)
        env.step(env.action_space.sample())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_game_of_a_console_in_each_process():
    found = names("retro")
    assert "Airstriker-Genesis-v0" in found  # its ROM is free, and part of the package
    make = env_fn("Airstriker-Genesis-v0", library="retro", max_episode_steps=30)
    with VectorEnv([make] * 2, backend="processes", num_workers=2, autoreset_mode="same_step") as env:
        obs, _ = env.reset(seed=1)
        assert (obs.shape, obs.dtype) == ((2, 224, 320, 3), np.uint8)
        env.action_space.seed(0)
        ends = sum(env.step(env.action_space.sample())[3].sum() for _ in range(35))
    assert ends == 2
    with pytest.raises(ValueError, match="environment of retro, got 'SonicTheHedgehog-Genesis-v0'"):
        env_fn("SonicTheHedgehog-Genesis-v0", library="retro")


def test_environments_on_threads_have_states_of_the_global_generator():
    make = env_fn("pointmaze-medium-v0", library="ogbench")
    with VectorEnv([make] * 4) as here, VectorEnv([make] * 4, backend="threads", num_workers=4) as threads:
        for seed in (1, None, None, None, None):
            expected, found = (env.reset(seed=seed)[0] for env in (here, threads))
            assert np.array_equal(expected, found)


def test_frames_of_minihack_do_not_change_its_observations():
    name = EXAMPLES["minihack"]
    plain, rendered = (env_fn(name, library="minihack", render_mode=mode)() for mode in (None, "rgb_array"))
    assert plain.observation_space == rendered.observation_space
    found, expected = (env.reset(seed=1)[0] for env in (rendered, plain))
    assert all(np.array_equal(found[key], value) for key, value in expected.items())
    assert rendered.render().shape[2] == 3


def test_libraries_without_a_registry_do_not_run_on_another_interpreter():
    with pytest.raises(ValueError, match=r"no python=... for metaworld::, which is in no registry"):
        env_fn("reach-v3", library="metaworld", python=sys.executable)
    game = env_fn("Airstriker-Genesis-v0", library="retro")()
    with pytest.raises(RuntimeError, match=r"backend=.processes. and num_workers=num_envs"):
        env_fn("Airstriker-Genesis-v0", library="retro")()
    game.close()
