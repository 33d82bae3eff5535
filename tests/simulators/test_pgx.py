"""Pgx, on the real library: players in turns, masks, illegal moves, random steps, frames of MinAtar."""

import sys

import jax
import numpy as np
import pgx
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from tests.simulators.raw_loops import check_loop

from vecrl.simulators.gymnax import STEP_KEYS
from vecrl.simulators.pgx import make_batch, make_task, names
from vecrl.testing import BatchSimulatorConformance

pytestmark = [pytest.mark.simulators, pytest.mark.timeout(300)]  # compiling takes long on a busy machine
GAMES = "2048", "backgammon", "connect_four", "kuhn_poker", "minatar-breakout", "sparrow_mahjong"


class TestConformance(BatchSimulatorConformance):
    """A game of cards for two players."""

    def make(self, num_envs):
        return make_batch("kuhn_poker", num_envs)


def test_names():
    assert {"chess", "go_9x9", "minatar-breakout"} <= set(names())
    assert len(names()) == 20


@pytest.mark.parametrize("name", GAMES)
def test_spaces_describe_what_games_return(name):
    """Without compiling: shapes and dtypes of a reset and a step are those of the spaces."""
    task = make_task(name)
    state, obs = task.start_shapes
    assert isinstance(task.observation_space, Dict)
    for key, space in task.observation_space.items():
        assert (obs[key].shape, obs[key].dtype) == (space.shape, space.dtype)
    step = jax.eval_shape(task.step, state, np.int32(0))
    assert (step.reward.shape, step.terminated.dtype, step.truncated.dtype) == ((), bool, bool)
    assert step.info["rewards"].shape == (task.game.num_players,)


def functions(game):
    """Returns `start` and `step` of a loop over Pgx's functions, with the keys that `PgxTask` documents."""

    def observe(state):
        return {
            "observation": state.observation,
            "action_mask": state.legal_action_mask,
            "player": state.current_player,
        }

    def start(key):
        state = game.init(key)
        return (state, jax.random.fold_in(key, STEP_KEYS)), observe(state)

    def step(state_and_key, action):
        before, key = state_and_key
        key, step_key = jax.random.split(key)
        state = game.step(before, action, step_key)
        reward = state.rewards[before.current_player]
        return (state, key), observe(state), reward, state.terminated, state.truncated

    return start, step


@pytest.mark.parametrize("name", ["kuhn_poker", "minatar-breakout"])
def test_rows_equal_a_loop_over_pgx(name):
    assert check_loop(make_batch(name, 3), *functions(pgx.make(name))) > 5


def test_arguments_and_spaces():
    assert make_task("go_9x9", komi=5.5).observation_space["observation"] == Box(0, 1, (9, 9, 17), np.bool_)
    task = make_task("minatar-breakout", use_minimal_action_set=False)
    assert task.action_space == Discrete(6, dtype=np.int32)
    assert task.observation_space["player"] == Discrete(1, dtype=np.int32)
    assert make_batch("hex", 2).task is make_batch("hex", 5).task


def test_illegal_moves_lose():
    """The reward is that of the player that has moved; the info has those of both."""
    sim = make_batch("tic_tac_toe", 3)
    player = sim.reset([1, 2, 3])["player"]
    obs = sim.step(torch.tensor([0, 1, 2])).next_obs
    assert torch.equal(obs["player"], 1 - player)
    assert obs["action_mask"].sum(1).tolist() == [8, 8, 8]
    step = sim.step(torch.tensor([0, 2, 3]))
    assert step.terminated.tolist() == [True, False, False]
    assert step.reward.tolist() == [-1, 0, 0]
    assert step.info["rewards"][0, player[0]] == 1


def test_frames():
    sim = make_batch("minatar-breakout", 3, render_mode="rgb_array")
    sim.reset([1, 2, 3])
    frame = sim.render(0)
    assert (frame.shape, frame.dtype) == ((160, 160, 3), np.uint8)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) == 3  # nothing, the paddle and bricks; the ball
    with pytest.raises(ValueError, match="Expected render_mode to be None for Pgx's hex, got 'rgb_array'"):
        make_batch("hex", 2, render_mode="rgb_array")


def test_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"Expected the name of a game of Pgx, got 'ches'.*chess"):
        make_batch("ches", 2)
    monkeypatch.setitem(sys.modules, "pgx", None)
    with pytest.raises(ImportError, match=r"vecrl\[pgx\]"):
        names()
