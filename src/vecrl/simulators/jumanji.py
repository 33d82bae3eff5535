"""Adapts Jumanji's environments, written in JAX, to a `BatchSimulator` of torch tensors.

Observations are nested as in Jumanji, with dicts instead of named tuples. `Sokoban-v0` downloads its levels when it is
made; all others need no network.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..registries import check_name
from .jax_library import as_dicts, figure_frame, jax_library, space_of
from .jax_simulator import JaxStep, JaxTask, make_jax_batch

jumanji_module = partial(jax_library, "jumanji", "Jumanji", "jumanji")


def names() -> list[str]:
    """Returns the names of all environments; raises ImportError if Jumanji is not installed."""
    return sorted(jumanji_module().registered_environments())


def make_task(name: str, **kwargs: Any) -> JumanjiTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("Snake-v1", …).
        kwargs: arguments of the environment's constructor (`generator=…`, `time_limit=…`).
    """
    check_name("an environment of Jumanji", name, names())
    return JumanjiTask(jumanji_module().make(name, **kwargs), name)


make_batch = partial(make_jax_batch, make_task)


class JumanjiTask(JaxTask):
    """An environment of Jumanji, without a wrapper that resets it; see `JaxTask`.

    The reward of an environment with one reward per agent is their sum; the info `vector_reward` has all of them. An
    episode is terminated if its discount is zero for all agents at its end, and otherwise truncated.
    """

    can_render = True
    render_fps = 5.0

    def __init__(self, env: Any, name: str | None = None):
        self.env = env
        self.name = f"Jumanji's {name or type(env).__name__}"
        self.observation_space = space_of(env.observation_spec)
        self.action_space = space_of(env.action_spec)
        self._has_vector_reward = bool(env.reward_spec.shape)

    def start(self, key: Array) -> tuple[Tree, Tree]:
        state, timestep = self.env.reset(key)
        return state, as_dicts(timestep.observation)

    def step(self, state: Tree, action: Tree) -> JaxStep:
        state, timestep = self.env.step(state, action)
        terminated = timestep.last() & (timestep.discount == 0).all()
        truncated = timestep.last() & ~terminated
        info = dict(timestep.extras or {})
        if self._has_vector_reward:
            info["vector_reward"] = timestep.reward
        return JaxStep(state, as_dicts(timestep.observation), timestep.reward.sum(), terminated, truncated, info)

    def draw(self, state: Tree) -> np.ndarray:
        """Draws with matplotlib; most frames are 1000 pixels wide and high."""
        return figure_frame(self.env.render, state)

    def close(self) -> None:
        self.env.close()
