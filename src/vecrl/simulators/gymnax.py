"""Adapts gymnax's environments, written in JAX, to a `BatchSimulator` of torch tensors.

The functions that reset and step without an auto-reset are used, and time limits are truncations. `MNISTBandit-bsuite`
downloads its images when it is made; all others need no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..registries import check_name
from .jax_library import figure_frame, jax_library, space_of
from .jax_simulator import JaxStep, JaxTask, make_jax_batch

gymnax_module = partial(jax_library, "gymnax", "gymnax", "gymnax")
WRONG_BOUNDS = "GaussianBandit-misc", "MemoryChain-bsuite"  # their observations leave the bounds that gymnax declares
STEP_KEYS = 0x7FFFFFFE  # folded into a row's key to derive the keys of its steps


def names() -> list[str]:
    """Returns the names of all environments; raises ImportError if gymnax is not installed."""
    return sorted(gymnax_module().registered_envs)


def make_task(name: str, params: Mapping[str, Any] | None = None, **kwargs: Any) -> GymnaxTask:
    """Makes an environment by its name.

    Args:
        params: values that replace fields of the environment's default parameters.
        kwargs: arguments of the environment's constructor.
    """
    check_name("an environment of gymnax", name, names())
    env, default_params = gymnax_module().make(name, **kwargs)
    return GymnaxTask(env, default_params.replace(**(params or {})), f"gymnax's {name}")


make_batch = partial(make_jax_batch, make_task)


class GymnaxTask(JaxTask):
    """An environment with gymnax's interface, and its parameters; see `JaxTask`.

    An episode starts as `env.reset_env(key, params)` does. The keys of its steps are derived from the same key.
    """

    def __init__(self, env: Any, params: Any, name: str):
        self.env, self.params, self.name = env, params, name
        self.can_render = hasattr(env, "render")
        obs = self.start_shapes[1]
        self.observation_space = space_of(obs if env.name in WRONG_BOUNDS else env.observation_space(params), obs.dtype)
        self.action_space = space_of(env.action_space(params))

    def start(self, key: Array) -> tuple[Tree, Tree]:
        import jax

        obs, state = self.env.reset_env(key, self.params)
        return (state, jax.random.fold_in(key, STEP_KEYS)), obs

    def step(self, state: Tree, action: Tree) -> JaxStep:
        import jax

        env_state, key = state
        key, step_key = jax.random.split(key)
        obs, env_state, reward, done, info = self.env.step_env(step_key, env_state, action, self.params)
        terminated, truncated = self.end_flags(env_state, done)
        return JaxStep((env_state, key), obs, reward, terminated, truncated & ~terminated, info)

    def end_flags(self, state: Tree, done: Array) -> tuple[Array, Array]:
        """Returns whether the episode is terminated and whether its time is over, from the flag of `step_env`."""
        return done, self.env.is_truncated(state, self.params)

    def draw(self, state: Tree) -> np.ndarray:
        """Draws with matplotlib; only some environments can."""
        return figure_frame(self.env.render, state[0], self.params)
