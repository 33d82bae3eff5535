"""Compares a row of a `JaxSimulator` with a loop over the functions of its library, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from tests.simulators.every_dialect import assert_equal, sample

from vecrl.engine.trees import map_tree
from vecrl.simulators.jax_simulator import NEXT_EPISODE, JaxSimulator


def check_loop(sim: JaxSimulator, start: Callable[..., Any], step: Callable[..., Any], steps: int = 300) -> int:
    """Plays random actions, legal ones if there is a mask, in all rows and in a loop that has the seed of row 1.

    Args:
        sim: a simulator of three rows.
        start: of a key `[2]`, the state and the observation at the start of an episode.
        step: of a state and an action, the state, observation, reward, and flags `terminated` and `truncated`.

    Returns:
        How many episodes of row 1 ended.
    """
    start, step, key, ends = jax.jit(start), jax.jit(step), jax.random.PRNGKey(8), 0
    obs, (state, expected) = sim.reset([7, 8, 9]), start(key)
    for number in range(steps):
        assert_equal(_row(obs, 1), expected, f"the observation before step {number}")
        actions = [sample(sim.action_space, _row(obs, i), 10 * number + i) for i in range(3)]
        result = sim.step(map_tree(lambda *leaves: torch.from_numpy(np.stack(leaves)), *actions))
        state, *values = step(state, actions[1])
        fields = result.next_obs, result.reward, result.terminated, result.truncated
        assert_equal(_row(fields, 1), values, f"step {number}")
        done = result.terminated | result.truncated
        obs = sim.reset_where(done)
        if done[1]:
            ends, key = ends + 1, jax.random.fold_in(key, NEXT_EPISODE)
            state, expected = start(key)
        else:
            expected = values[0]
    return ends


def _row(tree: Any, row: int) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf[row].numpy(), tree)
