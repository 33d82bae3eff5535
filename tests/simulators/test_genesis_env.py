"""Scenes of Genesis over TensorDicts, on the real library."""

import re
from pathlib import Path

import pytest
import torch

from vecrl.envs import GenesisEnv, GenesisWrapper, check_env_specs
from vecrl.errors import SpaceError
from vecrl.simulators.genesis import genesis_library

pytestmark = [pytest.mark.genesis, pytest.mark.timeout(600)]  # the first scene of a process compiles for minutes
ARM = "xml/franka_emika_panda/panda.xml"


def make_scene(num_envs, *morphs, build=True):
    gs = genesis_library()
    scene = gs.Scene(show_viewer=False, rigid_options=gs.options.RigidOptions(enable_collision=False))
    scene.add_entity(gs.morphs.Plane())
    for morph in morphs:
        scene.add_entity(morph)
    if build:
        scene.build(n_envs=num_envs)
    return scene


@pytest.fixture(scope="module")
def arms():
    """A scene of three rows with an arm."""
    return make_scene(3, genesis_library().morphs.MJCF(file=ARM))


def test_a_scene_is_an_environment(arms):
    """Entries are named like TorchRL's; each row has a time limit of its own."""
    env = GenesisWrapper(arms, max_steps=3, frame_skip=2)
    assert (env.batch_size, env.device, env.lib) == ((3,), torch.device("cpu"), genesis_library())
    check_env_specs(env)
    name = arms.entities[1].name
    assert set(env.observation_spec.keys()) == {f"{name}_qpos", f"{name}_qvel"}
    assert env.action_spec.shape == (3, 9)
    step = env.step(env.rand_action(env.reset()))
    root = env.step_mdp(step)
    root["_reset"] = torch.tensor([[True], [False], [False]])
    root = env.reset(root)
    start = env.reset().get(f"{name}_qpos")[0]
    assert root[f"{name}_qpos"][0].equal(start)
    assert root[f"{name}_qpos"][1].equal(step["next", f"{name}_qpos"][1])
    assert step["next", f"{name}_qvel"][1].abs().max() > 0


def test_rows_that_are_done_are_reset(arms):
    env = GenesisWrapper(arms, max_steps=3)
    root = env.reset()
    _, root = env.step_and_maybe_reset(root.set("action", torch.zeros(3, 9)))
    root = env.reset(root.set("_reset", torch.tensor([[False], [True], [False]])))
    flags = []
    for _ in range(3):
        step, root = env.step_and_maybe_reset(root.set("action", torch.zeros(3, 9)))
        flags.append(step["next", "truncated"].flatten().tolist())
    assert flags == [[False] * 3, [True, False, True], [False, True, False]]
    assert not step["next", "terminated"].any()
    mask = torch.tensor([True, False, True])
    with pytest.raises(SpaceError, match="excludes only rows that are done"):
        env.step(root.set("action", torch.zeros(3, 9)).set("_step", mask))


def test_a_subclass_is_a_task(arms):
    class Raise(GenesisWrapper):
        def __init__(self, scene, height):
            self._arm, self._height = scene.entities[1], height
            super().__init__(scene, frame_skip=2)

        def _make_obs(self):
            return self._arm.get_link("hand").get_pos()

        def _compute_reward(self, action):
            return -(self._make_obs()[:, 2] - self._height).abs()

        def _compute_done(self):
            return self._current_step >= 2

    env = Raise(arms, 0.5)
    env.set_seed(0)
    torch.manual_seed(0)
    rollout = env.rollout(4)
    assert rollout["next", "truncated"][0].flatten().tolist() == [False, True]
    height = rollout["next", "observation"][..., 2]
    assert rollout.shape == (3, 2)
    assert (rollout["next", "reward"].squeeze(-1) <= 0).all()
    # the reward of both steps of the scene, of which the observation shows the second
    assert (rollout["next", "reward"].squeeze(-1).abs() >= (height - 0.5).abs() - 1e-6).all()
    with pytest.raises(SpaceError, match=r"Expected shape \(3, 9\) at 'action', got \(3, 2\)"):
        env.step(env.reset().set("action", torch.zeros(3, 2)))


def test_environments_by_name():
    env = GenesisEnv("franka_reach", max_steps=2, from_pixels=True, pixels_res=(24, 32))
    assert GenesisEnv.available_envs == ["franka_reach", "franka_grab"]
    rollout = env.rollout(4)
    assert rollout["next", "pixels"].shape == (2, 24, 32, 3)
    assert rollout["pixels"].dtype == torch.uint8
    assert rollout["next", "panda_qpos"].shape == (2, 9)
    assert rollout["next", "done"].flatten().tolist() == [False, True]
    assert env.render().std() > 1
    with pytest.raises(ValueError, match="one of 'franka_reach', 'franka_grab', got 'franka'"):
        GenesisEnv("franka")
    with pytest.raises(ValueError, match=r"Use ParallelEnv\(2, lambda: GenesisEnv\('franka_reach'\)\)"):
        GenesisEnv("franka_reach", num_workers=2)


def test_wrong_scenes(arms):
    with pytest.raises(TypeError, match=r"Expected a genesis\.Scene, got None"):
        GenesisWrapper()
    with pytest.raises(SpaceError, match=r"Call scene\.build"):
        GenesisWrapper(make_scene(1, build=False))
    with pytest.raises(SpaceError, match=r"the batch size \(3,\) of the scene, got \(2,\)"):
        GenesisWrapper(arms, batch_size=[2])
    with pytest.raises(SpaceError, match="a scene with a camera, got none"):
        GenesisWrapper(arms, from_pixels=True)
    with pytest.raises(SpaceError, match="a scene with joints, got none"):
        GenesisWrapper(make_scene(0, genesis_library().morphs.Sphere(radius=0.1, fixed=True)))


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"x": [1.0]}, r"tensors of shape \(3, \.\.\.\), got \[1\.0\] at 'x'"),
        (torch.zeros(2), r"tensors of shape \(3, \.\.\.\), got \(2,\) at 'observation'"),
        ({"done": torch.zeros(3)}, r"other keys of observations than \['done'\]"),
    ],
)
def test_wrong_observations_of_a_subclass(arms, obs, message):
    task = type("Task", (GenesisWrapper,), {"_make_obs": lambda self: obs})
    with pytest.raises(SpaceError, match=message):
        task(arms)


def test_keys_of_observations_do_not_change(arms):
    class Growing(GenesisWrapper):
        def _make_obs(self):
            return {f"step_{int(self._current_step[0])}": torch.zeros(3)}

    with pytest.raises(SpaceError, match=r"the keys \['step_0'\] of observations, as in the first reset"):
        Growing(arms).rollout(2)


def test_wrong_batch_sizes():
    for size in ([-1], ["a"], [0], [2, 3]):
        with pytest.raises(SpaceError, match="batch"):
            GenesisEnv("franka_reach", batch_size=size)
    with pytest.raises(TypeError, match=r"Expected batch_size=\[2\], got num_envs"):
        GenesisEnv("franka_reach", num_envs=2)


def test_blocks_of_the_docs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text()
    blocks = re.findall(r"```python {\.genesis}\n(.*?)```", page, re.DOTALL)
    for block in blocks:
        exec(compile(block, "simulators.md, Genesis", "exec"), {"__name__": "block"})
    printed = capsys.readouterr().out.split("\n")
    for result in re.findall(r"print\(.*\)  # (.*)", "\n".join(blocks)):
        assert result in printed
    assert len(blocks) == 2
