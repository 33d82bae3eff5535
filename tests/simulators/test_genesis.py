"""Genesis: its tasks, and scenes of one's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from vecrl.errors import SpaceError
from vecrl.simulators.genesis import GenesisSimulator, GenesisTask, genesis_library, new_scene
from vecrl.simulators.genesis_tasks import TASKS, make_batch, names
from vecrl.testing import BatchSimulatorConformance

pytestmark = [pytest.mark.genesis, pytest.mark.timeout(600)]  # the first scene of a process compiles for minutes


class TestArm(BatchSimulatorConformance):
    num_steps = 12
    tolerance = 1e-4  # loops over rows round differently in the last bits

    def make(self, num_envs):
        return make_batch("franka-reach", num_envs, max_episode_steps=9)


def ball_scene():
    gs = genesis_library()
    scene = new_scene(dt=0.01, collisions=False)
    scene.add_entity(gs.morphs.Sphere(radius=0.1, pos=(0, 0, 2), collision=False))
    return scene


BALL = GenesisTask(
    make_scene=ball_scene,
    action_space=Box(-1, 1, (1,), np.float32),
    act=lambda scene, actions: None,
    observe=lambda scene: scene.entities[1].get_pos(),
    reward=lambda scene, actions: actions[:, 0],
    terminated=lambda scene: scene.entities[1].get_pos()[:, 2] < 1,
    frame_skip=2,
    max_episode_steps=-1,
)


def test_a_ball_falls_until_it_is_below_one_meter():
    simulator = GenesisSimulator(BALL, 3)
    assert simulator.reset().tolist() == [[0, 0, 2]] * 3
    for step in range(1, 40):
        result = simulator.step(torch.tensor([[-3.0], [0.0], [0.5]]))
        assert result.reward.tolist() == [-1, 0, 0.5]  # actions are clipped
        time = 0.02 * step
        heights = torch.full((3,), 2 - 9.81 / 2 * time**2)
        torch.testing.assert_close(result.next_obs[:, 2], heights, rtol=0, atol=2e-3)
        if result.terminated.any():
            break
    assert result.terminated.all()
    assert step == 23
    mask = torch.tensor([False, True, False])
    heights = simulator.reset_where(mask)[:, 2]
    assert heights[1] == 2
    assert heights[0].equal(result.next_obs[0, 2])


def test_the_dog_stands_until_it_is_turned_over():
    simulator = make_batch("go2-stand", 2)
    simulator.reset([0, 1])
    for _ in range(40):
        result = simulator.step(torch.zeros(2, 12))
    assert (result.reward > 0.9).all()
    assert not result.terminated.any()
    state = simulator.get_state()
    state["state"][1, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    simulator.set_state(state)
    assert simulator.step(torch.zeros(2, 12)).terminated.tolist() == [False, True]


def test_frames_are_those_of_the_row():
    simulator = make_batch("franka-reach", 2, render_mode="rgb_array")
    simulator.reset([1, 2])
    frames = [simulator.render(row) for row in (0, 1, 0)]
    assert (frames[0].shape, frames[0].dtype) == ((240, 320, 3), np.uint8)
    assert np.array_equal(frames[0], frames[2])
    assert not np.array_equal(frames[0], frames[1])


def test_goals_are_drawn_by_seed_and_stay():
    simulator = make_batch("franka-reach", 2)
    first = simulator.reset([5, 6])
    goals = first[:, 18:21] + first[:, 21:]
    assert not goals[0].equal(goals[1])
    for _ in range(5):
        obs = simulator.step(torch.ones(2, 7)).next_obs
    torch.testing.assert_close(obs[:, 18:21] + obs[:, 21:], goals)
    assert (obs[:, 0] > first[:, 0]).all()
    assert names() == [*TASKS]


def scene_without_camera():
    gs = genesis_library()
    scene = gs.Scene(show_viewer=False)
    scene.add_entity(gs.morphs.Sphere(radius=0.1, collision=False))
    return scene


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"Expected the name of a task of Genesis, got 'franka-rich'\. Did you mean"):
        make_batch("franka-rich", 1)
    with pytest.raises(ValueError, match="Expected device 'cpu', for which Genesis was initialized here, got 'cuda'"):
        make_batch("franka-reach", 1, device="cuda")
    with pytest.raises(SpaceError, match="Expected a scene with a camera"):
        GenesisSimulator(replace(BALL, make_scene=scene_without_camera), 1, render_mode="rgb_array")
