"""Navix, on the real library: goals and time limits, obstacles that move at random, other observations, frames."""

import sys

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.simulators.raw_loops import check_loop

from vecrl.simulators.navix import make_batch, make_task, names, navix_module

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(300)]  # compiling takes long on a busy machine
navix = navix_module()  # its import warns
NAME = "Navix-Dynamic-Obstacles-5x5-Random-v0"


@pytest.fixture(scope="module")
def obstacles():
    return make_batch(NAME, 3, max_steps=20, render_mode="rgb_array")


def test_names():
    assert {"Navix-DoorKey-5x5-v0", "Navix-FourRooms-v0"} <= set(names())
    assert len(names()) == 41


@pytest.mark.parametrize("name", [name for name in names() if "5x5" in name or "5" not in name])
def test_spaces_describe_what_environments_return(name):
    """Without compiling: shapes and dtypes of a reset are those of the spaces."""
    task = make_task(name)
    _, obs = task.start_shapes
    assert task.observation_space == Box(0, 255, obs.shape, np.uint8)
    assert task.action_space == Discrete(7, dtype=np.int32)


def test_rows_equal_a_loop_over_navix(obstacles):
    """Balls move with random numbers of the state."""
    env = navix.make(NAME, max_steps=20)

    def start(key):
        timestep = env.reset(key)
        return timestep, timestep.observation

    def step(before, action):
        timestep = env._step(before, action)
        ends = timestep.step_type == 2, timestep.step_type == 1
        return timestep, timestep.observation, timestep.reward, *ends

    assert check_loop(obstacles, start, step) > 12


def test_other_observations():
    task = make_task("Navix-Empty-5x5-v0", observation_fn=navix.observations.rgb)
    assert task.observation_space == Box(0, 255, (40, 40, 3), np.uint8)
    step = jax.eval_shape(task.step, task.start_shapes[0], np.int32(0))
    assert (step.obs.shape, step.reward.shape, step.terminated.dtype) == ((40, 40, 3), (), bool)


def test_frames(obstacles):
    obstacles.reset([1, 2, 3])
    frame = obstacles.render(1)
    assert (frame.shape, frame.dtype) == ((40, 40, 3), np.uint8)
    assert frame.std() > 1


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"Expected the name of an environment of Navix.*Navix-Empty-5x5-v0"):
        make_batch("Navix-Empty-5x5", 2)
    monkeypatch.setitem(sys.modules, "navix", None)
    with pytest.raises(ImportError, match=r"vecrl\[navix\]"):
        names()
