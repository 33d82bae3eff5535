"""MuJoCo models in MuJoCo Warp equal MuJoCo's own steps, and tasks equal gymnasium's."""

import sys

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from vecrl.policy import PopulationEvaluator
from vecrl.simulators.mujoco import Move, Rows, warp
from vecrl.simulators.mujoco.warp import TASKS, WarpSimulator, make_batch, names
from vecrl.testing import BatchSimulatorConformance

pytestmark = pytest.mark.simulators


class TestCartPole(BatchSimulatorConformance):
    num_steps = 12

    def make(self, num_envs):
        return make_batch("cartpole-balance", num_envs, max_episode_steps=9)


def test_steps_are_those_of_mujoco():
    """The cart-pole, from hanging, with an action that changes."""
    simulator = WarpSimulator("cartpole-swingup", 2)
    simulator.reset([5, 6])
    data = mujoco.MjData(simulator.model)
    data.qpos[:], data.qvel[:], _ = np.split(simulator.get_state()["state"][1].numpy(), [2, 4])
    assert abs(data.qpos[1] - np.pi) < 0.02
    for step in range(60):
        action = np.sin([step / 7, step / 9])
        result = simulator.step(torch.from_numpy(action).float()[:, None])
        data.ctrl[:] = action[1]
        mujoco.mj_step(simulator.model, data)
        x, angle = data.qpos
        expected = [x, np.cos(angle), np.sin(angle), *data.qvel]
        np.testing.assert_allclose(result.next_obs[1], expected, atol=2e-4)
        assert result.reward[1] == pytest.approx((1 + np.cos(angle)) / 2 * (1 - abs(x) / 4), abs=1e-4)
    assert np.ptp(result.next_obs[:, 0].numpy()) > 1e-3


def tensor_rows(env):
    """Returns the positions and velocities of an environment of gymnasium as one row of tensors."""
    values = {"dt": [env.dt], "qpos": [env.data.qpos], "qvel": [env.data.qvel]}
    return Rows({name: torch.tensor(np.array(value), dtype=torch.float32) for name, value in values.items()})


@pytest.mark.parametrize("name", ["InvertedPendulum-v5", "Hopper-v5", "HalfCheetah-v5"])
def test_rules_are_those_of_gymnasium(name):
    task, env = TASKS[name], gymnasium.make(name).unwrapped
    env.action_space.seed(3)
    env.reset(seed=3)
    ended = 0
    for _ in range(60):
        before, action = tensor_rows(env), env.action_space.sample()
        obs, reward, terminated, *_ = env.step(action)
        after = tensor_rows(env)
        np.testing.assert_allclose(task.observe(after)[0], obs, atol=1e-4)
        move = Move(before, after, torch.from_numpy(action)[None], before.qpos, torch.zeros(1, dtype=torch.bool))
        if task.terminated is not None:
            move.terminated = task.terminated(move)
        rewards, _ = task.reward(move)
        assert rewards.item() == pytest.approx(reward, abs=1e-4)
        assert move.terminated.item() == terminated
        if terminated:
            ended += 1
            env.reset()
    assert ended or name == "HalfCheetah-v5"
    env.close()


@pytest.mark.parametrize("name", ["Hopper-v5", "HalfCheetah-v5"])
def test_start_states_have_the_distribution_of_gymnasium(name):
    simulator, env = WarpSimulator(name, 500), gymnasium.make(name)
    obs = simulator.reset(list(range(500)))
    expected = np.stack([env.reset(seed=seed)[0] for seed in range(500)])
    env.close()
    np.testing.assert_allclose(obs.mean(0), expected.mean(0), atol=0.02)
    np.testing.assert_allclose(obs.std(0), expected.std(0), rtol=0.15)


def test_actions_are_clipped():
    simulator = WarpSimulator("cartpole-balance", 2)
    simulator.reset([1, 1])
    result = simulator.step(torch.tensor([[1.0], [50.0]]))
    assert torch.equal(result.next_obs[0], result.next_obs[1])
    assert result.next_obs[0, 3] > 0.05


def test_falls_terminate():
    simulator = WarpSimulator("cartpole-balance", 2)
    simulator.reset([1, 2])
    for _ in range(200):
        result = simulator.step(torch.tensor([[1.0], [1.0]]))
        if result.terminated[0]:
            break
    assert result.terminated[0]
    assert result.next_obs[0, 1] < np.cos(0.5)


def test_frames_show_the_row():
    simulator = WarpSimulator("cartpole-swingup", 2, render_mode="rgb_array")
    simulator.reset([1, 1])
    state = simulator.get_state()
    state["state"][1, 1] = 0.0
    simulator.set_state(state)
    hanging, upright = (simulator.render(row) for row in range(2))
    simulator.close()
    assert hanging.shape == upright.shape == (480, 480, 3)
    assert upright[:240].max() > 50 > hanging[:240].max()


def test_populations_act_in_it():
    with PopulationEvaluator("warp::cartpole-balance", "Linear(obs_length, act_length)", 3, max_steps=4) as evaluate:
        result = evaluate(torch.zeros(3, evaluate.parameter_length))
    assert result.returns.tolist() == [4, 4, 4]
    with pytest.raises(ValueError, match="Expected a native task to compile, got WarpSimulator"):
        PopulationEvaluator("warp::cartpole-balance", "Linear(obs_length, act_length)", 3, compile=True)


def test_wrong_arguments_raise(monkeypatch):
    assert names() == [*TASKS]
    with pytest.raises(ValueError, match=r"Expected one of cartpole-balance, .*got 'cartpole'"):
        make_batch("cartpole", 2)
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    with pytest.raises(ImportError, match=r'pip install "vecrl\[warp\]"'):
        warp.names()
