"""Isaac Gym and Isaac Lab, with objects that have the documented methods of their tasks."""

import sys
from types import ModuleType, SimpleNamespace

import gymnasium
import pytest
import torch
from tests.fixtures.isaac_tasks import GymTask, LabEnv

from vecrl.envs import IsaacGymEnv, IsaacGymWrapper, IsaacLabWrapper, check_env_specs
from vecrl.errors import SpaceError, StateError, VersionError
from vecrl.simulators import availability
from vecrl.simulators.isaac import IsaacGymTask, SelfResettingSimulator
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


@pytest.fixture
def isaaclab(monkeypatch):
    started = []
    app = module("isaaclab.app", AppLauncher=lambda headless: started.append(headless))
    utils = module("isaaclab_tasks.utils", parse_env_cfg=lambda name, device, num_envs: (name, device, num_envs))
    for found in (module("isaaclab"), app, module("isaaclab_tasks"), utils):
        monkeypatch.setitem(sys.modules, found.__name__, found)
    gymnasium.register("Isaac-Walk-v0", lambda cfg: LabEnv(cfg[2], cfg), disable_env_checker=True)
    yield started
    gymnasium.registry.pop("Isaac-Walk-v0")


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


def test_other_rows_cannot_be_reset_alone(env):
    td = env.rand_step(env.reset())["next"]
    td["_reset"] = torch.tensor([[True], [False], [False]])
    with pytest.raises(SpaceError, match="Expected a mask of rows that ended in the last step"):
        env.reset(td)


def test_states_are_refused():
    simulator = SelfResettingSimulator(IsaacGymTask(GymTask()))
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


def test_environments_of_isaac_lab_are_made_by_name(isaaclab):
    env = make_vector_env("isaaclab::Isaac-Walk-v0", num_envs=2, device="cpu")
    obs, _ = env.reset()
    assert obs["policy"].shape == (2, 3)
    assert obs["critic"]["steps"].shape == (2, 1)
    assert isaaclab == [True]
    assert availability.available("isaaclab").names == ("Isaac-Walk-v0",)


def test_cameras_add_frames():
    env = IsaacLabWrapper(LabEnv(), from_tiled_camera=True, pixels_key=("camera", "rgb"))
    check_env_specs(env)
    rollout = env.rollout(4, break_when_any_done=False)
    frames = rollout["camera", "rgb"]
    assert (tuple(frames.shape), frames.dtype) == ((3, 4, 4, 5, 3), torch.uint8)
    assert frames[:, :, 0, 0, 0].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 2, 3]]
    depth = IsaacLabWrapper(
        LabEnv(),
        from_tiled_camera=True,
        tiled_camera_data_type="depth",
        pixels_dtype=None,
        pixels_channels=None,
    ).reset()["pixels"]
    assert (tuple(depth.shape), depth.dtype) == ((3, 4, 5, 1), torch.float32)
    with pytest.raises(SpaceError, match="Expected a camera named 'front' in the scene, got tiled_camera"):
        IsaacLabWrapper(LabEnv(), from_tiled_camera=True, tiled_camera_name="front")


def test_objects_of_other_libraries_are_refused():
    with pytest.raises(TypeError, match="Expected an environment of Isaac Lab, got"):
        IsaacLabWrapper(SimpleNamespace(unwrapped=None))


# -- missing libraries


def test_missing_libraries_are_explained():
    with pytest.raises(VersionError, match=r"Isaac Gym is not installed"):
        IsaacGymEnv("Ant", num_envs=1, device="cpu")
    assert IsaacGymEnv.available_envs == []
    assert "https://developer.nvidia.com/isaac-gym" in (availability.available("isaacgym").missing or "")
    assert "https://isaac-sim.github.io/IsaacLab" in (availability.available("isaaclab").missing or "")
    with pytest.raises(ImportError, match="Isaac Lab is not installed"):
        make_vector_env("isaaclab::Isaac-Ant-v0", num_envs=1)
