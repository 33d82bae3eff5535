"""Adapts the vector environment of ale-py, which steps Atari games by threads in C++, to a `BatchSimulator`.

ale-py resets a row that is done at its next step, unless the row was reset before that. So the final observations are
those of the step, and rows that are done are reset by a mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.simulator import BatchStep
from ..imports import import_library
from ..registries import check_name
from .array_library import on_host
from .batch_adapter import BatchAdapter, Seeds

_INFOS = "lives", "frame_number", "episode_frame_number"


def _module(name: str) -> Any:
    return import_library(f"ale_py.{name}", 'Expected ale-py and OpenCV to be installed. pip install "vecrl[atari]".')


def names() -> list[str]:
    """Returns the names of the games, such as "breakout"; raises ImportError if ale-py is missing."""
    return list(_module("roms").get_all_rom_ids())


def make_batch(name: str, num_envs: int, **kwargs: Any) -> AtariVectorSimulator:
    """Constructs an `AtariVectorSimulator`, as `vecrl.simulators.registry` needs it."""
    return AtariVectorSimulator(name, num_envs, **kwargs)


class AtariVectorSimulator(BatchAdapter):
    """`num_envs` rows of an Atari game; see `BatchAdapter`.

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

    label = "Atari games"
    no_states = "To save states, use atari::."

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
        if {"autoreset_mode", "batch_size"} & kwargs.keys():
            raise ValueError("Expected no autoreset_mode or batch_size, which vecrl sets, got one of them. Omit it.")
        self._env = _module("vector_env").AtariVectorEnv(name, num_envs, autoreset_mode="NextStep", **kwargs)
        spaces = self._env.single_observation_space, self._env.single_action_space
        super().__init__(
            num_envs, *spaces, device=device, render_mode=render_mode, render_fps=60 / kwargs.get("frameskip", 4)
        )
        self._infos = infos
        self._obs = np.zeros((num_envs, *spaces[0].shape), np.uint8)

    def start(self, rows: np.ndarray, seeds: Seeds) -> None:
        """Starts episodes: ale-py has the random streams, and takes a seed of -1 for none."""
        if seeds is None:
            mask = np.zeros(self.num_envs, bool)
            mask[rows] = True
            self._obs = self._env.reset(options={"reset_mask": mask})[0]
        else:
            self._obs = self._env.reset(seed=np.array([-1 if seed is None else seed % 2**31 for seed in seeds]))[0]

    def advance(self, actions: Tensor) -> BatchStep:
        """Steps all rows with `actions` `[n]`."""
        self._obs, reward, terminated, truncated, info = self._env.step(on_host(actions))
        info = {key: self._on_device(info[key]) for key in _INFOS} if self._infos else {}
        reward, terminated, truncated = map(self._on_device, (reward.astype(np.float32), terminated, truncated))
        return BatchStep(self.observe(), reward, terminated, truncated, info)

    def observe(self) -> Tensor:
        """Returns a copy of the observations of all rows."""
        return self._on_device(self._obs.copy())

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def draw(self, row: int) -> np.ndarray:
        """Returns the last frame of a row as an image `[height, width, 3]` uint8."""
        frame = self._obs[row, -1]
        return frame.copy() if frame.ndim == 3 else np.repeat(frame[..., None], 3, -1)

    def free(self) -> None:
        """Closes the games."""
        self._env.close()
