"""Teams of robotic-warehouse (rware) and level-based foraging (lbforaging), which register with gymnasium.

Their observations, actions and rewards are tuples; here they are by agent, as in `vecrl.simulators.agents`. Both render
with pyglet, which needs a screen, or PYGLET_HEADLESS=1 and EGL. Worker processes import this module, so it must not
import torch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from ..engine.space_layout import AnySpace
from ..gym_interface import Env
from ..registries import check_name
from .agents import AgentsEnv, ByAgent
from .gymnasium.libraries import PLUGINS
from .gymnasium.libraries import names as names
from .gymnasium.make import apply_pixel_wrappers

_LIMITS = {"rware": "max_steps", "lbforaging": "_max_episode_steps"}  # attributes of environments
_RESETS = threading.Lock()  # rware counts the agents of a reset in attributes of classes


class Team:
    """The agents of an environment with tuples: "agent_0", "agent_1", …; see `vecrl.simulators.agents.ParallelAgents`.

    Args:
        env: an environment of rware or lbforaging.
        render_mode: None or "rgb_array".
    """

    def __init__(self, env: Any, render_mode: str | None = None):
        self.env, self.render_mode = env, render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.possible_agents = [f"agent_{index}" for index in range(len(env.action_space))]
        self.agents: Sequence[str] = ()

    def observation_space(self, agent: str) -> AnySpace:
        """Returns the space of an agent's observations."""
        return self.env.observation_space[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> AnySpace:
        """Returns the space of an agent's actions."""
        return self.env.action_space[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        """Starts an episode with all agents. With a seed, it depends on the seed and the actions only."""
        if seed is not None:  # forgets the last positions, which lbforaging would keep free
            for player in getattr(self.env.unwrapped, "players", ()):
                player.position = None
        with _RESETS:
            obs, _ = self.env.reset(seed=seed, options=options)
        self.agents = self.possible_agents
        return self._by_agent(obs), {}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps all agents, for which an episode ends at the same time."""
        joint = [np.asarray(actions[agent]) for agent in self.possible_agents]
        obs, rewards, terminated, truncated, _ = self.env.step([part if part.ndim else int(part) for part in joint])
        if terminated or truncated:
            self.agents = ()
        ends = (
            dict.fromkeys(self.possible_agents, bool(terminated)),
            dict.fromkeys(self.possible_agents, bool(truncated)),
        )
        return self._by_agent(obs), self._by_agent(rewards), *ends, {}

    def _by_agent(self, parts: Iterable[Any]) -> ByAgent:
        return dict(zip(self.possible_agents, parts, strict=True))

    def render(self) -> np.ndarray | None:
        """Renders a frame, uint8 `[height, width, 3]`; returns None without a render mode."""
        return None if self.render_mode is None else np.array(self.env.unwrapped.render(mode=self.render_mode))

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def make_team(
    name: str, library: str, render_mode: str | None = None, max_episode_steps: int | None = None, **kwargs: Any
) -> Team:
    """Makes a team by the name of its environment.

    Args:
        name: of the environment.
        library: "rware" or "lbforaging".
        render_mode: None or "rgb_array".
        max_episode_steps: after which an episode is truncated; by default the library's own limit, at which the library
            says that the episode is terminated.
        kwargs: of `gymnasium.make`.

    Raises:
        ImportError: the library is not installed; the message says how to install it.
        ValueError: the library has no environment of that name, or there is no such render mode.
    """
    check_name(f"an environment of {library}", name, names(library))
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"Expected render_mode to be None or 'rgb_array', got {render_mode!r}.")
    env: Any = gymnasium.make(name, disable_env_checker=True, **kwargs)
    own = getattr(env.unwrapped, _LIMITS[library])
    setattr(env.unwrapped, _LIMITS[library], sys.maxsize)
    limit = own if max_episode_steps is None else max_episode_steps
    return Team(gymnasium.wrappers.TimeLimit(env.unwrapped, limit) if limit else env, render_mode)


def _make_gym(
    name: str,
    library: str,
    *,
    from_pixels: bool = False,
    pixels_only: bool = True,
    frame_skip: int | None = None,
    **kwargs: Any,
) -> Env:
    PLUGINS[library].load()  # in a worker process, too
    if from_pixels:
        kwargs.setdefault("render_mode", "rgb_array")
    env = AgentsEnv(make_team(name, library, **kwargs))
    return apply_pixel_wrappers(env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip)


def env_fn(name: str, *, library: str, **kwargs: Any) -> Callable[[], Env]:
    """Returns a function that makes a team with gymnasium's interface.

    Args:
        name: of the environment, such as "rware-tiny-2ag-v2" or "Foraging-8x8-2p-1f-v3".
        library: "rware" or "lbforaging".
        kwargs: `from_pixels`, `pixels_only` and `frame_skip`, see `apply_pixel_wrappers`, and those of `make_team`.

    Raises:
        ImportError, ValueError: as `make_team`.
    """
    check_name(f"an environment of {library}", name, names(library))
    return partial(_make_gym, name, library, **kwargs)
