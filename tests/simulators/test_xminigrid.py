"""XLand-MiniGrid, on the real library: goals and time limits, rule sets, frames."""

import sys

import jax
import numpy as np
import pytest
import torch
import xminigrid
from gymnasium.spaces import Box, Discrete
from tests.simulators.raw_loops import check_loop
from xminigrid.types import RuleSet

from vecrl.simulators.xminigrid import make_batch, make_task, names

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(300)]  # compiling takes long on a busy machine


@pytest.fixture(scope="module")
def empty():
    """The goal is in a corner, and agents start anywhere: some random walks find it."""
    return make_batch("MiniGrid-EmptyRandom-5x5", 3, max_steps=20, render_mode="rgb_array")


def test_names():
    assert {"MiniGrid-DoorKey-5x5", "XLand-MiniGrid-R9-25x25"} <= set(names())
    assert len(names()) == 44


@pytest.mark.parametrize("name", [name for name in names() if not name.endswith(("16", "32", "64", "17x17"))])
def test_spaces_describe_what_environments_return(name):
    """Without compiling: shapes and dtypes of a reset are those of the spaces."""
    task = make_task(name)
    _, obs = task.start_shapes
    assert (obs.shape, obs.dtype) == (task.observation_space.shape, task.observation_space.dtype)
    assert task.action_space == Discrete(6, dtype=np.int32)


def test_rows_equal_a_loop_over_xminigrid(empty):
    env, params = xminigrid.make("MiniGrid-EmptyRandom-5x5", max_steps=20)

    def start(key):
        timestep = env.reset(params, key)
        return timestep, timestep.observation

    def step(before, action):
        timestep = env.step(params, before, action)
        terminated = timestep.last() & (timestep.reward > 0)
        return timestep, timestep.observation, timestep.reward, terminated, timestep.last() & ~terminated

    assert check_loop(empty, start, step) > 12


def test_goals_terminate_and_time_limits_truncate(empty):
    """Partial resets keep other rows, and a state restores the same future."""
    obs = empty.reset([1, 2, 3])
    space = empty.observation_space
    assert space == Box(np.zeros((7, 7, 2), np.uint8), np.full((7, 7, 2), [12, 11], np.uint8), dtype=np.uint8)
    ends = []
    for number in range(60):
        state = empty.get_state()
        torch.manual_seed(number)
        actions = torch.randint(3, (3,))
        step = empty.step(actions)
        assert all(space.contains(row) for row in step.next_obs.numpy())
        empty.set_state(state)
        assert torch.equal(empty.step(actions).next_obs, step.next_obs)
        done = step.terminated | step.truncated
        obs = empty.reset_where(done)
        assert torch.equal(obs[~done], step.next_obs[~done])
        ends += zip(step.terminated[done].tolist(), (step.reward[done] > 0).tolist(), strict=True)
    assert set(ends) == {(True, True), (False, False)}


def test_equal_seeds_give_equal_starts(empty):
    first, second, third = empty.reset([7, 8, 7])
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
    assert torch.equal(empty.reset([8, None, 7])[0], second)


def test_rule_sets():
    """The objects of a rule set are placed in the grid; the environment itself has none."""
    rules = RuleSet(goal=np.array([0] * 5), rules=np.zeros((1, 7), int), init_tiles=np.array([[3, 1]]))
    task = make_task("XLand-MiniGrid-R1-9x9", ruleset=rules, max_steps=3)
    state, _ = jax.jit(task.start)(jax.random.PRNGKey(0))
    assert (np.asarray(state.state.grid) == [3, 1]).all(-1).sum() == 1


def test_frames(empty):
    empty.reset([1, 2, 3])
    frame = empty.render(1)
    assert (frame.shape, frame.dtype) == ((160, 160, 3), np.uint8)
    assert frame.std() > 1


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"Expected the name of an environment of XLand-MiniGrid.*MiniGrid-Empty-5x5"):
        make_batch("MiniGrid-Empty-5", 2)
    monkeypatch.setitem(sys.modules, "xminigrid", None)
    with pytest.raises(ImportError, match=r"vecrl\[xminigrid\]"):
        names()
