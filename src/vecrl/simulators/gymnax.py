"""Adapts gymnax's environments, written in JAX, to a `BatchSimulator` of torch tensors.

The functions that reset and step without an auto-reset are used, and time limits are truncations. `MNISTBandit-bsuite`
downloads its images when it is made; all others need no network.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.simulator import Array
from ..engine.space_layout import AnySpace, Tree
from ..imports import import_library
from ..registries import check_name
from .jax_simulator import JaxStep, JaxTask, make_jax_batch, unbounded_space

INSTALL_HINT = 'gymnax is not installed: pip install "vecrl[gymnax]"'
WRONG_BOUNDS = "GaussianBandit-misc", "MemoryChain-bsuite"  # their observations leave the bounds that gymnax declares
STEP_KEYS = 0x7FFFFFFE  # folded into a row's key to derive the keys of its steps


def names() -> list[str]:
    """Returns the names of all environments; raises ImportError if gymnax is not installed."""
    return sorted(import_library("gymnax", INSTALL_HINT).registered_envs)


def make_task(name: str, params: Mapping[str, Any] | None = None, **kwargs: Any) -> GymnaxTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("CartPole-v1", …).
        params: values that replace fields of the environment's default parameters.
        kwargs: arguments of the environment's constructor.

    Raises:
        VersionError: gymnax is not installed.
        ValueError: there is no environment of this name.
    """
    check_name("an environment of gymnax", name, names())
    env, default_params = import_library("gymnax", INSTALL_HINT).make(name, **kwargs)
    return GymnaxTask(env, default_params.replace(**(params or {})), f"gymnax's {name}")


make_batch = partial(make_jax_batch, make_task)


class GymnaxTask(JaxTask):
    """An environment with gymnax's interface; see `JaxTask`.

    An episode starts as `env.reset_env(key, params)` does. The keys of its steps are derived from the same key.

    Args:
        env: the environment.
        params: its parameters.
        name: its name, for messages.
    """

    def __init__(self, env: Any, params: Any, name: str):
        self.env, self.params, self.name = env, params, name
        self.can_render = hasattr(env, "render")
        obs = self.start_shapes[1]
        is_bounded = env.name not in WRONG_BOUNDS
        self.observation_space = (
            space_of(env.observation_space(params), obs.dtype) if is_bounded else unbounded_space(obs)
        )
        action_space = env.action_space(params)
        self.action_space = space_of(action_space, action_space.dtype)

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
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
        self.env.render(state[0], self.params)
        figure = pyplot.gcf()
        figure.canvas.draw()
        frame = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
        pyplot.close(figure)
        return frame


def space_of(space: Any, dtype: Any) -> AnySpace:
    """Returns the gymnasium space of a gymnax space, with the dtype that its elements have."""
    dtype = np.dtype(dtype)
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n), dtype=dtype.type)
    low, high = (np.broadcast_to(np.asarray(bound), space.shape).astype(dtype) for bound in (space.low, space.high))
    return spaces.Box(low, high, space.shape, dtype.type)
