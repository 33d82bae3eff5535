"""Craftax, on the real library. One environment is compiled, with few optimizations, which takes half as long."""

import jax
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from vecrl.simulators.craftax import make_batch, make_task, names

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(400)]  # compiling takes long on a busy machine
NOOP = torch.zeros(2, dtype=torch.int64)


@pytest.fixture(scope="module")
def classic():
    jax.config.update("jax_disable_most_optimizations", True)
    yield make_batch("Craftax-Classic-Symbolic-v1", 2, max_timesteps=4)
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize(
    ("name", "shape", "actions"), [("Craftax-Classic-Symbolic-v1", (1345,), 17), ("Craftax-Symbolic-v1", (8268,), 43)]
)
def test_spaces_describe_what_environments_return(name, shape, actions):
    """Without compiling: shapes and dtypes of a reset and a step are those of the spaces."""
    task = make_task(name)
    assert task.observation_space == Box(0, 1, shape, np.float32)
    assert task.action_space == Discrete(actions, dtype=np.int32)
    step = jax.eval_shape(task.step, task.start_shapes[0], np.int32(0))
    assert (step.obs.shape, step.obs.dtype) == (shape, "float32")


def test_names():
    assert len(names()) == 4


def test_equal_seeds_give_equal_episodes(classic):
    """Steps are random, with keys of the rows; the caller's actions decide nothing about resets."""
    runs = [[classic.reset([7, 8]), *(classic.step(NOOP).next_obs for _ in range(3))] for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))
    assert all(classic.observation_space.contains(row) for row in runs[0][-1].numpy())
    assert not torch.equal(*runs[0][0])
    assert torch.equal(classic.reset([8, None])[0], runs[0][0][1])


def test_time_limits_truncate_and_resets_are_partial(classic):
    """Achievements are infos; a row that is not reset keeps its observation."""
    classic.reset([1, 2])
    for _ in range(2):
        classic.step(NOOP)
    step = classic.step(NOOP)
    assert step.info["Achievements/collect_wood"].tolist() == [0, 0]
    obs = classic.reset_where(torch.tensor([True, False]))
    assert torch.equal(obs[1], step.next_obs[1])
    assert not torch.equal(obs[0], step.next_obs[0])
    state = classic.get_state()
    step = classic.step(NOOP)
    assert (step.truncated.tolist(), step.terminated.tolist()) == ([False, True], [False, False])
    classic.set_state(state)
    assert torch.equal(classic.step(NOOP).next_obs, step.next_obs)
    assert classic._reset_where._cache_size() == classic._step_compiled._cache_size() == 1


def test_errors():
    with pytest.raises(ValueError, match=r"Expected the name of an environment of Craftax.*Craftax-Symbolic-v1"):
        make_batch("nothing", 2)
