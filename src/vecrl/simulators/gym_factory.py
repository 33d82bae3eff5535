"""Constructs environments of gymnasium or the old gym by name, with wrappers that skip frames and observe pixels.

Worker processes import this module, so it must not import torch or TensorDicts.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..engine.space_layout import Tree
from ..errors import SpaceError
from .legacy_gym import LegacyGymAdapter
from .wrapper_bypass import Env, EnvReset, EnvStep


def as_gymnasium(env: object) -> Env:
    """Returns a gymnasium environment unchanged, and any other environment in a `LegacyGymAdapter`."""
    return env if isinstance(env, gymnasium.Env) else LegacyGymAdapter(env)


def make(
    env_name: str,
    library: str,
    *,
    from_pixels: bool = False,
    disable_env_checker: bool | None = None,
    **kwargs: object,
) -> Env:
    """Constructs an environment with the `make` of a library and returns it behind gymnasium's interface.

    Args:
        env_name: the id, as `make` takes it.
        library: "gymnasium", "gym", or another library with such a `make`.
        from_pixels: set the render mode "rgb_array".
        disable_env_checker: disable the library's own checks; True by default.
        kwargs: further arguments of `make`.
    """
    gym_module = import_module(library)
    if _is_recent(gym_module):
        kwargs["disable_env_checker"] = True if disable_env_checker is None else disable_env_checker
        if from_pixels:
            kwargs.setdefault("render_mode", "rgb_array")
    return as_gymnasium(gym_module.make(env_name, **kwargs))


def _is_recent(library: ModuleType) -> bool:
    """Whether `make` takes `render_mode` and `disable_env_checker`, as it does since gym 0.25."""
    return tuple(int(part) for part in library.__version__.split(".")[:2]) >= (0, 25)


def apply_pixel_wrappers(
    env: Env, *, from_pixels: bool = False, pixels_only: bool = True, frame_skip: int | None = None
) -> Env:
    """Adds the wrappers that skip frames and observe pixels to `env`, if the arguments request them."""
    if frame_skip is not None and frame_skip < 1:
        raise ValueError(f"Expected frame_skip of 1 or more, got {frame_skip}.")
    if frame_skip is not None and frame_skip > 1:
        env = SkipFrames(env, frame_skip)
    return ObservePixels(env, pixels_only) if from_pixels else env


def make_wrapped(env_name: str, arguments: dict[str, Any], pixel_options: dict[str, Any], objectives: bool) -> Env:
    """Constructs one environment of a vector, with wrappers; with `objectives`, rewards are vectors in the infos."""
    env = apply_pixel_wrappers(make(env_name, **arguments), **pixel_options)
    return RewardInInfo(env) if objectives else env


class SkipFrames(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Repeats every action `frame_skip` times, or until the episode ends, and sums the rewards."""

    def __init__(self, env: Env, frame_skip: int):
        super().__init__(env)
        self.frame_skip = frame_skip

    def step(self, action: Tree) -> EnvStep:
        """Steps up to `frame_skip` times and returns the last results with the sum of the rewards."""
        obs, total, terminated, truncated, info = self.env.step(action)
        for _ in range(self.frame_skip - 1):
            if terminated or truncated:
                break
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward  # pyright: ignore[reportOperatorIssue]
        return obs, total, terminated, truncated, info


class ObservePixels(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Adds the rendered frames to the observations, under the key "pixels": uint8 `[H, W, C]`.

    Args:
        env: an environment with the render mode "rgb_array". It is reset and rendered once, for the size of its frames.
        pixels_only: remove the environment's own observations. They are kept otherwise, under "observation" if the
            observation space is no Dict.
    """

    def __init__(self, env: Env, pixels_only: bool = True):
        super().__init__(env)
        env.reset()
        pixel_space = spaces.Box(0, 255, self._frame().shape, np.uint8)
        inner_space = env.observation_space
        other_spaces = (
            {}
            if pixels_only
            else dict(inner_space.spaces)
            if isinstance(inner_space, spaces.Dict)
            else {"observation": inner_space}
        )
        if "pixels" in other_spaces:
            raise SpaceError("Expected no key 'pixels' in the observations of the environment. Omit from_pixels.")
        self._pixels_only = pixels_only
        self._is_dict = isinstance(inner_space, spaces.Dict)
        self.observation_space = spaces.Dict({**other_spaces, "pixels": pixel_space})

    def _frame(self) -> np.ndarray:
        frame = self.env.render()
        if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3:
            return np.ascontiguousarray(frame)
        raise SpaceError(
            f"Expected a uint8 array [H, W, C] from render(), got {type(frame).__name__}. Make the environment "
            'with render_mode="rgb_array".'
        )

    def _with_pixels(self, obs: Tree) -> dict[str, Tree]:
        other_entries = {} if self._pixels_only else obs if self._is_dict else {"observation": obs}
        return {**other_entries, "pixels": self._frame()}

    def reset(self, **kwargs: Any) -> EnvReset:
        """Resets the environment and adds the frame to the observation."""
        obs, info = self.env.reset(**kwargs)
        return self._with_pixels(obs), info

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment and adds the frame to the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_pixels(obs), reward, terminated, truncated, info


class RewardInInfo(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Moves a reward that is a vector into the info, since rewards of the engine are numbers."""

    KEY = "_objectives"

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment and returns a reward of 0, with the vector in the info under `KEY`."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, 0.0, terminated, truncated, {**info, self.KEY: np.asarray(reward)}
