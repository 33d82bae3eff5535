"""Adapts XLand-MiniGrid's environments, written in JAX, to a `BatchSimulator` of torch tensors.

The environments named `XLand-MiniGrid-…` have no goal unless `ruleset` gives one. `xminigrid.load_benchmark` downloads
rule sets; the environments themselves need no network.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..registries import check_name
from .jax_library import jax_library
from .jax_simulator import JaxStep, JaxTask, make_jax_batch

xminigrid_module = partial(jax_library, title="XLand-MiniGrid", extra="xminigrid")


def names() -> list[str]:
    """Returns the names of all environments; raises ImportError if XLand-MiniGrid is not installed."""
    return sorted(xminigrid_module("xminigrid").registered_environments())


def make_task(name: str, **params: Any) -> XMiniGridTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("MiniGrid-DoorKey-5x5", "XLand-MiniGrid-R1-9x9", …).
        params: values that replace fields of the environment's parameters (`max_steps=…`, `view_size=…`, `ruleset=…`).
    """
    check_name("an environment of XLand-MiniGrid", name, names())
    env, all_params = xminigrid_module("xminigrid").make(name, **params)
    return XMiniGridTask(env, all_params, name)


make_batch = partial(make_jax_batch, make_task)


class XMiniGridTask(JaxTask):
    """An environment of XLand-MiniGrid, without a wrapper that resets it; see `JaxTask`.

    An observation `[size, size, 2]` uint8 has the tile and the color of each field that the agent sees. An episode
    starts as `env.reset(params, key)` does. It is terminated at the goal, and truncated after `max_steps`.
    """

    can_render = True
    render_fps = 5.0

    def __init__(self, env: Any, params: Any, name: str):
        self.env, self.params, self.name = env, params, f"XLand-MiniGrid's {name}"
        constants = xminigrid_module("xminigrid.core.constants")
        highest = np.array([constants.NUM_TILES - 1, constants.NUM_COLORS - 1], np.uint8)
        shape = env.observation_shape(params)
        self.observation_space = spaces.Box(np.zeros(shape, np.uint8), np.broadcast_to(highest, shape), dtype=np.uint8)
        self.action_space = spaces.Discrete(env.num_actions(params), dtype=np.int32)

    def start(self, key: Array) -> tuple[Tree, Tree]:
        timestep = self.env.reset(self.params, key)
        return timestep, timestep.observation

    def step(self, state: Tree, action: Tree) -> JaxStep:
        timestep = self.env.step(self.params, state, action)
        terminated = timestep.last() & (timestep.discount == 0)
        truncated = timestep.last() & ~terminated
        return JaxStep(timestep, timestep.observation, timestep.reward, terminated, truncated, {})

    def draw(self, state: Tree) -> np.ndarray:
        """Draws the grid, in squares of 32 pixels; what the agent sees is lighter."""
        return self.env.render(self.params.replace(render_mode="rgb_array"), state)
