"""RoboHive's package with a model of these tests, since RoboHive's own models are downloaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from vecrl.classic import GymEnv as ClassicEnv
from vecrl.envs import RoboHiveEnv, check_env_specs, make_env
from vecrl.errors import WorkerError
from vecrl.simulators import availability
from vecrl.simulators.gymnasium.libraries import PLUGINS, env_fn
from vecrl.vector import make_vector_env
from vecrl.venv import SubprocVectorEnv

pytestmark = [
    pytest.mark.simulators,
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning"),  # RoboHive's spaces
]

ARM = "ArmReach-v0"
REACH = "robohive.envs.arms.reach_base_v0:ReachBaseV0"
OPTIONS = {
    "model_path": str(Path(__file__).parent.parent / "fixtures/robohive_arm.xml"),
    "robot_site_name": "hand",
    "target_site_name": "target",
    "target_xyz_range": {"high": [0.3, 0.3, 0.3], "low": [-0.3, -0.3, 0.1]},
    "frame_skip": 5,
}
SMALL = {"height": 12, "width": 16}


@pytest.fixture(scope="module", autouse=True)
def arm() -> Iterator[None]:
    """Registers RoboHive's class of reaching tasks with an arm of two joints."""
    PLUGINS["robohive"].load()
    gymnasium.register(ARM, REACH, max_episode_steps=6, kwargs=OPTIONS)
    yield
    del gymnasium.registry[ARM]


def test_names_are_those_of_the_suites() -> None:
    names = availability.available("robohive").names
    assert names is not None
    assert set(names) == {*import_module("robohive").robohive_env_suite, ARM}
    assert "FrankaReachRandom_v2d-v0" in RoboHiveEnv.available_envs  # a variant that observes images


def test_episodes_are_those_of_robohive() -> None:
    """A seed determines goals too, as `seed` of the environment does, which RoboHive's `reset` ignores."""
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    own = gymnasium.make(ARM, disable_env_checker=True)
    own.unwrapped.seed(7)
    expected = [own.reset()[0], *(own.step(action)[0] for action in actions), own.reset()[0]]
    env = ClassicEnv(f"robohive::{ARM}")
    env.seed(7)
    got = [env.reset(), *(env.step(action)[0] for action in actions), env.reset()]
    assert np.array_equal(expected, got)
    assert not np.array_equal(got[0], got[-1])
    env.close()


def test_time_limits_and_specs() -> None:
    env = RoboHiveEnv(ARM)
    check_env_specs(env)
    rollout = env.rollout(9)
    assert rollout.shape == (6,)
    assert rollout["next", "truncated"][-1].item()
    assert env.env_name == ARM
    env.close()


def test_infos_without_a_value_are_skipped() -> None:
    env = RoboHiveEnv(ARM).auto_register_info_dict()  # the state has act=None, and the info has "done"
    check_env_specs(env)
    following = env.rollout(3)["next"]
    assert ("state", "act") not in following.keys(True)
    assert torch.equal(following["state", "qpos"], following["obs_dict", "qp_robot"])
    assert following["rwd_dense"].abs().min() > 0
    env.close()


def test_frames_of_cameras() -> None:
    env = RoboHiveEnv(ARM, from_pixels=True, pixels_only=False, **SMALL)
    check_env_specs(env)
    frames = env.rollout(3)["next", "pixels"]
    assert (tuple(frames.shape), frames.dtype) == ((3, 2, 12, 16, 3), torch.uint8)
    assert not torch.equal(frames[0], frames[2])  # the arm moves
    top = RoboHiveEnv(ARM, from_pixels=True, cameras=["top_cam"], num_envs=2, **SMALL)
    for each in (env, top):
        each.set_seed(3)
    assert torch.equal(env.reset()["pixels"][1], top.reset()["pixels"][0, 0])
    assert RoboHiveEnv.get_available_cams(ARM) == ["left_cam", "top_cam"]
    with pytest.raises(ValueError, match=r"Expected cameras of \['left_cam', 'top_cam'\], got \['front'\]\. Omit"):
        RoboHiveEnv(ARM, from_pixels=True, cameras=["front"])
    env.close()
    top.close()


def test_frames_in_other_dialects() -> None:
    with make_vector_env(f"robohive::{ARM}", num_envs=2, from_pixels=True, **SMALL) as env:
        assert env.reset(seed=1)[0]["pixels"].shape == (2, 2, 12, 16, 3)
    single = make_vector_env(f"robohive::{ARM}", render_mode="rgb_array", **SMALL)
    single.reset(seed=1)
    frame = single.render()
    assert (frame.shape, frame.dtype) == ((12, 16, 3), np.uint8)
    assert frame.max() > 0
    single.close()
    silent = ClassicEnv(f"robohive::{ARM}")
    silent.reset()
    assert silent.render() is None
    silent.close()


def test_seeds_in_other_dialects() -> None:
    with make_vector_env(f"robohive::{ARM}", num_envs=2) as env:
        obs = [env.reset(seed=seed)[0] for seed in (4, 4, 5)]
        assert torch.equal(obs[0], obs[1])
        assert not torch.equal(obs[0], obs[2])
        assert env.step(torch.zeros(2, 2))[1].shape == (2,)
    envs = make_env(f"robohive::{ARM}", num_envs=2)
    starts = [envs.set_seed(seed) and envs.reset()["observation"] for seed in (4, 4)]
    assert torch.equal(*starts)
    envs.close()


def test_workers_import_the_library() -> None:
    """Worker processes have RoboHive's ids, and not that of this test. Of RoboHive's ids, the models are absent."""
    with pytest.raises(WorkerError, match=r"Error opening file '.*simhive/scene_sim/topfloor_scene.xml'"):
        SubprocVectorEnv([env_fn("FrankaReachFixed-v0", library="robohive")])
