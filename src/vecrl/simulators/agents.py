"""Environments of several agents: one interface for all of them, and gymnasium's interface over it.

The interface is that of PettingZoo's parallel environments. Any object with these methods will do, since PettingZoo is
not imported here. `TurnBasedAgents` brings environments to it in which one agent acts at a time (PettingZoo's AEC
interface). Worker processes import this module, so it must not import torch or TensorDicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError

ByAgent = dict[str, Any]


class ParallelAgents(Protocol):
    """An environment of several agents that act at the same time.

    It may also have `acting`, the agents that act in the next step (all, without the attribute), and
    `state_space` and `state()`, for a state that all agents share.

    Attributes:
        possible_agents: the names of all agents.
        agents: those in the running episode; an agent that dies leaves.
    """

    @property
    def possible_agents(self) -> Sequence[str]: ...
    @property
    def agents(self) -> Sequence[str]: ...
    def observation_space(self, agent: str) -> AnySpace: ...
    def action_space(self, agent: str) -> AnySpace: ...
    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]: ...
    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]: ...
    def render(self) -> Any: ...
    def close(self) -> None: ...


class AgentFlags:
    """Which agents act next, and how the episodes of the others ended. An agent that left keeps its last flags.

    Args:
        env: the environment of the agents.
        done_on_any: whether the episode ends when the first agent is done, rather than the last one.

    Attributes:
        terminated, truncated: the flags of each agent.
        active: whether each agent is alive and acts in the next step.
    """

    def __init__(self, env: ParallelAgents, done_on_any: bool):
        self._env = env
        self._done_on_any = done_on_any
        self._begin()

    def _begin(self) -> None:
        agents = self._env.possible_agents
        self.terminated, self.truncated, self.active = (dict.fromkeys(agents, False) for _ in range(3))

    def reset(self) -> None:
        """Sets the flags after a reset of the environment: no agent is done."""
        self._begin()
        self._set_active()

    def update(self, terminations: Mapping[str, object], truncations: Mapping[str, object]) -> None:
        """Sets the flags of the agents that were in a step."""
        for flags, new in (self.terminated, terminations), (self.truncated, truncations):
            flags.update((agent, bool(flag)) for agent, flag in new.items() if agent in flags)
        self._set_active()

    def _set_active(self) -> None:
        acting = getattr(self._env, "acting", self._env.agents)
        self.active = {agent: agent in acting and not self.is_done(agent) for agent in self.terminated}

    def is_done(self, agent: str) -> bool:
        """Returns whether the episode of an agent has ended."""
        return self.terminated[agent] or self.truncated[agent]

    def of_episode(self) -> tuple[bool, bool]:
        """Returns "terminated" and "truncated" of the whole episode.

        With `done_on_any`, each is that of any agent. Otherwise the episode ends with the last agent, or when no agent
        is left; it is terminated if all agents were, else truncated.
        """
        if self._done_on_any:
            return any(self.terminated.values()), any(self.truncated.values())
        is_over = all(map(self.is_done, self.terminated)) or not self._env.agents
        terminated = all(self.terminated.values())
        return is_over and terminated, is_over and not terminated


def zeros_in(space: Any) -> Tree:
    """Returns zeros with the structure of a space; the nearest values, if its bounds exclude zeros.

    >>> zeros_in(spaces.Dict({"x": spaces.Box(1, 2, (2,)), "n": spaces.Discrete(3, start=-1)}))
    {'n': np.int64(-1), 'x': array([1., 1.], dtype=float32)}
    """
    if isinstance(space, spaces.Dict):
        return {name: zeros_in(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(zeros_in, space.spaces))
    if isinstance(space, spaces.Box):
        return np.zeros(space.shape, space.dtype).clip(space.low, space.high)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.start.copy() if isinstance(space.start, np.ndarray) else space.dtype.type(space.start)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    raise SpaceError(f"Expected agents that observe numbers, got the space {space}.")


class TurnBasedAgents:
    """An environment of agents that act in turns (PettingZoo's AEC interface), as `ParallelAgents`.

    A step takes the action of the agent in `acting`. The turns of agents that are done are skipped.

    Args:
        env: an environment with `agent_selection`, `observe`, `rewards`, `terminations`, `truncations` and `infos`.
    """

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents: Sequence[str] = env.possible_agents

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def observation_space(self, agent: str) -> AnySpace:
        """Returns the observation space of an agent."""
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> AnySpace:
        """Returns the action space of an agent."""
        return self.env.action_space(agent)

    def render(self) -> Any:
        """Returns what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    @property
    def agents(self) -> list[str]:
        """The agents that are not done."""
        return [agent for agent in self.env.agents if not self._is_done(agent)]

    @property
    def acting(self) -> list[str]:
        """The agent that acts in this turn; none if the episode has ended."""
        env = self.env
        return [env.agent_selection] if env.agents and not self._is_done(env.agent_selection) else []

    def _is_done(self, agent: str) -> bool:
        return bool(self.env.terminations.get(agent) or self.env.truncations.get(agent))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        """Resets the environment; returns the observations and infos of all agents."""
        self.env.reset(seed=seed, options=options)
        return self._observations(), dict(self.env.infos)

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Takes the turn of the agent in `acting`; returns what the agents got in it.

        Raises:
            SpaceError: the action of that agent is missing, or the episode has ended.
        """
        env = self.env
        if not self.acting or env.agent_selection not in actions:
            raise SpaceError(f"Expected the action of {self.acting or 'no agent'}, got those of {[*actions]}.")
        env.step(actions[env.agent_selection])
        results = self._observations(), dict(env.rewards), dict(env.terminations), dict(env.truncations)
        infos = dict(env.infos)
        while env.agents and self._is_done(env.agent_selection) and self.agents:
            env.step(None)
        return *results, infos

    def _observations(self) -> ByAgent:
        return {agent: self.env.observe(agent) for agent in self.env.agents}


class AgentsEnv(gymnasium.Env[Tree, Tree]):
    """An environment of several agents as one gymnasium environment, with dicts of observations and actions by agent.

    The reward of a step is the sum over all agents. Agents that have left observe zeros, and their actions are ignored.
    The info holds the dicts "rewards", "terminations", "truncations" and "active" (whether the agent acts in the next
    step), with a value for every agent, and "infos", with the agents' infos that are not empty.

    Args:
        agents_env: the environment of the agents, see `ParallelAgents`.
        done_on_any: whether the episode ends when the first agent is done, rather than the last one.
    """

    def __init__(self, agents_env: Any, done_on_any: bool = False):
        self.agents_env: Any = agents_env
        self.metadata = dict(getattr(agents_env, "metadata", None) or {})
        self.render_mode = getattr(agents_env, "render_mode", None)
        self._names = list(agents_env.possible_agents)
        self._flags = AgentFlags(agents_env, done_on_any)
        self._blank = {name: zeros_in(agents_env.observation_space(name)) for name in self._names}
        self.observation_space = self._combined_space([agents_env.observation_space(name) for name in self._names])
        self.action_space = self._combined_space([agents_env.action_space(name) for name in self._names])

    # -- what a subclass changes

    def _combined_space(self, agent_spaces: Sequence[AnySpace]) -> AnySpace:
        return spaces.Dict(dict(zip(self._names, agent_spaces, strict=True)))

    def _observation(self, observations: ByAgent) -> Tree:
        return {name: observations.get(name, blank) for name, blank in self._blank.items()}

    def _actions(self, action: Tree) -> ByAgent:
        return {name: _as_scalar(action[name]) for name, is_active in self._flags.active.items() if is_active}

    def _reward(self, rewards: ByAgent) -> float:
        return float(sum(rewards.values()))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "agents_env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.agents_env, name)

    # -- gymnasium's methods

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Resets the agents."""
        observations, infos = self.agents_env.reset(seed=seed, options=options)
        self._flags.reset()
        return self._observation(observations), self._info({}, infos)

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """Steps the agents that are active."""
        observations, rewards, terminations, truncations, infos = self.agents_env.step(self._actions(action))
        self._flags.update(terminations, truncations)
        reward = self._reward(rewards)  # before the observation, after which another agent may act
        return self._observation(observations), reward, *self._flags.of_episode(), self._info(rewards, infos)

    def _info(self, rewards: ByAgent, infos: ByAgent) -> dict[str, Any]:
        flags = self._flags
        info: dict[str, Any] = {
            "rewards": {name: float(rewards.get(name, 0)) for name in self._names},
            "terminations": dict(flags.terminated),
            "truncations": dict(flags.truncated),
            "active": dict(flags.active),
        }
        infos = {name: dict(part) for name, part in infos.items() if part}
        return {**info, "infos": infos} if infos else info

    def render(self) -> Any:
        """Returns what the agents' environment renders."""
        return self.agents_env.render()

    def close(self) -> None:
        """Closes the agents' environment."""
        self.agents_env.close()


class ActingAgentEnv(AgentsEnv):
    """An environment of agents that act in turns, as one gymnasium environment for the agent that acts.

    Observations are those of the agent that acts next (at the end of an episode, of the one that acted last), actions
    are its actions, and rewards are those that the acting agent got in its turn. The info has the rewards of all agents
    and says which one is active, see `AgentsEnv`.

    Raises:
        SpaceError: the agents have unlike spaces.
    """

    def __init__(self, agents_env: TurnBasedAgents, done_on_any: bool = False):
        super().__init__(agents_env, done_on_any)
        self._agent = self._names[0]

    def _combined_space(self, agent_spaces: Sequence[AnySpace]) -> AnySpace:
        first = agent_spaces[0]
        if any(space != first for space in agent_spaces):
            raise SpaceError(
                f"Expected equal spaces of all agents that act in turns, got {', '.join(map(str, agent_spaces))}. Let "
                "them act in parallel."
            )
        return first

    def _observation(self, observations: ByAgent) -> Tree:
        self._agent = next(iter(self.agents_env.acting), self._agent)
        return observations.get(self._agent, self._blank[self._agent])

    def _actions(self, action: Tree) -> ByAgent:
        return {self._agent: _as_scalar(action)}

    def _reward(self, rewards: ByAgent) -> float:
        return float(rewards.get(self._agent, 0))


def as_gym(agents_env: Any, done_on_any: bool = False) -> AgentsEnv:
    """Returns a gymnasium environment of several agents: `ActingAgentEnv` if they act in turns, else `AgentsEnv`."""
    cls = ActingAgentEnv if isinstance(agents_env, TurnBasedAgents) else AgentsEnv
    return cls(agents_env, done_on_any)


def _as_scalar(action: Tree) -> Tree:
    """Returns an array of no dimensions as a number, since some environments use actions as indices."""
    return action[()] if isinstance(action, np.ndarray) else action


def group_by_name(agents: Iterable[str]) -> dict[str, list[str]]:
    """Puts agents into one group if their names differ only in a number at the end.

    >>> group_by_name(["cat_0", "cat_1", "dog"])
    {'cat': ['cat_0', 'cat_1'], 'dog': ['dog']}
    """
    groups: dict[str, list[str]] = {}
    for agent in agents:
        name, _, number = agent.rpartition("_")
        groups.setdefault(name if name and number.isdecimal() else agent, []).append(agent)
    return groups
