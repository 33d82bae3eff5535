"""The vector environment of ale-py, and Atari games by their names in gymnasium's registry."""

import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
import torch

from vecrl.envs import GymEnv
from vecrl.errors import SpaceError
from vecrl.simulators.atari_vector import AtariVectorSimulator, make_batch, names
from vecrl.simulators.availability import available
from vecrl.testing import BatchSimulatorConformance
from vecrl.vector import make_vector_env

pytestmark = pytest.mark.simulators


class TestBreakout(BatchSimulatorConformance):
    num_steps = 20
    has_states = False

    def make(self, num_envs):
        return AtariVectorSimulator("breakout", num_envs, max_num_frames_per_episode=60, num_threads=1)


def test_observations_actions_and_infos():
    sim = AtariVectorSimulator("ms_pacman", 2, num_threads=1, repeat_action_probability=0.25)
    obs = sim.reset([1, 2])
    assert (obs.shape, obs.dtype) == ((2, 4, 84, 84), torch.uint8)
    step = sim.step(torch.tensor([0, 3]))
    assert (step.reward.dtype, step.info["lives"].tolist()) == (torch.float32, [3, 3])
    assert sorted(step.info) == ["episode_frame_number", "frame_number", "lives"]
    silent = AtariVectorSimulator("pong", 1, infos=False)
    silent.reset()
    assert silent.step(torch.tensor([0])).info == {}
    color = AtariVectorSimulator("pong", 1, grayscale=False, render_mode="rgb_array", stack_num=2)
    obs = color.reset()
    assert obs.shape == (1, 2, 84, 84, 3)
    assert np.array_equal(color.render(0), obs[0, -1].numpy())
    gray = AtariVectorSimulator("pong", 1, render_mode="rgb_array")
    obs = gray.reset()
    assert np.array_equal(gray.render(0), np.repeat(obs[0, -1].numpy()[..., None], 3, -1))


def test_the_last_life_terminates_with_the_final_frame():
    sim = AtariVectorSimulator("breakout", 2, num_threads=1)
    sim.reset([3, 4])
    rng = np.random.default_rng(0)
    for _ in range(3000):
        step = sim.step(torch.from_numpy(rng.integers(0, 4, 2)))
        if bool(step.terminated.any()):
            break
    row = int(step.terminated.int().argmax())
    assert step.info["lives"][row] == 0
    obs = sim.reset_where(step.terminated)
    assert not torch.equal(obs[row], step.next_obs[row])
    assert torch.equal(obs[1 - row], step.next_obs[1 - row])
    assert sim.step(torch.tensor([0, 0])).info["episode_frame_number"][row] < 50


def test_the_frame_limit_truncates():
    with make_vector_env("atari-vector::pong", num_envs=2, max_num_frames_per_episode=40) as env:
        env.reset(seed=1)
        ends = [env.step(torch.zeros(2, dtype=torch.long))[2:4] for _ in range(10)]
    assert not any(bool(terminated.any()) for terminated, _ in ends)
    assert sum(int(truncated.sum()) for _, truncated in ends) >= 2


def test_wrong_arguments_and_states():
    assert len(names()) == 108
    assert available("atari-vector").install is None
    with pytest.raises(ValueError, match=r"got 'MsPacman'\. Did you mean ms_pacman"):
        AtariVectorSimulator("MsPacman", 1)
    with pytest.raises(ValueError, match="'rgb_array' for Atari games, got 'human'"):
        AtariVectorSimulator("pong", 1, render_mode="human")
    with pytest.raises(ValueError, match="no autoreset_mode or batch_size"):
        AtariVectorSimulator("pong", 1, autoreset_mode="SameStep")
    sim = AtariVectorSimulator("pong", 1)
    with pytest.raises(SpaceError, match="no reset options"):
        sim.reset(options={"x": 1})
    for use_state in (sim.get_state, lambda: sim.set_state({})):
        with pytest.raises(NotImplementedError, match="use atari::"):
            use_state()


def test_names_of_the_registry_need_no_import():
    code = """
from vecrl.envs import GymEnv
from vecrl.vector import make_vector_env
print(GymEnv("ALE/Pong-v5").rollout(2)["next", "pixels"].shape)
print(make_vector_env("ALE/Pong-v5", num_envs=2).num_envs)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([2, 210, 160, 3])\n2"
    assert GymEnv("atari::ALE/Breakout-v5", frameskip=2).action_spec.shape == (4,)


def test_actions_and_seeds_are_checked() -> None:
    """With another action, a step of ale-py would never return."""
    with closing(make_batch("pong", 2)) as simulator:
        with pytest.raises(SpaceError, match="Expected a seed of 0 or more"):
            simulator.reset([0, -1])
        simulator.reset()
        with pytest.raises(SpaceError, match=r"Expected actions from 0 to 5 for Atari games, got \[99\]"):
            simulator.step(torch.tensor([0, 99]))
