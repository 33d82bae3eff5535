"""Adapts Brax, with batched environments on a device of JAX, to a `BatchSimulator` of torch tensors.

Brax's own auto-reset is not used: it loses final observations, and starts every episode of a row in the same state.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..errors import SpaceError
from ..imports import import_library
from ..registries import check_name
from .jax_library import space_of
from .jax_simulator import JaxStep, JaxTask, make_jax_batch
from .mujoco_frames import FRAME, MujocoFrames

INSTALL_HINTS = {
    False: 'Brax is not installed: pip install "vecrl[brax]"',
    True: "brax.v1 (requested by `old::`) is not installed. Brax 0.12.3 is the last release that contains it, and "
    'needs an older JAX than newer releases: pip install "vecrl[brax-v1]" in a separate environment',
}


def brax_envs(old: bool = False) -> ModuleType:
    """Imports the module `brax.envs`, or `brax.v1.envs` if `old`.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    return import_library("brax.v1.envs" if old else "brax.envs", INSTALL_HINTS[old])


def names(old: bool = False) -> list[str]:
    """Returns the names of the environments of Brax, or of brax.v1 if `old`.

    Raises:
        ImportError: as `brax_envs`.
    """
    return sorted(brax_envs(old)._envs)  # Brax has no public list


def make_task(
    name: str, *, old: bool = False, episode_length: int | None = 1000, action_repeat: int = 1, **kwargs: Any
) -> BraxTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("ant", "inverted_pendulum", …).
        old: take the environment from `brax.v1`.
        episode_length: steps until an episode is truncated; None for no limit.
        action_repeat: the number of physics steps of Brax per step.
        kwargs: further arguments of the environment's constructor (`backend=...`).

    Raises:
        ImportError: Brax (or brax.v1) is not installed; the message names the extra.
        ValueError: there is no environment of this name.
        SpaceError: observations are not one vector.
    """
    envs = brax_envs(old)
    check_name("a Brax environment", name, envs._envs)
    env = envs.create(name, episode_length=episode_length, action_repeat=action_repeat, auto_reset=False, **kwargs)
    return BraxTask(env, f"Brax's {name}", old)


make_batch = partial(make_jax_batch, make_task)


class BraxTask(JaxTask):
    """An environment of Brax, or of brax.v1 if `old`; see `JaxTask`. Infos of steps are its metrics.

    The newest Brax renders with MuJoCo, which without a display needs the environment variable MUJOCO_GL=egl; brax.v1
    renders in software.

    Args:
        env: the environment, without auto-reset.
        name: its name, for messages.
        old: whether it is one of brax.v1.
    """

    def __init__(self, env: Any, name: str, old: bool = False):
        self.env, self.name, self.old = env, name, old
        self._system: Any = getattr(env.unwrapped, "sys", None)  # the test environment "fast" has none
        self.can_render = hasattr(self._system, "config" if old else "mj_model")
        self.render_fps = self._frames_per_second()
        self.frames = None if old or not self.can_render else MujocoFrames(self._system.mj_model)
        obs = self.start_shapes[1]
        if not hasattr(obs, "shape") or len(obs.shape) != 1:
            raise SpaceError(f"Expected observations of {name} to be one vector, got {obs}.")
        self.observation_space = space_of(obs)
        self.action_space = self._action_space()

    def start(self, key: Array) -> tuple[Tree, Tree]:
        state = self.env.reset(key)
        return state, state.obs

    def step(self, state: Tree, action: Tree) -> JaxStep:
        import jax.numpy as jnp

        state = self.env.step(state, action)
        truncated = state.info.get("truncation", jnp.zeros_like(state.done)) > 0.5
        terminated = (state.done > 0.5) & ~truncated
        return JaxStep(state, state.obs, state.reward, terminated, truncated, state.metrics)

    def draw(self, state: Tree) -> np.ndarray:
        if self.frames is None:
            return self._draw_old(state)
        return self.frames.draw(state.pipeline_state.q, state.pipeline_state.qd)

    def _action_space(self) -> Box:
        actuator = getattr(self._system, "actuator", None)
        if actuator is None:
            return Box(-1.0, 1.0, (self.env.action_size,), np.float32)
        low, high = np.asarray(actuator.ctrl_range, np.float32).T
        return Box(low.copy(), high.copy(), dtype=np.float32)

    def _frames_per_second(self) -> float:
        if self._system is None:
            return 50.0
        dt = self._system.config.dt if hasattr(self._system, "config") else float(self.env.unwrapped.dt)
        return round(1 / dt, 3)

    def _draw_old(self, state: Tree) -> np.ndarray:
        import jax
        from brax.v1.io import image

        body = jax.tree_util.tree_map(np.asarray, state.qp)
        return image.render_array(self._system, body, width=FRAME[1], height=FRAME[0])
