"""`mujoco::` tasks equal gymnasium's environments to the bit: observations, rewards, infos, ends, resets, seeds."""

from inspect import signature
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from tests.simulators.mujoco.comparison import assert_equal_to_gymnasium, assert_same_bits, make_envs

from vecrl.simulators.mujoco import TASKS, make_batch, make_task

# Deprecated attributes in gymnasium's own files
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
SLOW = "Ant-v5", "Humanoid-v5", "HumanoidStandup-v5"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TASKS)
def test_steps_and_resets_are_those_of_gymnasium(name):
    """Odd batches, several threads, ends by the task and by its time limit, resets of some rows."""
    steps = 60 if name in SLOW else 250
    ends = assert_equal_to_gymnasium(name, 3, steps, num_threads=2, limit=45)
    assert ends >= 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "rows", "steps"), [("Hopper-v5", 5, 2000), ("InvertedDoublePendulum-v5", 5, 2000)])
def test_ten_thousand_steps_are_those_of_gymnasium(name, rows, steps):
    assert assert_equal_to_gymnasium(name, rows, steps, num_threads=2, scale=0.5) > 50


@pytest.mark.parametrize("num_envs", [1, 2, 7])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_every_number_of_threads_gives_the_bits_of_gymnasium(num_envs, num_threads):
    assert_equal_to_gymnasium("Walker2d-v5", num_envs, 25, num_threads=num_threads, limit=11)


def test_time_limits_are_those_of_gymnasium():
    for name in TASKS:
        sim = make_batch(name, 1)
        assert sim.max_episode_steps == gymnasium.spec(name).max_episode_steps, name
        sim.close()


ARGUMENTS = {
    "Ant-v5": {
        "frame_skip": 3,
        "forward_reward_weight": 0.7,
        "ctrl_cost_weight": 0.3,
        "contact_cost_weight": 0.01,
        "healthy_reward": 0.9,
        "main_body": "torso",
        "terminate_when_unhealthy": False,
        "healthy_z_range": (0.7, 0.8),
        "contact_force_range": (-0.5, 0.6),
        "reset_noise_scale": 0.2,
        "exclude_current_positions_from_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
    "HalfCheetah-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 0.7,
        "ctrl_cost_weight": 0.3,
        "reset_noise_scale": 0.3,
        "exclude_current_positions_from_observation": False,
    },
    "Hopper-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 0.7,
        "ctrl_cost_weight": 0.3,
        "healthy_reward": 0.9,
        "terminate_when_unhealthy": False,
        "healthy_state_range": (-3.0, 3.0),
        "healthy_z_range": (1.2, 1.3),
        "healthy_angle_range": (-0.1, 0.05),
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
    },
    "Humanoid-v5": {
        "xml_file": "humanoidstandup.xml",
        "frame_skip": 2,
        "forward_reward_weight": 0.7,
        "ctrl_cost_weight": 0.3,
        "contact_cost_weight": 1e-3,
        "contact_cost_range": (1.0, 3.0),
        "healthy_reward": 0.9,
        "terminate_when_unhealthy": False,
        "healthy_z_range": (0.1, 0.11),
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": True,
        "include_qfrc_actuator_in_observation": False,
        "include_cfrc_ext_in_observation": True,
    },
    "HumanoidStandup-v5": {
        "frame_skip": 2,
        "uph_cost_weight": 3,
        "ctrl_cost_weight": 0.3,
        "impact_cost_weight": 1e-3,
        "impact_cost_range": (1.0, 3.0),
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
        "include_cinert_in_observation": True,
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": True,
        "include_cfrc_ext_in_observation": False,
    },
    "InvertedDoublePendulum-v5": {"frame_skip": 3, "healthy_reward": 4.5, "reset_noise_scale": 0.2},
    "InvertedPendulum-v5": {"frame_skip": 3, "reset_noise_scale": 0.05},
    "Pusher-v5": {
        "frame_skip": 3,
        "reward_near_weight": 0.3,
        "reward_dist_weight": 0.7,
        "reward_control_weight": 0.4,
    },
    "Reacher-v5": {"frame_skip": 3, "reward_dist_weight": 0.7, "reward_control_weight": 0.3},
    "Swimmer-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 0.7,
        "ctrl_cost_weight": 0.3,
        "reset_noise_scale": 0.3,
        "exclude_current_positions_from_observation": False,
    },
    "Walker2d-v5": {
        "frame_skip": 2,
        "forward_reward_weight": 0.7,
        "ctrl_cost_weight": 0.3,
        "healthy_reward": 0.9,
        "terminate_when_unhealthy": False,
        "healthy_z_range": (1.2, 1.26),
        "healthy_angle_range": (-0.1, 0.05),
        "reset_noise_scale": 0.02,
        "exclude_current_positions_from_observation": False,
    },
}
RENDERED = {"default_camera_config"}


@pytest.mark.parametrize("name", TASKS)
def test_arguments_have_the_effects_of_gymnasium(name):
    """All arguments of the environments; most have another value than the default."""
    assert {*TASKS[name].defaults} == {*ARGUMENTS[name], "xml_file"} | RENDERED
    assert_equal_to_gymnasium(name, 3, 40, limit=30, **ARGUMENTS[name])


@pytest.mark.parametrize("name", TASKS)
def test_defaults_are_those_of_gymnasium(name):
    env = gymnasium.make(name)
    parameters = signature(type(env.unwrapped).__init__).parameters
    env.close()
    expected = {key: value.default for key, value in parameters.items() if key not in ("self", "kwargs")}
    assert {*TASKS[name].defaults} == {*expected}
    for key, value in expected.items():
        found = TASKS[name].defaults[key]
        if isinstance(value, dict):
            assert {*found} == {*value}
            for part, number in value.items():
                assert_same_bits(found[part], number, part)
        else:
            assert found == value


def test_an_own_model_file_gives_the_bits_of_gymnasium(tmp_path):
    model = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "hopper.xml"
    text, path = model.read_text(), tmp_path / "floating.xml"
    assert "<worldbody>" in text
    path.write_text(text.replace("<worldbody>", '<option gravity="0 0 -3"/><worldbody>'))
    assert_equal_to_gymnasium("Hopper-v5", 2, 30, xml_file=str(path))
    with pytest.raises(OSError, match="does not exist"):
        make_task("Hopper-v5", xml_file="/missing.xml").load_model()


def test_each_row_has_the_stream_of_its_seed():
    """A row with a seed draws as gymnasium's environment, and continues its stream when it is reset without one."""
    sim, env = make_batch("Reacher-v5", 3), gymnasium.make("Reacher-v5")
    sim.reset([5, 6, 7])
    obs = sim.reset([None, 2**40, 9])
    env.reset(seed=5)
    assert_same_bits(obs[0], env.reset()[0], "the second episode of row 0")
    for row, seed in ((1, 2**40), (2, 9)):
        assert_same_bits(obs[row], env.reset(seed=seed)[0], f"row {row}")
    sim.close()
    env.close()


@pytest.mark.parametrize("name", ["Ant-v5", "Hopper-v5", "Pusher-v5"])
def test_a_state_from_the_middle_of_an_episode_continues_with_the_bits_of_gymnasium(name):
    """Into another simulator, with other threads; through ends of episodes."""
    envs, sim, other = make_envs(name, 2), make_batch(name, 2, num_threads=1), make_batch(name, 2, num_threads=2)
    sim.reset([3, 4])
    other.reset([8, 9])
    for env, seed in zip(envs, (3, 4), strict=True):
        env.reset(seed=seed)
    rng = np.random.default_rng(0)
    for number in range(70):
        if number == 13:
            state = sim.get_state()
            sim.step(torch.zeros(2, *sim.action_space.shape))
            other.set_state(state)
            sim = other
        actions = rng.uniform(-1, 1, (2, *sim.action_space.shape)).astype(np.float32)
        step, _, obs = sim.step_and_reset(torch.from_numpy(actions))
        for row, env in enumerate(envs):
            next_obs, reward, terminated, truncated, _ = env.step(actions[row])
            assert_same_bits(step.next_obs[row], next_obs, f"row {row} of step {number}")
            assert float(step.reward[row]) == float(reward)
            if terminated or truncated:
                next_obs = env.reset()[0]
            assert_same_bits(obs[row], next_obs, f"row {row} after step {number}")


def test_some_rows_step_alone_with_the_bits_of_gymnasium():
    envs, sim = make_envs("Ant-v5", 3), make_batch("Ant-v5", 3)
    sim.reset([1, 2, 3])
    for env, seed in zip(envs, (1, 2, 3), strict=True):
        env.reset(seed=seed)
    rng = np.random.default_rng(0)
    for number in range(25):
        mask = rng.random(3) < 0.5
        actions = rng.uniform(-1, 1, (3, 8)).astype(np.float32)
        step = sim.step_where(torch.from_numpy(mask), torch.from_numpy(actions))
        for row in np.flatnonzero(mask):
            obs, reward, *_, info = envs[row].step(actions[row])
            assert_same_bits(step.next_obs[row], obs, f"row {row} of step {number}")
            assert float(step.reward[row]) == reward
            assert float(step.info["x_velocity"][row]) == info["x_velocity"]
