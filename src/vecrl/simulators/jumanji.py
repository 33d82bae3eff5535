"""Adapts Jumanji's environments, written in JAX, to a `BatchSimulator` of torch tensors.

Observations are nested as in Jumanji, with dicts instead of named tuples. `Sokoban-v0` downloads its levels when it is
made; all others need no network.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.simulator import Array
from ..engine.space_layout import AnySpace, Tree
from ..imports import import_library
from ..registries import check_name
from .jax_simulator import JaxStep, JaxTask, make_jax_batch

INSTALL_HINT = 'Jumanji is not installed: pip install "vecrl[jumanji]"'


def jumanji_module() -> ModuleType:
    """Imports the module `jumanji`.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports modules that other packages have deprecated
        return import_library("jumanji", INSTALL_HINT)


def names() -> list[str]:
    """Returns the names of all environments; raises ImportError if Jumanji is not installed."""
    return sorted(jumanji_module().registered_environments())


def make_task(name: str, **kwargs: Any) -> JumanjiTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("Snake-v1", …).
        kwargs: arguments of the environment's constructor (`generator=…`, `time_limit=…`).

    Raises:
        VersionError: Jumanji is not installed.
        ValueError: there is no environment of this name.
    """
    check_name("an environment of Jumanji", name, names())
    return JumanjiTask(jumanji_module().make(name, **kwargs), name)


make_batch = partial(make_jax_batch, make_task)


class JumanjiTask(JaxTask):
    """An environment of Jumanji; see `JaxTask`.

    The reward of an environment with one reward per agent is their sum; the info `vector_reward` has all of them. An
    episode is terminated if its discount is zero for all agents at its end, and otherwise truncated.

    Args:
        env: the environment, without a wrapper that resets it.
        name: its name, for messages.
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
        viewer, frames = self._viewer(), list[np.ndarray]()
        # Viewers are made for a screen. Some do not return the image, so the function that gets the figure keeps it.
        viewer._display = lambda figure: frames.append(viewer._display_rgb_array(figure))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # matplotlib warns that its backend has no windows
            self.env.render(state)
        return frames[-1][..., :3].copy()

    def close(self) -> None:
        self.env.close()

    def _viewer(self) -> Any:
        """Returns the viewer, which is no argument of `jumanji.make`; environments name the attribute differently."""
        viewer: Any = importlib.import_module("jumanji.viewer")
        return next(value for value in vars(self.env.unwrapped).values() if isinstance(value, viewer.Viewer))


def space_of(spec: Any) -> AnySpace:
    """Returns the space of a Jumanji spec: `Dict` for a nested spec, and leaves of the spec's dtype.

    Arrays of bools are a `Box` from False to True. Arrays without bounds are a `Box` of all values of the dtype.
    """
    specs: Any = importlib.import_module("jumanji.specs")
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(int(spec.num_values), dtype=spec.dtype.type)
    if isinstance(spec, specs.MultiDiscreteArray):
        return spaces.MultiDiscrete(np.asarray(spec.num_values), dtype=spec.dtype.type)
    if not isinstance(spec, specs.Array):
        return spaces.Dict({key: space_of(value) for key, value in spec._specs.items()})
    low, high = _bounds(spec)
    return spaces.Box(low, high, spec.shape, spec.dtype.type)


def _bounds(spec: Any) -> tuple[Array, Array]:
    if hasattr(spec, "minimum"):
        low, high = (np.broadcast_to(np.asarray(bound), spec.shape) for bound in (spec.minimum, spec.maximum))
        return low.astype(spec.dtype), high.astype(spec.dtype)
    if np.issubdtype(spec.dtype, np.floating):
        return -np.inf, np.inf
    return (0, 1) if spec.dtype == bool else (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)


def as_dicts(tree: Any) -> Tree:
    """Returns an observation or a state with dicts in place of named tuples and dataclasses."""
    if hasattr(tree, "_asdict"):
        return {key: as_dicts(value) for key, value in tree._asdict().items()}
    if dataclasses.is_dataclass(tree):
        return {each.name: as_dicts(getattr(tree, each.name)) for each in dataclasses.fields(tree)}
    if isinstance(tree, Mapping):
        return {key: as_dicts(value) for key, value in tree.items()}
    return tree
