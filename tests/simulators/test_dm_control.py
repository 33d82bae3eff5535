"""dm_control's suite and other environments of dm_env, in all dialects."""

import os
import sys

import dm_env
import numpy as np
import pytest
import torch
from gymnasium import spaces

from vecrl.envs import DMControlEnv, DMControlWrapper, check_env_specs
from vecrl.errors import SpaceError, VersionError
from vecrl.simulators import dm_control as adapter
from vecrl.simulators.availability import available
from vecrl.simulators.dm_control import DmEnvAdapter, env_fn, names
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.snapshot import capture, restore
from vecrl.testing import EnvConformance, SimulatorConformance
from vecrl.vector import VectorEnv

os.environ.setdefault("MUJOCO_GL", "egl")
pytestmark = pytest.mark.simulators


class Walk(dm_env.Environment):
    """A random walk that terminates (discount 0) below -1 and is truncated above 1, with specs of every kind."""

    def __init__(self):
        self._rng = np.random.default_rng()

    def reset(self):
        self.x = self._rng.uniform(-0.5, 0.5)
        return dm_env.restart(self._obs())

    def step(self, action):
        self.x += float(action["move"]) - 1
        if self.x < -1:
            return dm_env.termination(1.5, self._obs())
        return (dm_env.truncation if self.x > 1 else dm_env.transition)(0.5, self._obs())

    def _obs(self):
        return {"parts": [np.float32(self.x), np.array([3], np.int16)], "flag": np.bool_(self.x > 0), "text": "left"}

    def observation_spec(self):
        parts = [dm_env.specs.BoundedArray((), np.float32, -9, 9), dm_env.specs.Array((1,), np.int16)]
        text = dm_env.specs.StringArray(())
        return {"parts": parts, "flag": dm_env.specs.BoundedArray((), bool, False, True), "text": text}

    def action_spec(self):
        return {"move": dm_env.specs.DiscreteArray(3)}


class TestCartpole(SimulatorConformance):
    def make(self, num_envs):
        return GymnasiumSimulator([env_fn("cartpole-swingup", time_limit=0.1)] * num_envs)


class TestRandomModel(SimulatorConformance):
    """The masses and springs of `lqr` are drawn when it is loaded."""

    num_steps = 5

    def make(self, num_envs):
        return GymnasiumSimulator([env_fn("lqr-lqr_2_1")] * num_envs)

    def actions(self, pool, step):
        return [np.array([np.sin(step + env_id)]) for env_id in range(pool.num_envs)]


class TestEnv(EnvConformance):
    num_steps = 12

    def make(self):
        return DMControlEnv("finger", "turn_easy", time_limit=0.1)


def test_every_task_is_made_reset_and_stepped():
    for name in names():
        env = env_fn(name)()
        assert env.observation_space.contains(env.reset(seed=1)[0]), name
        obs, reward, terminated, truncated, info = env.step(np.zeros(env.action_space.shape))
        assert env.observation_space.contains(obs), name
        assert (np.isfinite(reward), terminated, truncated, info) == (True, False, False, {}), name
        env.close()


def test_the_suite_has_51_tasks():
    assert len(available("dmc").names) == 51
    with pytest.raises(ValueError, match=r"got 'cheetah-fly'\. Did you mean cheetah-run"):
        env_fn("cheetah-fly")


def test_observations_keep_their_shapes_and_dtypes():
    space = env_fn("humanoid-walk")().observation_space
    assert list(space) == ["joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity", "velocity"]
    assert {part.dtype for part in space.values()} == {np.dtype(np.float64)}
    assert (space["head_height"].shape, space["velocity"].shape) == ((), (27,))


def test_a_seed_gives_the_first_episode_of_the_suite():
    from dm_control import suite

    for domain, task in (("cheetah", "run"), ("lqr", "lqr_2_1")):
        expected = suite.load(domain, task, task_kwargs={"random": 7}).reset().observation
        env = env_fn(f"{domain}-{task}")()
        env.reset()
        obs, _ = env.reset(seed=7)
        assert obs.keys() == expected.keys()
        assert all(np.array_equal(obs[key], expected[key]) for key in obs)


def test_the_time_limit_truncates_and_a_discount_of_zero_terminates():
    env = env_fn("cartpole-swingup", time_limit=0.03)()
    env.reset()
    ends = [env.step(np.zeros(1))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env = DmEnvAdapter(Walk())
    for action, expected in ((0, (1.5, True, False)), (2, (0.5, False, True))):
        env.reset(seed=0)
        results = [env.step({"move": action})[1:4] for _ in range(2)]
        assert next(result for result in results if any(result[1:])) == expected


def test_an_environment_of_dm_env_with_specs_of_every_kind():
    env = DmEnvAdapter(Walk())
    assert env.action_space == spaces.Dict(move=spaces.Discrete(3, dtype=np.int32))
    parts = spaces.Tuple([spaces.Box(-9, 9, (), np.float32), spaces.Box(-32768, 32767, (1,), np.int16)])
    assert env.observation_space["parts"] == parts
    assert env.observation_space["flag"].dtype == bool
    first, again = (env.reset(seed=5)[0] for _ in range(2))
    assert env.observation_space.contains(first)
    assert first == again != env.reset(seed=6)[0]
    with pytest.raises(SpaceError, match="no reset options"):
        env.reset(options={"x": 1})
    with pytest.raises(SpaceError, match="with a shape and a dtype, got 3"):
        adapter._space(3)


@pytest.mark.parametrize("name", ["walker-run", "quadruped-escape"])  # the second one draws its terrain
def test_states_restore_the_physics_in_another_environment(name):
    env, other = env_fn(name)(), env_fn(name)()
    env.reset(seed=3)
    other.reset(seed=4)
    actions = np.random.default_rng(0).uniform(-1, 1, (10, *env.action_space.shape))
    for action in actions[:3]:
        env.step(action)
    state = capture(env)
    futures = []
    for each in (env, other):
        restore(each, state)
        futures.append([each.step(action)[0] for action in actions] + [each.reset()[0]])
    for first, second in zip(*futures, strict=True):
        assert all(np.array_equal(first[key], second[key]) for key in first)


def test_attributes_of_physics_are_part_of_the_state():
    env = env_fn("pendulum-swingup")()
    env.reset()
    env.physics.friction = np.arange(3)
    state = capture(env)
    env.physics.friction = None
    restore(env, state)
    assert env.physics.friction.tolist() == [0, 1, 2]


def test_pixels_in_worker_processes():
    make = env_fn("cartpole-balance", from_pixels=True, render_kwargs={"height": 24, "width": 32, "camera_id": 0})
    with VectorEnv([make] * 2, backend="processes", num_workers=2) as env:
        obs, _ = env.reset(seed=0)
        assert (obs["pixels"].shape, obs["pixels"].dtype, list(obs)) == ((2, 24, 32, 3), np.uint8, ["pixels"])
        assert obs["pixels"].std() > 0
        assert not np.array_equal(obs["pixels"][0], obs["pixels"][1])
    rendered = env_fn("cartpole-balance", render_mode="rgb_array")()
    rendered.reset()
    assert rendered.render().shape == (240, 320, 3)
    assert env_fn("cartpole-balance")().render() is None
    with pytest.raises(ValueError, match="'rgb_array', got 'human'"):
        env_fn("cartpole-balance", render_mode="human")()


def test_rows_of_several_environments():
    with VectorEnv([env_fn("cartpole-swingup")] * 2) as env:
        obs, _ = env.reset(seed=1)
        assert (obs["position"].shape, obs["position"].dtype) == ((2, 3), np.float64)
        assert env.step(env.action_space.sample())[1].shape == (2,)


def test_entries_of_environments_over_tensordicts():
    env = DMControlEnv("humanoid", "walk")
    check_env_specs(env)
    shapes = {"joint_angles": 21, "head_height": 1, "extremities": 12, "torso_vertical": 3, "com_velocity": 3}
    shapes["velocity"] = 27
    assert {key: tuple(spec.shape) for key, spec in env.observation_spec.items()} == {
        k: (n,) for k, n in shapes.items()
    }
    assert {spec.dtype for spec in env.observation_spec.values()} == {torch.float64}
    assert (env.action_spec.shape, env.action_spec.dtype) == ((21,), torch.float64)
    assert (env.reward_spec.shape, env.reward_spec.dtype) == ((1,), torch.float64)
    assert {*env.full_done_spec.keys()} == {"done", "terminated", "truncated"}
    assert repr(env).startswith("DMControlEnv(env=humanoid, task=walk, batch_size=()")
    assert env.physics.center_of_mass_position().shape == (3,)
    assert ("humanoid", ["stand", "walk", "run", "run_pure_state"]) in DMControlEnv.available_envs
    assert sum(len(tasks) for _, tasks in DMControlEnv.available_envs) == 51
    with pytest.raises(RuntimeError, match="got 'cheetah-fly'"):
        DMControlEnv("cheetah", "fly")


def test_frames_are_skipped_and_the_time_limit_truncates():
    rollout = DMControlEnv("cheetah", "run", frame_skip=4, time_limit=1.0).rollout(100)
    assert rollout.shape == (25,)
    last = rollout[-1]["next"]
    assert (last["done"].item(), last["terminated"].item(), last["truncated"].item()) == (True, False, True)


def test_pixels_over_tensordicts():
    size = {"height": 20, "width": 30}
    env = DMControlEnv("cheetah", "run", from_pixels=True, render_kwargs=size, camera_id=1)
    assert {*env.observation_spec.keys()} == {"position", "velocity", "pixels"}
    other_camera = DMControlEnv("cheetah", "run", from_pixels=True, pixels_only=True, render_kwargs=size)
    check_env_specs(other_camera)
    assert list(other_camera.observation_spec.keys()) == ["pixels"]
    for each in (env, other_camera):
        each.set_seed(0)
    first, second = (each.reset()["pixels"] for each in (env, other_camera))
    assert (first.shape, first.dtype) == ((20, 30, 3), torch.uint8)
    assert not torch.equal(first, second)
    rows = DMControlEnv("cheetah", "run", num_envs=2, from_pixels=True, render_kwargs=size)
    assert rows.reset()["pixels"].shape == (2, 20, 30, 3)


def test_several_environments_have_one_batch_dimension():
    env = DMControlEnv("fish", "swim", num_envs=2)
    check_env_specs(env)
    assert env.rollout(3)["next", "upright"].shape == (2, 3, 1)
    assert env.reward_spec.dtype == torch.float64


def test_wrapped_environments():
    from dm_control import suite

    env = DMControlWrapper(suite.load("cheetah", "run", task_kwargs={"time_limit": 0.1}), frame_skip=2)
    assert env.rollout(50).shape == (5,)
    walk = DMControlWrapper(Walk())
    walk.set_seed(0)
    rollout = walk.rollout(20)
    assert rollout["next", "parts", "0"].shape == (len(rollout), 1)
    assert rollout["next", "reward"].dtype == torch.float64
    for wrong in (None, 3, Walk):
        with pytest.raises(TypeError, match="Expected an environment of dm_control or dm_env"):
            DMControlWrapper(wrong)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(VersionError, match=r"vecrl\[dmc\]"):
        DMControlEnv("cheetah", "run")
    assert DMControlEnv.available_envs == []
    assert available("dmc").install == 'pip install "vecrl[dmc]"'
