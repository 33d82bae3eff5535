"""Adapts Procgen's games to gymnasium's interface. This module must not know dialects, nor import torch.

Procgen begins the next episode in the step that ends one, so the observation of that step is already the first one of
the next episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from ..engine.simulator import ResetOptions
from ..engine.space_layout import Tree
from ..errors import SpaceError
from ..gym_interface import EnvReset, EnvStep
from ..imports import import_library
from ..registries import check_name
from ..seeding import random_seed

BUTTONS = 15  # combinations of buttons
FORCE_RESET = -1  # the action by which Procgen begins a new episode


def procgen_library() -> Any:
    """Imports the module `procgen.env` of the package procgen2, or of procgen.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    return import_library("procgen.env", 'Procgen is not installed: pip install "vecrl[procgen]"')


def names() -> list[str]:
    """Returns the names of the games.

    Raises:
        ImportError: Procgen is not installed.
    """
    return list(procgen_library().ENV_NAMES)


def env_fn(name: str, **kwargs: Any) -> Callable[[], ProcgenAdapter]:
    """Returns a picklable function that makes a `ProcgenAdapter`."""
    return partial(ProcgenAdapter, name, **kwargs)


def observation_space_of(channels_first: bool) -> Box:
    """Returns the space of frames `[64, 64, 3]`, or `[3, 64, 64]`."""
    return Box(0, 255, (3, 64, 64) if channels_first else (64, 64, 3), np.uint8)


def frames_of(games: Any, channels_first: bool) -> np.ndarray:
    """Returns a copy of the frames of all games of a `ProcgenGym3Env`, `[n, 64, 64, 3]` or `[n, 3, 64, 64]`."""
    frames = games.observe()[1]["rgb"]
    return np.moveaxis(frames, -1, 1).copy() if channels_first else frames.copy()


def press(games: Any, actions: np.ndarray) -> None:
    """Steps all games of a `ProcgenGym3Env`; raises a `SpaceError` for actions that Procgen does not have."""
    if (wrong := actions[(actions < 0) | (actions >= BUTTONS)]).size:
        raise SpaceError(f"Expected an action from 0 to {BUTTONS - 1}, got {wrong[0]}.")
    games.act(actions)


class ProcgenAdapter(gymnasium.Env[Tree, Tree]):
    """A game of Procgen as a gymnasium environment.

    Observations are uint8 `[64, 64, 3]`, actions are the 15 buttons. All ends of episodes are reported as terminated,
    those by Procgen's own limit of steps too.

    Args:
        name: of the game, such as "coinrun".
        render_mode: None or "rgb_array", for frames `[512, 512, 3]`.
        disable_env_checker: has no effect.
        channels_first: return observations `[3, 64, 64]`.
        kwargs: further arguments of Procgen (`num_levels`, `start_level`, `distribution_mode`, …).

    Raises:
        ImportError: Procgen is not installed.
        SpaceError: there is no such game.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
    state_is_plain_data = True  # so that `vecrl.snapshot` calls `get_state`: Python cannot see into the game

    def __init__(
        self,
        name: str,
        *,
        render_mode: str | None = None,
        disable_env_checker: bool | None = None,
        channels_first: bool = False,
        **kwargs: Any,
    ):
        check_name("a game of Procgen", name, names(), SpaceError)
        if render_mode not in (None, "rgb_array"):
            raise SpaceError(f"Expected the render mode None or 'rgb_array', got {render_mode!r}.")
        self.name, self.render_mode = name, render_mode
        self.observation_space = observation_space_of(channels_first)
        self.action_space = Discrete(BUTTONS)
        self._channels_first = channels_first
        self._make = partial(procgen_library().ProcgenGym3Env, 1, name, render_mode=render_mode, **kwargs)
        self._start(random_seed(31))

    def _start(self, seed: int) -> None:
        self._game: Any = self._make(rand_seed=seed % 2**31)
        # The first use of a function takes a lock of cffi. The garbage collector, which may run while another game has
        # the lock, closes this one, and so must not be the first to use this function.
        _ = self._game._c_lib.libenv_close
        self._is_first = True  # whether the game is at the start of an episode that was not returned by `reset` yet

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Starts an episode; a seed determines the levels from then on. `options` must be empty."""
        if options:
            raise SpaceError(f"Expected no reset options for Procgen, got {sorted(options)}.")
        if seed is not None:
            self._start(seed)
        elif not self._is_first:
            self._game.act(np.array([FORCE_RESET]))
        self._is_first = False
        return frames_of(self._game, self._channels_first)[0], {}

    def step(self, action: Tree) -> EnvStep:
        """Presses a button. The info has "level_seed", "prev_level_seed" and "prev_level_complete"."""
        press(self._game, np.array([int(action)]))  # pyright: ignore[reportArgumentType]
        reward, _, first = self._game.observe()
        self._is_first = bool(first[0])
        info = {key: value for key, value in self._game.get_info()[0].items() if key != "rgb"}
        return frames_of(self._game, self._channels_first)[0], float(reward[0]), self._is_first, False, info

    def render(self) -> Any:
        """Returns a frame `[512, 512, 3]` uint8, or None without a render mode."""
        return None if self.render_mode is None else self._game.get_info()[0]["rgb"].copy()

    def get_state(self) -> dict[str, Any]:
        """Returns the game as bytes, and whether it is at the start of an episode."""
        return {"game": self._game.get_state()[0], "is_first": self._is_first}

    def set_state(self, state: Mapping[str, Any], *, allow: object = ()) -> None:
        """Restores what `get_state` returned, of the same game; `allow` has no effect."""
        self._game.set_state([state["game"]])
        self._is_first = bool(state["is_first"])


class ProcgenVectorEnv(VectorEnv[Tree, Tree, Any]):
    """The games of a `procgen.ProcgenEnv`, which Procgen steps in one call, as gymnasium's vector environment.

    Observations are uint8 `[n, 3, 64, 64]`. Rows that end are reset by Procgen in the same step.

    Args:
        env: a `procgen.ProcgenEnv` or a `procgen.ProcgenGym3Env`.

    Raises:
        TypeError: `env` is none of these.
    """

    metadata = {"autoreset_mode": "same_step"}

    def __init__(self, env: Any):
        self._games: Any = getattr(env, "env", env)
        if not all(hasattr(self._games, name) for name in ("act", "observe", "num")):
            raise TypeError(f"Expected games of Procgen, got {env!r:.80}. Use procgen.ProcgenEnv(num_envs=n, …).")
        self.num_envs = self._games.num
        self.single_observation_space, self.single_action_space = observation_space_of(True), Discrete(BUTTONS)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._are_new = True  # whether all games are at the start of episodes that no reset has returned

    def reset(self, *, seed: Any = None, options: ResetOptions | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode in all rows; seeds have no effect.

        Raises:
            SpaceError: `options` are given, such as those for a reset of some rows.
        """
        if options:
            raise SpaceError(f"Expected a reset of all games of Procgen, got the options {sorted(options)}.")
        if not self._are_new:
            self._games.act(np.full(self.num_envs, FORCE_RESET))
        self._are_new = False
        return frames_of(self._games, True), {}

    def step(self, actions: Tree) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all rows; the final observation of a row is the first one of its next episode."""
        press(self._games, np.asarray(actions))
        rewards, _, first = self._games.observe()
        frames = frames_of(self._games, True)
        return frames, rewards.copy(), first.copy(), np.zeros(self.num_envs, np.bool_), {"final_obs": frames}
