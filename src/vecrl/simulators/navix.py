"""Adapts Navix's environments, which are MiniGrid's in JAX, to a `BatchSimulator` of torch tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..registries import check_name
from .jax_library import jax_library, space_of
from .jax_simulator import JaxStep, JaxTask, make_jax_batch

navix_module = partial(jax_library, "navix", "Navix", "navix")


def names() -> list[str]:
    """Returns the names of all environments; raises ImportError if Navix is not installed."""
    return sorted(navix_module().registry())


def make_task(name: str, **kwargs: Any) -> NavixTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("Navix-DoorKey-5x5-v0", …).
        kwargs: arguments of `navix.make` (`max_steps=…`, `observation_fn=navix.observations.rgb`, …).
    """
    check_name("an environment of Navix", name, names())
    return NavixTask(navix_module().make(name, **kwargs), name)


make_batch = partial(make_jax_batch, make_task)


class NavixTask(JaxTask):
    """An environment of Navix; see `JaxTask`.

    An episode starts as `env.reset(key)` does. Its steps are those of `env._step`, without the reset in `env.step`, and
    take random numbers from the state. The observation space has all values of its dtype, because observations leave
    the bounds that Navix declares.
    """

    can_render = True
    render_fps = 5.0

    def __init__(self, env: Any, name: str):
        self.env, self.name = env, f"Navix's {name}"
        self.observation_space = space_of(self.start_shapes[1])
        self.action_space = spaces.Discrete(int(env.action_space.n), dtype=np.int32)

    def start(self, key: Array) -> tuple[Tree, Tree]:
        timestep = self.env.reset(key)
        return timestep, timestep.observation

    def step(self, state: Tree, action: Tree) -> JaxStep:
        timestep = self.env._step(state, action)
        flags = timestep.is_termination(), timestep.is_truncation()
        return JaxStep(timestep, timestep.observation, timestep.reward, *flags, {})

    def draw(self, state: Tree) -> np.ndarray:
        """Draws the grid, in squares of 8 pixels."""
        return np.asarray(navix_module().observations.rgb(state.state))
