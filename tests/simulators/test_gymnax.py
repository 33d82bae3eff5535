"""gymnax, on the real library; all environments share what `JaxSimulator` does."""

import gymnax
import jax
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from vecrl.errors import SpaceError
from vecrl.simulators.gymnax import make_batch, names
from vecrl.testing import BatchSimulatorConformance

pytestmark = pytest.mark.simulators
ACTIONS = torch.tensor([1, 0, 1])


class TestConformance(BatchSimulatorConformance):
    """Episodes end when the ball is at the bottom."""

    def make(self, num_envs):
        return make_batch("Catch-bsuite", num_envs, render_mode="rgb_array" if num_envs == 2 else None)


@pytest.fixture(scope="module")
def cartpole():
    return make_batch("CartPole-v1", 3, params={"max_steps_in_episode": 12})


def test_names():
    assert {"CartPole-v1", "Breakout-MinAtar", "FrozenLake-misc"} <= set(names())
    assert len(names()) == 26


@pytest.mark.parametrize("name", [name for name in names() if name != "MNISTBandit-bsuite"])  # it needs the network
def test_spaces_describe_what_environments_return(name):
    """Without compiling: shapes and dtypes of a reset and a step are those of the spaces."""
    sim = make_batch(name, 2)
    actions = torch.from_numpy(np.stack([sim.action_space.sample() for _ in range(2)]))
    step = jax.eval_shape(sim.task.functions[1], sim._rows[0], sim._jax_actions(actions))
    space = sim.observation_space
    assert (step.obs.shape, step.obs.dtype) == ((2, *space.shape), space.dtype)
    assert (step.reward.shape, step.reward.dtype) == ((2,), "float32")
    assert (step.terminated.dtype, step.truncated.dtype) == (bool, bool)
    assert space.contains(np.zeros(space.shape, space.dtype)) or isinstance(space, Box)


def test_steps_equal_gymnax(cartpole):
    """A row with seed s begins as gymnax does with the key of s, and its steps are those of gymnax."""
    env, params = gymnax.make("CartPole-v1")
    obs = cartpole.reset([5, 6, 7])
    expected, state = jax.vmap(env.reset_env, (0, None))(jax.vmap(jax.random.PRNGKey)(np.array([5, 6, 7])), params)
    np.testing.assert_allclose(obs, expected, rtol=1e-6)
    keys = jax.vmap(jax.random.PRNGKey)(np.arange(3))
    for _ in range(3):
        step = cartpole.step(ACTIONS)
        expected, state, *_ = jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, np.array(ACTIONS), params)
        np.testing.assert_allclose(step.next_obs, expected, rtol=1e-5, atol=1e-6)


def test_time_limits_are_truncations(cartpole):
    """A pole that falls is terminated; one that is upright at the time limit is truncated; `params` set the limit."""
    cartpole.reset([1, 2, 3])
    steps = [cartpole.step(torch.tensor([1, t % 2, 0])) for t in range(12)]
    terminated = torch.stack([step.terminated for step in steps])
    assert [bool(flag) for flag in terminated.any(0)] == [True, False, True]
    assert steps[-1].truncated.tolist() == [False, True, False]
    assert not any(bool(step.truncated.any()) for step in steps[:-1])


def test_functions_are_compiled_once(cartpole):
    cartpole.reset([1, None, 3])
    cartpole.set_state(cartpole.get_state())
    for dtype in (torch.int64, torch.int32):
        cartpole.step(ACTIONS.to(dtype))
        cartpole.reset_where(torch.tensor([True, False, False]))
    assert cartpole._reset_where._cache_size() == cartpole._step_compiled._cache_size() == 1


def test_equal_arguments_share_compiled_functions(cartpole):
    first, second = (make_batch("Pendulum-v1", 2) for _ in range(2))
    assert first.task is second.task
    assert make_batch("CartPole-v1", 2).task is not cartpole.task  # it has other parameters


def test_spaces():
    assert make_batch("FrozenLake-misc", 1).observation_space == Discrete(16, dtype=np.int32)
    assert make_batch("FourRooms-misc", 1).observation_space == Box(1, 11, (4,), np.int32)
    assert make_batch("Pendulum-v1", 1).action_space == Box(-2, 2, (1,), np.float32)


def test_errors():
    with pytest.raises(ValueError, match=r"Expected the name of an environment of gymnax.*CartPole-v1"):
        make_batch("nothing", 2)
    with pytest.raises(ValueError, match="Expected render_mode to be None for gymnax's CartPole-v1, got 'rgb_array'"):
        make_batch("CartPole-v1", 2, render_mode="rgb_array")


def test_negative_seeds_are_refused() -> None:
    with pytest.raises(SpaceError, match="Expected a seed of 0 or more"):
        make_batch("CartPole-v1", 2).reset([0, -1])


def test_actions_out_of_range_are_refused():
    simulator = make_batch("Catch-bsuite", 3)
    simulator.reset()
    with pytest.raises(SpaceError, match=r"Expected actions from 0 to 2 at the root .* got \[3, -1\] .* \[0, 2\]"):
        simulator.step(torch.tensor([3, 0, -1]))
