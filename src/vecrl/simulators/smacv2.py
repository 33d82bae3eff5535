"""SMACv2's battles of StarCraft II, as environments of several agents.

All units of a team act in every step and get the reward of the team. A unit that died may only do nothing. This module
imports smacv2 when a game is started, and must not know any dialect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from ..engine.space_layout import AnySpace
from ..errors import SpaceError
from ..imports import import_library
from ..seeding import random_seed
from .agents import AgentsEnv, ByAgent

ACTION_MASK = "action_mask"
INFO_DTYPES = {"battle_won": np.bool_, "episode_limit": np.bool_, "dead_allies": np.int64, "dead_enemies": np.int64}
_INSTALL_HINT = (
    "smacv2 is not installed: pip install git+https://github.com/oxwhirl/smacv2.git, and StarCraft II with SMAC's maps "
    "(SC2PATH), as its page says. It needs protobuf<3.21, so a separate environment is best"
)


@contextmanager
def shuffle_with_function() -> Iterator[None]:
    """Lets `random.shuffle` take a second argument, as it did before Python 3.11 and as PySC2 needs for its import."""
    shuffle = random.shuffle

    def shuffle_by(x: MutableSequence[Any], function: Callable[[], float] | None = None) -> None:
        if function is None:
            shuffle(x)
            return
        for i in reversed(range(1, len(x))):
            j = int(function() * (i + 1))
            x[i], x[j] = x[j], x[i]

    random.shuffle = shuffle_by  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        random.shuffle = shuffle


def library(module: str = "env") -> Any:
    """Imports a module of smacv2.

    Raises:
        ImportError: smacv2 is not installed; the message says how to install it.
    """
    with shuffle_with_function():
        return import_library(f"smacv2.{module}", _INSTALL_HINT)


class SmacAgents:
    """The units of one team in a battle; a `vecrl.simulators.agents.ParallelAgents`.

    Agents are named "0", "1" … Observations are float32 `[k]`, actions are numbers. Every agent gets the team's reward.
    Infos hold "action_mask" `[actions]` bool. The time limit truncates.

    Args:
        env: a `smacv2.env.StarCraft2Env`, or an object with its methods.
        restart: a function of a seed that returns a new game in place of `env`. StarCraft II takes a seed at its start
            only, so without this function seeds are refused.

    Attributes:
        env: the current game.
        last_info: the info of the last step, complete, with zeros after a reset.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(self, env: Any, restart: Callable[[int], Any] | None = None, render_mode: str | None = None):
        self.env = env
        self.render_mode = render_mode
        self._restart = restart
        info = env.get_env_info()
        self.possible_agents: Sequence[str] = [str(i) for i in range(info["n_agents"])]
        self.agents: Sequence[str] = []
        self._num_actions = int(info["n_actions"])
        self._obs_shape, self._state_shape = _shape(info["obs_shape"]), _shape(info["state_shape"])
        self.state_space = spaces.Box(-np.inf, np.inf, self._state_shape, np.float32)
        self.last_info = _complete({})

    def observation_space(self, agent: str) -> AnySpace:
        """Returns the observation space of an agent, the same for all."""
        return spaces.Box(-np.inf, np.inf, self._obs_shape, np.float32)

    def action_space(self, agent: str) -> AnySpace:
        """Returns the action space of an agent, the same for all."""
        return spaces.Discrete(self._num_actions)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        """Starts a battle; with a seed, in a new game.

        Raises:
            SpaceError: a seed is given for a game that was not started here.
        """
        if seed is not None:
            if self._restart is None:
                raise SpaceError(
                    f"Expected no seed for a game that is running already, got {seed}. StarCraft II takes a seed at "
                    "its start: give seed= to StarCraft2Env."
                )
            self.env.close()
            self.env = self._restart(seed % 2**31)
        self.env.reset()
        self.agents = list(self.possible_agents)
        self.last_info = _complete({})
        return self._observations(), self._infos()

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        """Steps all units."""
        reward, ended, info = self.env.step(np.array([actions[name] for name in self.possible_agents]))
        self.last_info = _complete(info)
        is_limit = ended and bool(self.last_info["episode_limit"])
        if ended:
            self.agents = []
        columns = [dict.fromkeys(self.possible_agents, value) for value in (reward, ended and not is_limit, is_limit)]
        return self._observations(), columns[0], columns[1], columns[2], self._infos()

    def state(self) -> np.ndarray:
        """Returns what is known of all units, `[k]` float32."""
        return np.asarray(self.env.get_state(), np.float32)

    def render(self) -> Any:
        """Returns a frame with the render mode "rgb_array", else None."""
        return None if self.render_mode is None else self.env.render(self.render_mode)

    def close(self) -> None:
        """Ends the game."""
        self.env.close()

    def _observations(self) -> ByAgent:
        rows = self.env.get_obs()
        return {name: np.asarray(row, np.float32) for name, row in zip(self.possible_agents, rows, strict=True)}

    def _infos(self) -> ByAgent:
        rows = self.env.get_avail_actions()
        masks = (np.asarray(row, np.bool_) for row in rows)
        return {name: {ACTION_MASK: mask} for name, mask in zip(self.possible_agents, masks, strict=True)}


class SmacEnv(AgentsEnv):
    """A battle as one gymnasium environment; see `AgentsEnv`. The reward is the team's, and the info has SMACv2's keys
    too ("battle_won", "dead_allies", "dead_enemies", "episode_limit")."""

    def __init__(self, agents: SmacAgents):
        super().__init__(agents)

    def _reward(self, rewards: ByAgent) -> float:
        return float(rewards[self._names[0]])

    def _info(self, rewards: ByAgent, infos: ByAgent) -> dict[str, Any]:
        return {**super()._info(rewards, infos), **self.agents_env.last_info}


def start_agents(
    map_name: str,
    capability_config: dict[str, Any] | None = None,
    *,
    seed: int | None = None,
    render_mode: str | None = None,
    **kwargs: Any,
) -> SmacAgents:
    """Starts a game of StarCraft II.

    Args:
        map_name: of a map of SMAC ("3m"), or of SMACv2 ("10gen_terran"), which needs a `capability_config`.
        capability_config: the distributions of units and places.
        seed: of the game; None for a random one.
        render_mode: None or "rgb_array".
        kwargs: further arguments of `smacv2.env.StarCraft2Env`.

    Raises:
        ImportError: smacv2 is not installed.
    """
    if capability_config is None:
        game_class = library().StarCraft2Env
    else:
        game_class = library("env.starcraft2.wrapper").StarCraftCapabilityEnvWrapper
        kwargs["capability_config"] = capability_config
    start = partial(_start, game_class, map_name=map_name, **kwargs)
    first_seed = random_seed() if seed is None else seed
    return SmacAgents(start(first_seed % 2**31), start, render_mode)


def _start(game_class: Any, seed: int, **kwargs: Any) -> Any:
    return game_class(seed=seed, **kwargs)


def _shape(size: Any) -> tuple[int, ...]:
    return (int(size),) if np.ndim(size) == 0 else tuple(map(int, size))


def _complete(info: dict[str, Any]) -> dict[str, Any]:
    """Returns an info with all keys; those that the game did not return are zeros."""
    return {key: dtype(info.get(key, 0)) for key, dtype in INFO_DTYPES.items()}


def env_fn(name: str, **kwargs: Any) -> Callable[[], SmacEnv]:
    """Returns a function that starts a game on the map `name`; see `start_agents` for the arguments."""
    return partial(_make_env, name, kwargs)


def _make_env(name: str, kwargs: dict[str, Any]) -> SmacEnv:
    return SmacEnv(start_agents(name, **kwargs))


def names() -> list[str]:
    """Returns the names of SMACv2's maps.

    Raises:
        ImportError: smacv2 is not installed.
    """
    return list(library("env.starcraft2.maps.smac_maps").get_smac_map_registry())
