"""Adapts the vector environment of ale-py, which steps Atari games by threads in C++, to a `BatchSimulator`.

ale-py resets a row that is done at its next step, unless the row was reset before that. So the final observations are
those of the step, and rows that are done are reset by a mask. This module knows no auto-reset modes or dialects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..engine.simulator import BatchStep, ResetOptions
from ..errors import SpaceError
from ..imports import import_library
from ..registries import check_name
from ..validation import check_discrete, check_seeds, normalize_device

_INFOS = "lives", "frame_number", "episode_frame_number"


def _module(name: str) -> Any:
    return import_library(f"ale_py.{name}", 'Expected ale-py and OpenCV to be installed. pip install "vecrl[atari]".')


def names() -> list[str]:
    """Returns the names of the games, such as "breakout"; raises ImportError if ale-py is missing."""
    return list(_module("roms").get_all_rom_ids())


def make_batch(name: str, num_envs: int, **kwargs: Any) -> AtariVectorSimulator:
    """Constructs an `AtariVectorSimulator`, as `vecrl.simulators.registry` needs it."""
    return AtariVectorSimulator(name, num_envs, **kwargs)


class AtariVectorSimulator:
    """`num_envs` rows of an Atari game; a `vecrl.engine.simulator.BatchSimulator`.

    Observations are the last four frames, gray and of 84 x 84 pixels: uint8 `[n, 4, 84, 84]`, unless arguments say
    otherwise. Actions are integers `[n]`, rewards float32 `[n]`. A row with seed s plays the same game in a batch of
    any size. The caller may write to returned tensors.

    Args:
        name: of the game, in small letters with underscores ("breakout", "ms_pacman").
        num_envs: the number of rows.
        device: the device of returned tensors; None is the CPU, where the games run.
        infos: return the lives and the frame numbers as the info of steps.
        render_mode: None or "rgb_array", which renders the last frame of the observation.
        kwargs: further arguments of `ale_py.vector_env.AtariVectorEnv` (`frameskip`, `repeat_action_probability`,
            `reward_clipping`, `num_threads`, …).

    Raises:
        ImportError: ale-py is not installed; the message names the extra.
        ValueError: there is no game of this name, or no such render mode.
    """

    def __init__(
        self,
        name: str,
        num_envs: int,
        *,
        device: str | torch.device | None = None,
        infos: bool = True,
        render_mode: str | None = None,
        **kwargs: Any,
    ):
        check_name("a game", name, names())
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"Expected render_mode None or 'rgb_array', got {render_mode!r}.")
        if {"autoreset_mode", "batch_size"} & kwargs.keys():
            raise ValueError("Expected no autoreset_mode or batch_size, which vecrl sets, got one of them. Omit it.")
        self._env = _module("vector_env").AtariVectorEnv(name, num_envs, autoreset_mode="NextStep", **kwargs)
        self.num_envs, self.name = num_envs, name
        self.device = str(torch.device(normalize_device(device or "cpu")))
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 60 / kwargs.get("frameskip", 4)}
        self._infos = infos
        self._obs = np.zeros((num_envs, *self.observation_space.shape), np.uint8)

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Tensor:
        """Starts an episode in every row and returns the observations.

        Args:
            seeds: `seeds[i]` seeds row i, unless it is None.
            options: must be empty, since ale-py has none besides a mask.
        """
        if options:
            raise SpaceError(f"Expected no reset options for Atari games, got {sorted(options)}.")
        seeds = [None] * self.num_envs if seeds is None else seeds
        check_seeds(seeds)
        values = np.array([-1 if seed is None else seed % 2**31 for seed in seeds])
        return self._returned(self._env.reset(seed=values)[0])

    def reset_where(self, mask: Tensor) -> Tensor:
        """Starts an episode in the rows of the bool `mask` `[n]` and returns the observations of all rows."""
        rows = mask.numpy(force=True)
        return self._returned(self._env.reset(options={"reset_mask": rows})[0] if rows.any() else self._obs.copy())

    def step(self, actions: Tensor) -> BatchStep:
        """Steps all rows with `actions` `[n]`."""
        if isinstance(self.action_space, Discrete):  # ale-py never returns from a step with any other number
            check_discrete(actions, self.action_space, "Atari games")
        obs, reward, terminated, truncated, info = self._env.step(actions.numpy(force=True))
        return BatchStep(
            self._returned(obs),
            self._on_device(reward.astype(np.float32)),
            self._on_device(terminated),
            self._on_device(truncated),
            {key: self._on_device(info[key]) for key in _INFOS} if self._infos else {},
        )

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _returned(self, obs: np.ndarray) -> Tensor:
        self._obs = obs
        return self._on_device(obs.copy())

    def render(self, row: int) -> np.ndarray | None:
        """Returns the last frame of a row as an image `[height, width, 3]` uint8; None without a render mode."""
        if self.render_mode is None:
            return None
        frame = self._obs[row, -1]
        return frame.copy() if frame.ndim == 3 else np.repeat(frame[..., None], 3, -1)

    def get_state(self) -> dict[str, Tensor]:
        """Raises `NotImplementedError`, since ale-py's vector environment cannot save its games."""
        raise NotImplementedError(
            "ale-py's vector environment has no access to the state of its games. To save states, use atari::."
        )

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises `NotImplementedError`, see `get_state`."""
        self.get_state()

    def close(self) -> None:
        """Closes the games. Further calls have no effect."""
        self._env.close()
