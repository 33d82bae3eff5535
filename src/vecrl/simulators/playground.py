"""Adapts MuJoCo Playground's environments, in JAX, to a `BatchSimulator` of torch tensors.

Environments of the DeepMind Control Suite need no network. The others download robots from MuJoCo Menagerie, with git,
when the first of them is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from ..engine.simulator import Array
from ..engine.space_layout import Tree
from ..registries import check_name
from .jax_library import jax_library, space_of
from .jax_simulator import JaxStep, JaxTask, make_jax_batch
from .mujoco_frames import MujocoFrames

playground_module = partial(jax_library, "mujoco_playground", "MuJoCo Playground", "playground")


def names() -> list[str]:
    """Returns the names of the environments that need no download, or of all if MuJoCo Menagerie is there."""
    playground = playground_module()
    menagerie = importlib.import_module("mujoco_playground._src.mjx_env").MENAGERIE_PATH
    return sorted(playground.registry.ALL_ENVS if menagerie.exists() else playground.dm_control_suite.ALL_ENVS)


def make_task(
    name: str, config: Any = None, config_overrides: Mapping[str, Any] | None = None, episode_length: int | None = None
) -> PlaygroundTask:
    """Makes an environment by its name.

    Args:
        config: its configuration; None for its default one.
        config_overrides: values that replace some of the configuration. Without a CUDA device, `impl` is "jax" unless
            this or `config` says otherwise: the default of many environments, "warp", needs such a device.
        episode_length: steps until an episode is truncated; None for that of the configuration.
    """
    import jax

    registry = playground_module().registry
    check_name("an environment of MuJoCo Playground", name, registry.ALL_ENVS)
    overrides = dict(config_overrides or {})
    if config is None:
        config = registry.get_default_config(name)
        if "impl" in config and jax.default_backend() == "cpu":
            overrides = {"impl": "jax"} | overrides
    env = registry.load(name, config=config, config_overrides=overrides)
    return PlaygroundTask(env, name, episode_length or int(config.episode_length))


make_batch = partial(make_jax_batch, make_task)


class PlaygroundTask(JaxTask):
    """An environment of MuJoCo Playground, without wrappers; see `JaxTask`.

    Observations are one vector or a dict of arrays. The state is Playground's, and the number of steps. Episodes of
    `episode_length` steps are truncated; None is no limit.
    """

    can_render = True

    def __init__(self, env: Any, name: str | None = None, episode_length: int | None = None):
        self.env, self.episode_length = env, episode_length
        self.name = f"Playground's {name or type(env).__name__}"
        self.render_fps = round(1 / env.dt, 3)
        self.frames = MujocoFrames(env.mj_model)
        self.observation_space = space_of(self.start_shapes[1])
        self.action_space = Box(-1.0, 1.0, (env.action_size,), np.float32)

    def start(self, key: Array) -> tuple[Tree, Tree]:
        state = self.env.reset(key)
        return (state, np.int32(0)), state.obs

    def step(self, state: Tree, action: Tree) -> JaxStep:
        env_state, steps = self.env.step(state[0], action), state[1] + 1
        terminated = env_state.done > 0.5
        truncated = ~terminated & (steps >= (self.episode_length or np.iinfo(np.int32).max))
        return JaxStep((env_state, steps), env_state.obs, env_state.reward, terminated, truncated, env_state.metrics)

    def draw(self, state: Tree) -> np.ndarray:
        data = state[0].data
        return self.frames.draw(data.qpos, data.qvel, data.mocap_pos, data.mocap_quat)
