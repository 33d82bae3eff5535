"""Jumanji, on the real library: nested observations, masks, rewards of agents, ends of episodes, and frames."""

import jax
import jumanji
import jumanji.wrappers
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from vecrl.engine.space_layout import Layout
from vecrl.errors import SpaceError
from vecrl.simulators.jumanji import JumanjiTask, make_batch, make_task, names
from vecrl.testing import BatchSimulatorConformance

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(300)]  # compiling takes long on a busy machine
OFFLINE = [name for name in names() if not name.startswith("Sokoban")]


class TestConformance(BatchSimulatorConformance):
    """Observations are nested, with a mask of bools; episodes end at a time limit."""

    num_steps = 40

    def make(self, num_envs):
        return make_batch("Maze-v0", num_envs, time_limit=20)


@pytest.fixture(scope="module")
def foraging():
    """Two agents with a reward each; the time limit is a truncation."""
    return make_batch("LevelBasedForaging-v0", 2, time_limit=3)


def test_names():
    assert len(names()) == 26
    assert {"Snake-v1", "BinPack-v2", "Sokoban-v0"} <= set(names())


@pytest.mark.parametrize("name", OFFLINE)
def test_spaces_describe_what_environments_return(name):
    """Without compiling: a reset has the structure, shapes and dtypes of the space, and a step has one reward."""
    task = make_task(name)
    state, obs = task.start_shapes
    for space, values in ((task.observation_space, obs), (task.action_space, task.action_space.sample())):
        layout = Layout(space)
        for leaf, value in zip(layout.leaves, layout.split(values), strict=True):
            assert (value.shape, value.dtype) == (leaf.shape, leaf.dtype), leaf.name
    step = jax.eval_shape(task.step, state, task.action_space.sample())
    assert (step.reward.shape, step.terminated.shape, step.truncated.dtype) == ((), (), bool)
    assert ("vector_reward" in step.info) == bool(task.env.reward_spec.shape)


def test_spaces():
    maze = make_task("Maze-v0").observation_space
    assert maze["agent_position"] == Dict({axis: Box(0, 9, (), np.int32) for axis in ("row", "col")})
    assert maze["action_mask"] == Box(0, 1, (4,), np.bool_)
    assert make_task("CVRP-v1").observation_space["position"] == Discrete(21, dtype=np.int32)
    assert make_task("Tetris-v0").action_space == MultiDiscrete([4, 10], dtype=np.int32)
    assert make_task("SearchAndRescue-v0").action_space == Box(-1, 1, (2, 2), np.float32)
    board = make_task("Game2048-v1").observation_space["board"]
    assert (board.low.min(), board.high.max()) == (-(2**31), 2**31 - 1)


def test_steps_equal_jumanji():
    """A row with seed s starts from its key; steps are those of the library."""
    sim, env = make_batch("Maze-v0", 2, time_limit=20), jumanji.make("Maze-v0", time_limit=20)
    obs = sim.reset([3, 4])
    state, timestep = jax.vmap(env.reset)(jax.vmap(jax.random.PRNGKey)(np.array([3, 4])))
    for _ in range(3):
        for found, expected in ((obs["walls"], timestep.observation.walls), (obs["agent_position"]["row"], None)):
            expected = timestep.observation.agent_position.row if expected is None else expected
            assert np.array_equal(found, expected)
        obs = sim.step(torch.tensor([1, 2])).next_obs
        state, timestep = jax.vmap(env.step)(state, np.array([1, 2], np.int32))


def test_rewards_of_agents_are_summed(foraging):
    foraging.reset([1, 2])
    step = foraging.step(torch.zeros(2, 2, dtype=torch.int64))
    assert step.info["vector_reward"].shape == (2, 2)
    assert torch.equal(step.reward, step.info["vector_reward"].sum(1))
    assert step.info["percent_eaten"].shape == (2,)


def test_ends_without_a_discount_of_zero_are_truncations(foraging):
    """Jumanji reports the time limit of this environment with a discount of 1."""
    foraging.reset([1, 2])
    steps = [foraging.step(torch.zeros(2, 2, dtype=torch.int32)) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 2 + [[True] * 2]
    assert not any(bool(step.terminated.any()) for step in steps)


def test_functions_are_compiled_once(foraging):
    foraging.set_state(foraging.get_state())
    foraging.reset_where(torch.tensor([True, False]))
    foraging.reset([None, 3])
    assert foraging._reset_where._cache_size() == foraging._step_compiled._cache_size() == 1
    assert make_batch("LevelBasedForaging-v0", 5, time_limit=3).task is foraging.task


@pytest.mark.parametrize("name", ["Snake-v1", "Maze-v0", "SlidingTilePuzzle-v0"])
def test_frames(name):
    """Viewers differ: Snake's does not return its image, and the puzzle's is another attribute."""
    task = make_task(name)
    state, _ = jax.jit(task.start)(jax.random.PRNGKey(0))
    frame = task.draw(state)
    assert (frame.shape, frame.dtype) == ((1000, 1000, 3), np.uint8)
    assert frame.std() > 1
    task.close()


def test_environments_with_flat_observations_are_accepted():
    """An observation that is an array has a `Box`."""

    class Flat(jumanji.wrappers.Wrapper):
        observation_spec = jumanji.specs.BoundedArray((10, 10), bool, False, True)

        def reset(self, key):
            state, timestep = self._env.reset(key)
            return state, timestep.replace(observation=timestep.observation.walls)

    task = JumanjiTask(Flat(jumanji.make("Maze-v0")))
    assert task.observation_space == Box(0, 1, (10, 10), np.bool_)
    assert task.start_shapes[1].shape == (10, 10)


def test_errors(foraging):
    with pytest.raises(ValueError, match=r"Expected the name of an environment of Jumanji.*Snake-v1"):
        make_batch("nothing", 2)
    with pytest.raises(ValueError, match=r"Expected actions of shape \[2, 2\]"):
        foraging.step(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="Expected no reset options for Jumanji's LevelBasedForaging-v0"):
        foraging.reset(options={"a": 1})


def test_actions_out_of_range_are_refused():
    simulator = make_batch("LevelBasedForaging-v0", 2)
    simulator.reset()
    with pytest.raises(SpaceError, match=r"Expected actions from \[0, 0\] to \[5, 5\] .* got \[\[0, 6\]\] .* \[1\]"):
        simulator.step(torch.tensor([[0, 5], [0, 6]]))
