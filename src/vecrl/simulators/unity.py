"""Unity builds with ML-Agents, as environments of several agents.

An agent of vecrl is a place of a behavior. Unity gives an agent a new id in every episode, and the place is given to
the next id. Agents end at different steps, and ask for decisions in some steps only; between these, they keep their
last observation. This module imports ML-Agents when a player is started, and must not know any dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.space_layout import AnySpace
from ..errors import SpaceError, VecrlError
from ..imports import import_library
from ..seeding import random_seed
from .agents import AgentsEnv, ByAgent, as_gym, zeros_in

ACTION_MASK = "action_mask"
CONTINUOUS, DISCRETE = "continuous_action", "discrete_action"
_INSTALL_HINT = (
    'ML-Agents is not installed: pip install "vecrl[unity]", then '
    "pip install --ignore-requires-python --no-deps mlagents-envs==1.1.0. It needs protobuf<3.21, so a separate "
    "environment is best"
)


def player_module() -> Any:
    """Imports `vecrl.simulators.unity_player`.

    Raises:
        ImportError: ML-Agents is not installed, or does not fit the installed protobuf.
    """
    return import_library(f"{__package__}.unity_player", _INSTALL_HINT)


@contextmanager
def explained_errors(env: Any) -> Iterator[None]:
    """Raises ML-Agents' exceptions as a TimeoutError or a ConnectionError, after the player was ended.

    Messages that are damaged make ML-Agents, and the code that reads them, raise any exception.
    """
    from mlagents_envs.exception import UnityException, UnityTimeOutException

    try:
        yield
    except VecrlError:
        raise
    except Exception as error:
        if env is not None:
            env._close(0)
        if not isinstance(error, UnityException):
            raise ConnectionError(
                f"Expected messages of ML-Agents from the Unity player, got {type(error).__name__}: {error!s:.200}. "
                "Use a build with the version of ML-Agents that is installed."
            ) from error
        if isinstance(error, UnityTimeOutException):
            raise TimeoutError(
                f"Expected a reply of the Unity player, got {error}. Give a longer timeout, or no_graphics=True on a "
                "machine without a screen."
            ) from error
        raise ConnectionError(f"Expected a running Unity player, got: {error} Its log may say why.") from error


@dataclass(slots=True)
class Agent:
    """The place of an agent in a behavior, and what its current episode has sent last.

    Attributes:
        behavior: the name of its behavior.
        group_id: Unity's number of its group.
        id: Unity's id of its episode; None between two episodes.
        alive: whether the caller plays its episode.
        acts: whether it has asked for a decision.
        observation: its last observation, with the action mask if it has one.
    """

    behavior: str
    group_id: int
    id: int | None = None
    alive: bool = False
    acts: bool = False
    observation: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """What a step gives to an agent; `final_observation` is None while the episode runs."""

    reward: float = 0.0
    group_reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_observation: dict[str, np.ndarray] | None = None


class UnityAgents:
    """The agents of a Unity player; a `vecrl.simulators.agents.ParallelAgents`.

    Agents are named "agent_0", "agent_1" … in the order of their behaviors and ids after the first reset. Observations
    are dicts with one float32 array for each sensor, by the sensor's name, and, with discrete actions, "action_mask"
    `[sum of options]` int8, 1 for allowed options. Actions are float32 `[k]` from -1 to 1, int32 `[branches]`, or a
    dict of both ("continuous_action", "discrete_action"). Infos hold "group_reward".

    Unity's reset begins episodes of all agents. An agent that ends leaves `agents` until then, or until `revive`,
    although Unity begins its next episode at once.

    Args:
        env: a `mlagents_envs.environment.UnityEnvironment`.
        restart: a function of a seed that returns a new player in place of `env`. Unity takes a seed at its start only,
            so without this function seeds are refused.

    Attributes:
        env: the current player.
        members: the agents, by name.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    render_mode = None

    def __init__(self, env: Any, restart: Callable[[int], Any] | None = None):
        self.env = env
        self._restart = restart
        with explained_errors(env):
            env.reset()
            self._find_agents(env)
        if not self.members:
            self.close()
            raise SpaceError("Expected agents that ask for a decision after a reset, got none from the Unity player.")
        self.possible_agents = list(self.members)
        with explained_errors(env):
            self._begin()

    def _find_agents(self, env: Any) -> None:
        self._spaces = {behavior: _spaces_of(spec) for behavior, spec in env.behavior_specs.items()}
        self.members: dict[str, Agent] = {}
        for behavior in env.behavior_specs:
            decisions, _ = env.get_steps(behavior)
            for agent_id in sorted(map(int, decisions.agent_id)):
                agent = Agent(behavior, int(decisions[agent_id].group_id))
                self.members[f"agent_{len(self.members)}"] = agent

    # -- the parallel interface

    @property
    def takes_seeds(self) -> bool:
        """Whether `reset` takes a seed."""
        return self._restart is not None

    @property
    def agents(self) -> list[str]:
        """The agents with a running episode."""
        return [name for name, agent in self.members.items() if agent.alive]

    @property
    def acting(self) -> list[str]:
        """Those of `agents` that have asked for a decision."""
        return [name for name, agent in self.members.items() if agent.alive and agent.acts]

    def observation_space(self, agent: str) -> spaces.Dict:
        """Returns the observation space of an agent."""
        return self._spaces[self.members[agent].behavior][0]

    def action_space(self, agent: str) -> AnySpace:
        """Returns the action space of an agent."""
        return self._spaces[self.members[agent].behavior][1]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        """Begins episodes of all agents; with a seed, in a new player.

        Raises:
            SpaceError: a seed is given for a player that was not started here.
            ConnectionError, TimeoutError: the player has ended, or sent no reply.
        """
        if seed is not None:
            if self._restart is None:
                raise SpaceError(
                    f"Expected no seed for a player that is running already, got {seed}. Unity takes a seed at its "
                    "start: give seed= to UnityEnvironment."
                )
            self.close()
            self.env = self._restart(seed % 2**31)
        with explained_errors(self.env):
            self.env.reset()
            self._begin()
        return {name: self.members[name].observation for name in self.agents}, self._infos({})

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps the player until an agent acts again, or none is left.

        Args:
            actions: of the agents in `acting`; others do nothing.

        Raises:
            ConnectionError, TimeoutError: the player has ended, or sent no reply.
        """
        results = {name: Result() for name in self.agents}
        with explained_errors(self.env):
            self._exchange(actions, results)
            while self.agents and not self.acting:
                self._exchange({}, results)
        observations = {
            name: self.members[name].observation if result.final_observation is None else result.final_observation
            for name, result in results.items()
        }
        rewards, terminations, truncations = (
            {name: getattr(result, key) for name, result in results.items()} for key in _COLUMNS
        )
        return observations, rewards, terminations, truncations, self._infos(results)

    def revive(self, names: Sequence[str]) -> ByAgent:
        """Lets agents that ended play the episodes that Unity started for them, and returns first observations.

        The observation is zeros until the agent asks for its first decision.
        """
        for name in names:
            self.members[name].alive = True
        return {name: self.members[name].observation for name in names}

    def render(self) -> None:
        """Returns None, since players render into windows of their own."""

    def close(self) -> None:
        """Ends the player. A second call does nothing."""
        if self.env._loaded:  # ML-Agents refuses a second close
            self.env.close()

    def _infos(self, results: dict[str, Result]) -> ByAgent:
        names = results or self.agents
        return {name: {"group_reward": results[name].group_reward if results else 0.0} for name in names}

    # -- messages of the player

    def _begin(self) -> None:
        """Reads the first observations of all agents."""
        for agent in self.members.values():
            agent.id, agent.alive, agent.acts = None, False, False
            agent.observation = zeros_in(self._spaces[agent.behavior][0])
        for behavior in self.env.behavior_specs:
            for name, _ in self._read_decisions(behavior, self.env.get_steps(behavior)[0]):
                self.members[name].alive = True

    def _exchange(self, actions: ByAgent, results: dict[str, Result]) -> None:
        """Sends actions and reads the reply of the player into the agents and `results`."""
        env = self.env
        for behavior, spec in env.behavior_specs.items():
            env.set_actions(behavior, self._action_tuple(behavior, spec.action_spec, actions))
        env.step()
        for behavior in env.behavior_specs:
            decisions, ends = env.get_steps(behavior)
            # Ends are read first, since the ids of the next episodes are given to the places that they leave
            for name, step in (*self._read_ends(behavior, ends), *self._read_decisions(behavior, decisions)):
                result = results.get(name)
                if result is None or result.final_observation is not None:
                    continue  # of an episode that is not played
                result.reward += float(step.reward)
                result.group_reward += float(step.group_reward)
                if hasattr(step, "interrupted"):
                    result.truncated = bool(step.interrupted)
                    result.terminated = not result.truncated
                    result.final_observation = self._observe(behavior, step)
                    self.members[name].alive = False

    def _action_tuple(self, behavior: str, action_spec: Any, actions: ByAgent) -> Any:
        """Returns the actions of all agents of a behavior that asked for one; zeros for agents that are not played."""
        names = {agent.id: name for name, agent in self.members.items() if agent.behavior == behavior}
        ids = [int(agent_id) for agent_id in self.env.get_steps(behavior)[0].agent_id]
        result = action_spec.empty_action(len(ids))
        for row, agent_id in enumerate(ids):
            if names[agent_id] in actions and self.members[names[agent_id]].alive:
                action = actions[names[agent_id]]
                parts = action if isinstance(action, dict) else {CONTINUOUS: action, DISCRETE: action}
                if action_spec.continuous_size:
                    result.continuous[row] = parts[CONTINUOUS]
                if action_spec.discrete_size:
                    result.discrete[row] = parts[DISCRETE]
        return result

    def _read_ends(self, behavior: str, ends: Any) -> Iterator[tuple[str, Any]]:
        """Makes the places free of the agents that ended; returns their names and steps."""
        for agent_id in map(int, ends.agent_id):
            name = self._name_of(behavior, agent_id, int(ends[agent_id].group_id))
            agent = self.members[name]
            agent.id, agent.acts, agent.observation = None, False, zeros_in(self._spaces[behavior][0])
            yield name, ends[agent_id]

    def _read_decisions(self, behavior: str, decisions: Any) -> Iterator[tuple[str, Any]]:
        """Reads the observations of agents that ask for a decision; returns their names and steps."""
        for agent in self.members.values():
            agent.acts = agent.acts and agent.behavior != behavior
        for agent_id in map(int, decisions.agent_id):
            step = decisions[agent_id]
            name = self._name_of(behavior, agent_id, int(step.group_id))
            agent = self.members[name]
            agent.acts, agent.observation = True, self._observe(behavior, step)
            yield name, step

    def _name_of(self, behavior: str, agent_id: int, group_id: int) -> str:
        """Returns the agent that has this id; a new id is given to an agent of the same group without one."""
        found = {name: agent for name, agent in self.members.items() if agent.behavior == behavior}
        names = [name for name, agent in found.items() if agent.id == agent_id]
        names += [name for name, agent in found.items() if agent.id is None and agent.group_id == group_id]
        if not names:
            raise SpaceError(
                f"Expected at most {len(found)} agents of the behavior {behavior!r}, as after the first reset, got "
                "another. Let all agents of the build ask for a decision after a reset."
            )
        found[names[0]].id = agent_id
        return names[0]

    def _observe(self, behavior: str, step: Any) -> dict[str, np.ndarray]:
        space = self._spaces[behavior][0]
        arrays = dict(zip(_sensor_names(self.env.behavior_specs[behavior]), step.obs, strict=True))
        if ACTION_MASK in space.spaces:
            masked = getattr(step, ACTION_MASK, None)  # a last step has none; True for options that are not allowed
            size = space[ACTION_MASK].shape or ()
            arrays[ACTION_MASK] = (
                np.ones(size, np.int8) if masked is None else 1 - np.concatenate(masked).astype(np.int8)
            )
        return arrays


_COLUMNS = "reward", "terminated", "truncated"


def _spaces_of(spec: Any) -> tuple[spaces.Dict, AnySpace]:
    """Returns the observation space and the action space of the agents of a behavior."""
    parts: dict[str, Any] = {
        name: spaces.Box(-np.inf, np.inf, sensor.shape, np.float32)
        for name, sensor in zip(_sensor_names(spec), spec.observation_specs, strict=True)
    }
    actions: dict[str, AnySpace] = {}
    if spec.action_spec.continuous_size:
        actions[CONTINUOUS] = spaces.Box(-1, 1, (spec.action_spec.continuous_size,), np.float32)
    if spec.action_spec.discrete_size:
        branches = spec.action_spec.discrete_branches
        actions[DISCRETE] = spaces.MultiDiscrete(branches, np.int32)
        parts[ACTION_MASK] = spaces.MultiBinary(sum(branches))
    action_space = spaces.Dict(actions) if len(actions) > 1 else next(iter(actions.values()))
    return spaces.Dict(parts), action_space


def _sensor_names(spec: Any) -> list[str]:
    """Returns the names of the sensors of a behavior; a number is added to equal ones."""
    names = [sensor.name or "observation" for sensor in spec.observation_specs]
    return [
        name if sensor.name and names.count(name) == 1 else f"{name}_{i}"
        for i, (name, sensor) in enumerate(zip(names, spec.observation_specs, strict=True))
    ]


def start_agents(
    name: str | None, *, seed: int | None = None, registered: bool = False, timeout: float = 60, **kwargs: Any
) -> UnityAgents:
    """Starts a Unity player and returns its agents.

    Args:
        name: the path of a build, with or without its extension; None waits for the Unity editor.
        seed: of the player; None for a random one.
        registered: `name` is one of ML-Agents' registry, which is downloaded once.
        timeout: seconds to wait for a message of the player.
        kwargs: arguments of `mlagents_envs.environment.UnityEnvironment`: `no_graphics`, `side_channels`,
            `additional_args`, `base_port` (any free port by default), `log_folder`, `num_areas`.

    Raises:
        ImportError: ML-Agents is not installed.
        ConnectionError, TimeoutError: the build cannot be started, or sent no message.
    """
    module = player_module()
    path = module.registered_build(name) if registered else name
    start = partial(_start, module.UnityPlayer, path, timeout=timeout, **kwargs)
    first_seed = random_seed() if seed is None else seed
    return UnityAgents(start(first_seed % 2**31), start if name is not None else None)


def _start(player_class: Any, path: str | None, seed: int, **kwargs: Any) -> Any:
    with explained_errors(None):
        return player_class(path, seed=seed, **kwargs)


def env_fn(name: str, **kwargs: Any) -> Callable[[], AgentsEnv]:
    """Returns a function that starts the player `name`; see `start_agents` for the arguments."""
    return partial(_make_env, name, kwargs)


def _make_env(name: str, kwargs: dict[str, Any]) -> AgentsEnv:
    return as_gym(start_agents(name, **kwargs))


def names() -> list[str]:
    """Returns no names, since a name is the path of a build.

    Raises:
        ImportError: ML-Agents is not installed.
    """
    player_module()
    return []
