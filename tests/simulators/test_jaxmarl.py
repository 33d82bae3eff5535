"""JaxMARL, on the real library: agents in dicts, masks, rewards of agents, ends of episodes, and frames of MPE."""

import sys

import jax
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from tests.simulators.raw_loops import check_loop

from vecrl.engine.space_layout import Layout
from vecrl.simulators.gymnax import STEP_KEYS
from vecrl.simulators.jaxmarl import jaxmarl_module, make_batch, make_task, names

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(300)]  # compiling takes long on a busy machine
NAMES = "HeuristicEnemySMAX", "MPE_simple_tag_v3", "coin_game", "hanabi", "overcooked", "overcooked_v2", "switch_riddle"


@pytest.fixture(scope="module")
def spread():
    return make_batch("MPE_simple_spread_v3", 3, max_steps=12, render_mode="rgb_array")


def test_names():
    assert {"MPE_simple_spread_v3", "HeuristicEnemySMAX", "overcooked_v2", "hanabi"} <= set(names())
    assert len(names()) == 21


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Overcooked says that there is a second version
@pytest.mark.parametrize("name", NAMES)
def test_spaces_describe_what_environments_return(name):
    """Without compiling: a step has the structure, shapes and dtypes of the space, and one reward."""
    task = make_task(name)
    step = jax.eval_shape(task.step, task.start_shapes[0], task.action_space.sample())
    for obs in (task.start_shapes[1], step.obs):
        layout = Layout(task.observation_space)
        for leaf, value in zip(layout.leaves, layout.split(obs), strict=True):
            assert (value.shape, value.dtype) == (leaf.shape, leaf.dtype), leaf.name
    assert (step.reward.shape, step.terminated.shape, step.truncated.dtype) == ((), (), bool)
    assert {f"{agent}/reward" for agent in task.env.agents} <= set(step.info)


def functions(name, **kwargs):
    """Returns `start` and `step` of a loop over JaxMARL's functions, with the keys that `JaxMarlTask` documents."""
    env = jaxmarl_module("jaxmarl").make(name, **kwargs)

    def start(key):
        obs, state = env.reset(key)
        return (state, jax.random.fold_in(key, STEP_KEYS), 0), obs

    def step(before, actions):
        state, key, steps = before
        key, step_key = jax.random.split(key)
        obs, state, rewards, dones, _ = env.step_env(step_key, state, actions)
        truncated = dones["__all__"] & (steps + 1 >= env.max_steps)
        reward = sum(rewards[agent] for agent in env.agents)
        return (state, key, steps + 1), obs, reward, dones["__all__"] & ~truncated, truncated

    return start, step


def test_rows_equal_a_loop_over_jaxmarl(spread):
    assert check_loop(spread, *functions("MPE_simple_spread_v3", max_steps=12)) == 300 // 13


def test_terminations_equal_a_loop_over_jaxmarl():
    assert check_loop(make_batch("switch_riddle", 3), *functions("switch_riddle")) > 50


def test_rewards_are_summed_and_time_limits_truncate(spread):
    """MPE ends one step after `max_steps`."""
    spread.reset([1, 2, 3])
    actions = {f"agent_{i}": torch.full((3,), i) for i in range(3)}
    steps = [spread.step(actions) for _ in range(13)]
    of_agents = [steps[0].info[f"agent_{i}/reward"] for i in range(3)]
    assert torch.equal(steps[0].reward, sum(of_agents))
    assert [step.truncated.tolist() for step in steps] == [[False] * 3] * 12 + [[True] * 3]
    assert not any(step.terminated.any() for step in steps)
    obs = spread.reset_where(torch.tensor([False, True, False]))
    assert torch.equal(obs["agent_1"][::2], steps[-1].next_obs["agent_1"][::2])
    assert not torch.equal(obs["agent_1"][1], steps[-1].next_obs["agent_1"][1])


def test_masks():
    """Agents with illegal actions observe a mask; in Hanabi one player acts, and the others do nothing."""
    task = make_task("hanabi")
    assert task.action_space == Dict({f"agent_{i}": Discrete(21, dtype=np.int32) for i in range(2)})
    assert task.observation_space["agent_1"]["action_mask"] == Box(0, 1, (21,), np.bool_)
    _, obs = jax.jit(task.start)(jax.random.PRNGKey(0))
    assert sorted(int(obs[agent]["action_mask"].sum()) for agent in ("agent_0", "agent_1"))[0] == 1
    smax = make_task("HeuristicEnemySMAX").observation_space
    assert set(smax) == {*(f"ally_{i}" for i in range(5)), "world_state"}
    assert smax["ally_0"]["action_mask"] == Box(0, 1, (10,), np.bool_)


def test_frames(spread):
    spread.reset([1, 2, 3])
    frame = spread.render(1)
    assert (frame.shape, frame.dtype) == ((500, 500, 3), np.uint8)
    assert frame.std() > 1


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"Expected the name of an environment of JaxMARL.*MPE_simple_tag_v3"):
        make_batch("MPE_simple_tag", 2)
    with pytest.raises(ValueError, match="Expected render_mode to be None for JaxMARL's switch_riddle"):
        make_batch("switch_riddle", 2, render_mode="rgb_array")
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with pytest.raises(ImportError, match=r"vecrl\[jaxmarl\]"):
        names()
