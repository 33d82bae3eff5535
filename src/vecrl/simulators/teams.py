"""Teams of robotic-warehouse (rware) and level-based foraging (lbforaging), which register with gymnasium.

Their observations, actions and rewards are tuples; here they are by agent, as in `vecrl.simulators.agents`. Both render
with pyglet, which needs a screen, or PYGLET_HEADLESS=1 and EGL. Worker processes import this module, so it must not
import torch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np

from ..engine.space_layout import AnySpace
from ..errors import PendingError, SpaceError
from ..gym_interface import Env
from .agents import AgentsEnv, ByAgent

FORAGING_LIMIT = "_max_episode_steps"
"""The attribute of environments of lbforaging with their time limit."""
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
        """Steps all agents, for which an episode ends at the same time.

        Raises:
            PendingError: there was no reset, or the episode has ended.
            SpaceError: an action is none of its agent's space.
        """
        if not self.agents:
            raise PendingError("Expected a running episode, got none. Call reset first.")
        joint = [np.asarray(actions[agent]) for agent in self.possible_agents]
        for agent, action in zip(self.possible_agents, joint, strict=True):
            if not self.action_space(agent).contains(action if action.ndim else action.item()):
                raise SpaceError(
                    f"Expected an action in {self.action_space(agent)} of {agent}, got {action.tolist()!r:.80}."
                )
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


def make_agents(
    name: str, limit: str, render_mode: str | None = None, max_episode_steps: int | None = None, **kwargs: Any
) -> Env:
    """Makes a team with gymnasium's interface, as a row of the table in `gymnasium.libraries` needs it.

    Args:
        name: of the environment.
        limit: the attribute with the library's own time limit, at which the library says that the episode is
            terminated.
        render_mode: None or "rgb_array".
        max_episode_steps: after which an episode is truncated; by default the library's own limit.
        kwargs: of `gymnasium.make`.

    Raises:
        ValueError: there is no such render mode.
    """
    env = gymnasium.make(name, **kwargs)
    return as_agents(env, limit, render_mode, max_episode_steps)


def as_agents(env: Any, limit: str, render_mode: str | None = None, max_episode_steps: int | None = None) -> AgentsEnv:
    """Returns a team that is made already with gymnasium's interface; see `make_agents`."""
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"Expected render_mode to be None or 'rgb_array', got {render_mode!r}.")
    steps = max_episode_steps
    if steps is None:  # the smaller one of the library's limit and that of `gymnasium.make`
        own, made = getattr(env.unwrapped, limit), env.spec and env.spec.max_episode_steps
        steps = min(own, made) if own and made else own or made
    setattr(env.unwrapped, limit, sys.maxsize)
    return AgentsEnv(Team(gymnasium.wrappers.TimeLimit(env.unwrapped, steps) if steps else env, render_mode))
