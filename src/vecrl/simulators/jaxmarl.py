"""Adapts JaxMARL's environments of several agents, written in JAX, to a `BatchSimulator` of torch tensors."""

from __future__ import annotations

import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.simulator import Array
from ..engine.space_layout import AnySpace, Tree
from ..registries import check_name
from .batch_adapter import named_infos
from .gymnax import STEP_KEYS
from .jax_library import figure_frame, jax_library, space_of
from .jax_simulator import JaxStep, JaxTask, make_jax_batch

FAMILIES = "MPE_", "SMAX", "HeuristicEnemySMAX", "hanabi", "overcooked", "coin_game", "jaxnav", "switch_riddle"
MASKS = {"SMAX": "get_avail_actions", "HeuristicEnemySMAX": "get_avail_actions", "hanabi": "get_legal_moves"}


def jaxmarl_module(module: str) -> Any:
    """Imports and returns a module of JaxMARL, which prints, and sets the streams; raises ImportError as `names`."""
    with redirect_stdout(sys.stderr), redirect_stderr(sys.stderr):  # sets them back
        return jax_library(module, "JaxMARL", "jaxmarl")


def names() -> list[str]:
    """Returns the names of the environments that need no other package; raises ImportError without JaxMARL."""
    return sorted(name for name in jaxmarl_module("jaxmarl").registered_envs if name.startswith(FAMILIES))


def make_task(name: str, **kwargs: Any) -> JaxMarlTask:
    """Makes an environment by its name.

    Args:
        name: of the environment ("MPE_simple_spread_v3", "HeuristicEnemySMAX", "hanabi", …).
        kwargs: arguments of the environment's constructor (`max_steps=…`, `num_agents=…`).
    """
    check_name("an environment of JaxMARL", name, names())
    return JaxMarlTask(jaxmarl_module("jaxmarl").make(name, **kwargs), name)


make_batch = partial(make_jax_batch, make_task)


class JaxMarlTask(JaxTask):
    """An environment of JaxMARL; see `JaxTask`.

    Observations and actions are dicts with an entry per agent. In SMAX and Hanabi, what an agent observes is a dict of
    "observation" and "action_mask" `[actions]` bool; SMAX adds the entry "world_state". The reward is the sum over the
    agents. The info has "AGENT/reward" of each agent, and the infos of JaxMARL, with names as "a/b".

    JaxMARL does not say why episodes end: at the time limit `max_steps` they are truncated, and otherwise terminated.
    An episode starts as `env.reset(key)` does. The keys of its steps are split from `fold_in(key, STEP_KEYS)`.
    """

    def __init__(self, env: Any, name: str):
        self.env, self.name = env, f"JaxMARL's {name}"
        self.can_render = name.startswith("MPE_")
        self._masks = getattr(env, MASKS[name]) if name in MASKS else None
        self._limit = getattr(env, "max_steps", np.iinfo(np.int32).max)
        self.observation_space = space_of(self.start_shapes[1])
        self.action_space = spaces.Dict({agent: _action_space(env.action_space(agent)) for agent in env.agents})

    def start(self, key: Array) -> tuple[Tree, Tree]:
        import jax

        obs, state = self.env.reset(key)
        return (state, jax.random.fold_in(key, STEP_KEYS), np.int32(0)), self._observe(obs, state)

    def step(self, state: Tree, action: Tree) -> JaxStep:
        import jax

        before, key, steps = state
        key, step_key = jax.random.split(key)
        obs, after, rewards, dones, infos = self.env.step_env(step_key, before, action)
        rewards = {agent: jax.numpy.float32(rewards[agent]) for agent in self.env.agents}
        truncated = dones["__all__"] & (steps + 1 >= self._limit)
        info = {f"{agent}/reward": reward for agent, reward in rewards.items()} | dict(named_infos(infos))
        flags = dones["__all__"] & ~truncated, truncated
        return JaxStep((after, key, steps + 1), self._observe(obs, after), sum(rewards.values()), *flags, info)

    def draw(self, state: Tree) -> np.ndarray:
        """Draws with matplotlib; only MPE can."""
        visualizer = jaxmarl_module("jaxmarl.environments.mpe.mpe_visualizer").MPEVisualizer
        with redirect_stdout(None):  # it prints whether agents communicate
            return figure_frame(visualizer, self.env, [state[0]])

    def _observe(self, obs: Any, state: Any) -> Tree:
        if self._masks is None:
            return {agent: obs[agent] for agent in self.env.agents}
        masks = {agent: mask.astype(bool) for agent, mask in self._masks(state).items()}
        return obs | {agent: {"observation": obs[agent], "action_mask": mask} for agent, mask in masks.items()}


def _action_space(space: Any) -> AnySpace:
    return space_of(space, np.int32 if hasattr(space, "n") else None)  # some are uint32
