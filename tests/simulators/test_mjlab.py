"""mjlab's tasks, on the real library and the CPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from vecrl.engine.simulator import BatchSimulator
from vecrl.envs import MJLabEnv, MJLabWrapper, check_env_specs
from vecrl.errors import SpaceError
from vecrl.simulators.mjlab import make_batch, make_env, mjlab_module, names
from vecrl.vector import make_vector_env

pytestmark = [pytest.mark.mjlab, pytest.mark.timeout(400)]  # the first task compiles for half a minute
TASK = "Mjlab-Cartpole-Balance"


def short_config(steps):
    """Returns the configuration of episodes of this length."""
    config = mjlab_module("mjlab.tasks.registry").load_env_cfg(TASK)
    config.episode_length_s = (steps - 0.5) * 0.05
    return config


def make_raw(num_envs, steps, **kwargs):
    return make_env(TASK, num_envs, cfg=short_config(steps), device="cpu", **kwargs)


def test_names_and_spaces():
    assert {TASK, "Mjlab-Velocity-Flat-Unitree-G1"} <= set(names())
    simulator = make_batch(TASK, 2, render_mode="rgb_array", device="cpu")
    assert isinstance(simulator, BatchSimulator)
    box = Box(-np.inf, np.inf, (5,), np.float32)
    assert simulator.observation_space == Dict(actor=box, critic=box)
    assert simulator.action_space == Box(-np.inf, np.inf, (1,), np.float32)
    assert simulator.metadata == {"render_modes": ["rgb_array"], "render_fps": 20.0}
    frame = simulator.render(1)
    assert (frame.shape, frame.dtype) == ((240, 320, 3), np.uint8)
    assert frame.std() > 1
    simulator.close()
    with pytest.raises(ValueError, match="a task of mjlab, got 'Cartpole'"):
        make_batch("Cartpole", 2)
    with pytest.raises(TypeError, match="a ManagerBasedRlEnv of mjlab, got None"):
        MJLabWrapper()


def test_three_hundred_steps_equal_those_of_the_library():
    """With episode ends, at which the library resets rows itself; vecrl returns true last observations beside that."""
    config = short_config(40)
    env = mjlab_module("mjlab.envs").ManagerBasedRlEnv(config, device="cpu")
    env.cfg.scene.num_envs = 2
    raw = make_raw(2, 40)
    raw.cfg.auto_reset = True
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(300, 2, 1, generator=generator) * 2 - 1
    expected = [raw.reset(seed=3)[0]["actor"].clone()]
    ends = []
    for action in actions:
        obs, reward, terminated, truncated, _ = raw.step(action)
        expected.append((obs["actor"].clone(), reward.clone(), (terminated | truncated).clone()))
    simulator = make_batch(TASK, 2, cfg=short_config(40), device="cpu")
    assert torch.equal(simulator.reset([3, None])["actor"], expected[0])
    for action, (obs, reward, ended) in zip(actions, expected[1:], strict=True):
        step = simulator.step(action)
        assert torch.equal(step.reward, reward)
        assert torch.equal(step.truncated | step.terminated, ended)
        found = step.next_obs["actor"]
        if ended.any():
            ends.append(found[ended])
            assert not torch.equal(found[ended], obs[ended])
            found = simulator.reset_where(ended)["actor"]
        assert torch.equal(found, obs)
    assert len(ends) == 7
    env.close()


def test_rows_are_reset_by_masks():
    simulator = make_batch(TASK, 3, cfg=short_config(4), device="cpu")
    simulator.reset([1, 2, 3])
    simulator.step(torch.ones(3, 1))
    step = simulator.step(torch.ones(3, 1))
    obs = simulator.reset_where(torch.tensor([False, True, False]))
    for name in ("actor", "critic"):
        assert torch.equal(obs[name][[0, 2]], step.next_obs[name][[0, 2]])
        assert not torch.equal(obs[name][1], step.next_obs[name][1])
    flags = [simulator.step(torch.ones(3, 1)).truncated.tolist() for _ in range(4)]
    # rows that ended begin new episodes in the next step, unless the caller resets them
    assert flags == [[False] * 3, [True, False, True], [False] * 3, [False, True, False]]


def test_vector_environments_and_limits():
    with make_vector_env(f"mjlab::{TASK}", num_envs=2, max_episode_steps=3, autoreset_mode="same_step") as env:
        env.reset(seed=[1, 2])
        for step in range(1, 7):
            *_, truncated, info = env.step(torch.zeros(2, 1))
            assert truncated.tolist() == [step % 3 == 0] * 2
            assert info["_final_obs"].tolist() == [step % 3 == 0] * 2


def test_entries_are_those_of_torchrl():
    env = MJLabEnv(TASK, num_envs=2, cfg=short_config(3), log_extras=True)
    assert (env.batch_size, env.device, env.lib) == ((2,), torch.device("cpu"), mjlab_module("mjlab"))
    assert TASK in env.available_envs
    check_env_specs(env)
    env.pop_logged_extras()
    rollout = env.rollout(5, break_when_any_done=False)
    assert set(rollout["next"].keys()) == {"actor", "critic", "reward", "done", "terminated", "truncated"}
    assert rollout["next", "truncated"][0].flatten().tolist() == [False, False, True, False, False]
    assert not torch.equal(rollout["next", "actor"][:, 2], rollout["actor"][:, 3])
    log = env.pop_logged_extras()
    assert log["Episode_Termination/time_out"] > 0
    assert env.pop_logged_extras() == {}
    pixels = MJLabWrapper(make_raw(1, 3, render_mode="rgb_array"), from_pixels=True, pixels_only=False).rollout(2)
    assert pixels["next", "pixels"].shape == (1, 2, 240, 320, 3)
    with pytest.raises(SpaceError, match="a batch size of 2 rows"):
        MJLabWrapper(make_raw(2, 3), batch_size=[3])
    with pytest.raises(SpaceError, match="the device 'cpu' of the environment, got 'cuda'"):
        MJLabWrapper(make_raw(1, 3), device="cuda")


def test_tables_of_mjlab_are_not_on_stdout():
    """So that the output of `--json` can be parsed."""
    command = [Path(sys.executable).with_name("vecrl"), "check", f"mjlab::{TASK}", "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(output)


def test_block_of_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text()
    (block,) = re.findall(r"```python {\.mjlab}\n(.*?)```", page, re.DOTALL)
    defined = {"__name__": "block"}
    exec(block, defined)
    assert defined["obs"]["actor"].shape == (4, 5)
    defined["env"].close()


def test_wrong_arguments():
    for options, error, message in (
        ({"batch_size": [0]}, ValueError, "Expected num_envs to be an int of 1 or more, got 0"),
        ({"device": "meta"}, ValueError, "a CPU or a CUDA device, got 'meta'"),
        ({"cfg": 3}, TypeError, "a ManagerBasedRlEnvCfg of mjlab, got 3"),
    ):
        with pytest.raises(error, match=message):
            MJLabEnv(TASK, **{"num_envs": None if "batch_size" in options else 2, **options})


def test_a_wrapped_environment_keeps_the_configuration_of_the_caller():
    env = make_env(TASK, 2, device="cpu")
    config = env.cfg
    config.auto_reset = True
    wrapped = MJLabWrapper(env)
    assert wrapped.rollout(3).shape == (2, 3)
    assert config.auto_reset
    assert wrapped.step_dt == env.step_dt
