"""Isaac Gym and Isaac Lab, with objects that have the documented methods of their tasks."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from gymnasium.spaces import Dict, Discrete, MultiDiscrete
from tests.fixtures.isaac_tasks import DirectLabEnv, GymTask, LabEnv

from vecrl.envs import IsaacGymEnv, IsaacGymWrapper, IsaacLabWrapper, RewardSum, TransformedEnv, check_env_specs
from vecrl.errors import SpaceError, StateError, VersionError
from vecrl.simulators import availability, isaac
from vecrl.simulators.isaac import IsaacGymSimulator
from vecrl.vector import make_vector_env


def module(name, **attributes):
    found = ModuleType(name)
    found.__dict__.update(attributes)
    return found


@pytest.fixture
def isaacgym(monkeypatch):
    made = []

    def make(task, **options):
        made.append((task, options))
        return GymTask(options["num_envs"])

    for found in (
        module("isaacgym"),
        module("isaacgymenvs", make=make),
        module("isaacgymenvs.tasks", isaacgym_task_map={"Ant": GymTask, "Cartpole": GymTask}),
    ):
        monkeypatch.setitem(sys.modules, found.__name__, found)
    return made


@pytest.fixture(params=["gym", "lab"])
def env(request):
    return IsaacGymWrapper(GymTask()) if request.param == "gym" else IsaacLabWrapper(LabEnv())


def steps_of(td):
    return td["obs"][..., 1] if "obs" in td.keys() else td["policy"][..., 1]  # noqa: SIM118


# -- rows that reset themselves


def test_specs_agree_with_data(env):
    check_env_specs(env)


def test_ended_rows_continue_with_their_next_episodes(env):
    rollout = env.rollout(7, break_when_any_done=False)
    assert rollout["next", "done"][..., 0].int().tolist() == [
        [0, 0, 1, 0, 0, 1, 0],
        [0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
    ]
    assert steps_of(rollout).tolist() == [[0, 1, 2, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 0, 1]]
    final = steps_of(rollout["next"])
    assert torch.equal(final.isnan(), rollout["next", "done"][..., 0])  # final observations are not returned
    assert rollout["next", "truncated"][0, 2].item()
    assert rollout["next", "terminated"][1, 3].item()
    assert not (rollout["next", "terminated"] & rollout["next", "truncated"]).any()


def test_actions_are_tensors_of_all_rows(env):
    td = env.reset()
    td["action"] = torch.tensor([[0.5, 0.0], [0.25, 0.0], [1.0, 0.0]])
    key = "obs" if "obs" in td.keys() else "policy"  # noqa: SIM118
    following = env.step(td)["next"]
    assert torch.allclose(following[key][:, 0], td[key][:, 0] + td["action"][:, 0])
    assert torch.allclose(following["reward"][:, 0], following[key][:, 0])


def test_seeds_set_the_generator_of_all_rows(env):
    key = "obs" if "obs" in env.observation_spec.keys() else "policy"  # noqa: SIM118
    starts = [env.set_seed(seed) and env.reset()[key][:, 0].clone() for seed in (3, 3, 4)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


@pytest.mark.parametrize("make", [lambda: IsaacGymWrapper(GymTask()), lambda: IsaacLabWrapper(DirectLabEnv())])
def test_other_rows_cannot_be_reset_alone(make):
    env = make()
    td = env.rand_step(env.reset())["next"]
    td["_reset"] = torch.tensor([[True], [False], [False]])
    with pytest.raises(SpaceError, match="Expected a mask of rows that ended in the last step"):
        env.reset(td)


def test_rows_of_manager_based_environments_can_be_reset_alone():
    env = IsaacLabWrapper(LabEnv())
    before = env.rand_step(env.reset())["next"]
    td = before.clone().set("_reset", torch.tensor([[True], [False], [True]]))
    after = env.reset(td)
    assert steps_of(after).tolist() == [0, 1, 0]
    assert torch.equal(after["policy"][1], before["policy"][1])
    assert steps_of(env.rand_step(after)["next"]).tolist() == [1, 2, 1]


def test_states_are_refused():
    simulator = IsaacGymSimulator(GymTask())
    with pytest.raises(StateError, match="Isaac's tasks"):
        simulator.get_state()
    with pytest.raises(SpaceError, match=r"no reset options.*\['x'\]"):
        simulator.reset(options={"x": 1})


def test_close_closes_the_task():
    task, lab_env = GymTask(), LabEnv()
    IsaacGymWrapper(task).close()
    IsaacLabWrapper(lab_env).close()
    assert task.closed
    assert lab_env.closed


class TypedTask(GymTask):
    """A task with an observation of each dtype, which is 1 more than the step."""

    DTYPES = torch.float32, torch.int64, torch.uint8, torch.bool

    def reset(self):
        return {str(dtype): (self.t[:, None] + 1).to(dtype) for dtype in self.DTYPES}

    def step(self, actions):
        _, *rest = super().step(actions)
        return self.reset(), *rest


def test_observations_of_all_dtypes():
    """Final observations, which the tasks do not return, are NaN in floats, 0 in integers and False in bools."""
    env = IsaacGymWrapper(TypedTask())
    check_env_specs(env)
    following = env.rollout(3, break_when_any_done=False)["next"]
    for dtype in TypedTask.DTYPES:
        fill = torch.nan if dtype.is_floating_point else 0
        expected = torch.stack([torch.tensor(value).to(dtype) for value in (2, 3, fill)])
        torch.testing.assert_close(following[str(dtype)][0, :, 0], expected, equal_nan=True)


# -- Isaac Gym


def test_entries_of_isaac_gym_have_the_layout_of_torchrl():
    env = IsaacGymWrapper(GymTask(4))
    td = env.rand_step(env.reset())
    assert env.batch_size == (4,)
    assert {key: (tuple(value.shape), value.dtype) for key, value in td["next"].items()} == {
        "obs": ((4, 3), torch.float32),
        "reward": ((4, 1), torch.float32),
        **dict.fromkeys(("done", "terminated", "truncated"), ((4, 1), torch.bool)),  # TorchRL: (4,)
    }
    assert td["action"].shape == (4, 2)


def test_tasks_are_made_by_name(isaacgym):
    env = IsaacGymEnv("Ant", num_envs=5, device="cpu", headless=False)
    assert env.rollout(2).shape == (5, 2)
    assert isaacgym == [("Ant", {"num_envs": 5, "seed": 0, "sim_device": "cpu", "rl_device": "cpu", "headless": False})]
    assert IsaacGymEnv.available_envs == ["Ant", "Cartpole"]
    assert IsaacGymEnv(env="Cartpole", num_envs=2, device="cpu").batch_size == (2,)
    with pytest.raises(TypeError, match="Expected task or env, the name of a task, got task=None and env=None"):
        IsaacGymEnv(num_envs=2, device="cpu")


def test_prefix_makes_vector_environments(isaacgym):
    env = make_vector_env("isaacgym::Ant", num_envs=3, device="cpu")
    obs, _ = env.reset(seed=1)
    assert obs["obs"].shape == (3, 3)
    for _ in range(3):
        obs, reward, terminated, truncated, _ = env.step(torch.zeros(3, 2))
    assert truncated.tolist() == [True, False, False]
    assert not terminated.any()
    assert obs["obs"][:, 1].tolist() == [0, 3, 3]
    assert reward.shape == (3,)


# -- Isaac Lab


@pytest.mark.parametrize(
    ("space", "shape"),
    [(Discrete(3), (3, 1)), (MultiDiscrete([3, 2]), (3, 2)), (Dict(move=Discrete(2)), (3, 1))],
)
def test_spaces_of_actions(space, shape):
    """Isaac Lab's tasks read a Discrete action as a column of int64."""
    lab_env = LabEnv(action_space=space)
    env = IsaacLabWrapper(lab_env, categorical_action_encoding=True)
    check_env_specs(env)
    env.rollout(2, break_when_any_done=False)
    action = lab_env.actions[-1]
    action = action["move"] if isinstance(action, dict) else action
    assert (tuple(action.shape), action.dtype) == (shape, torch.int64)


def test_discrete_actions_are_one_hot_rows_by_default():
    lab_env = LabEnv(action_space=Discrete(3))
    env = IsaacLabWrapper(lab_env)
    td = env.reset().set("action", torch.eye(3, dtype=torch.int64)[[2, 0, 1]])
    env.step(td)
    assert lab_env.actions[-1].tolist() == [[2], [0], [1]]


def test_applications_start_cameras_at_their_start_only(monkeypatch):
    monkeypatch.setitem(isaac._app, "enable_cameras", False)
    isaac.start_app("cpu")
    with pytest.raises(ValueError, match="Expected enable_cameras=True for the first environment of Isaac Lab"):
        isaac.start_app("cpu", enable_cameras=True)


def test_applications_of_programs_are_used(monkeypatch):
    """Isaac Sim's module is imported when a program has started its application."""
    monkeypatch.setitem(sys.modules, "omni.kit.app", ModuleType("omni.kit.app"))
    isaac.start_app("cpu", enable_cameras=True)
    assert not isaac._app


def test_cameras_add_frames():
    env = IsaacLabWrapper(LabEnv(), from_tiled_camera=True, pixels_key=("camera", "rgb"))
    check_env_specs(env)
    rollout = env.rollout(4, break_when_any_done=False)
    frames = rollout["camera", "rgb"]
    assert (tuple(frames.shape), frames.dtype) == ((3, 4, 4, 5, 3), torch.uint8)
    assert frames[:, :, 0, 0, 0].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 2, 3]]
    with pytest.raises(SpaceError, match="Expected a camera named 'front' in the scene, got tiled_camera"):
        IsaacLabWrapper(LabEnv(), from_tiled_camera=True, tiled_camera_name="front")


def test_frames_of_floats():
    floats = IsaacLabWrapper(LabEnv(color_dtype=torch.float32), from_tiled_camera=True)
    frames = floats.rollout(3, break_when_any_done=False)["pixels"]
    assert (frames[1, :, 0, 0, 0].tolist(), frames.dtype) == ([0, 1, 2], torch.uint8)
    options = {"from_tiled_camera": True, "tiled_camera_data_type": "depth"}
    depth = IsaacLabWrapper(LabEnv(), pixels_dtype=None, pixels_channels=None, **options).reset()["pixels"]
    assert (tuple(depth.shape), depth.dtype) == ((3, 4, 5, 1), torch.float32)
    with pytest.raises(SpaceError, match="Expected pixels_dtype=None or a float dtype for 'depth'"):
        IsaacLabWrapper(LabEnv(), **options)


@pytest.mark.parametrize("is_relative", [False, True])
def test_episodes_start_in_a_state_of_the_scene(is_relative):
    lab_env = LabEnv()
    env = IsaacLabWrapper(lab_env)
    env.rollout(2, break_when_any_done=False)
    state = lab_env.scene.get_state(is_relative=True) if is_relative else env.get_state()
    places = lab_env.rows.x.clone()
    rest = env.rollout(2, break_when_any_done=False)
    first = env.reset_to_state(state, is_relative=is_relative)
    assert torch.allclose(first["policy"][:, 0], places)
    assert steps_of(first).tolist() == [0, 0, 0]
    assert steps_of(env.rand_step(first)["next"]).tolist() == [1, 1, 1]
    td = rest[:, -1]["next"].clone().set("_reset", torch.tensor([[False], [True], [False]]))
    some = env.reset_to_state(state, td, is_relative=is_relative)
    assert torch.allclose(some["policy"][1, 0], places[1])
    assert not torch.allclose(some["policy"][0, 0], places[0])


def test_states_of_scenes_are_not_states_of_environments():
    env = IsaacLabWrapper(LabEnv())
    with pytest.raises(StateError):
        TransformedEnv(env, RewardSum()).get_state()
    with pytest.raises(StateError, match="Expected an environment with reset_to, got DirectLabEnv"):
        IsaacLabWrapper(DirectLabEnv()).reset_to_state(env.get_state())


def test_objects_of_other_libraries_are_refused():
    with pytest.raises(TypeError, match="Expected an environment of Isaac Lab, got"):
        IsaacLabWrapper(SimpleNamespace(unwrapped=None))


# -- missing libraries


def test_missing_libraries_are_explained():
    with pytest.raises(VersionError, match=r"Isaac Gym .* needs Python 3.8"):
        IsaacGymEnv("Ant", num_envs=1, device="cpu")
    assert IsaacGymEnv.available_envs == []
    assert "https://developer.nvidia.com/isaac-gym" in (availability.available("isaacgym").missing or "")
    assert "https://isaac-sim.github.io/IsaacLab" in (availability.available("isaaclab").missing or "")
    with pytest.raises(ImportError, match="Isaac Lab is not installed"):
        make_vector_env("isaaclab::Isaac-Ant-v0", num_envs=1)
