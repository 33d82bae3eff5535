"""Constructs environments of gymnasium or the old gym by name, with wrappers that skip frames and observe pixels.

Worker processes import this module, so it must not import torch or TensorDicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ...engine.space_layout import Tree
from ...errors import SpaceError, VecrlError
from ...gym_interface import Env, EnvReset, EnvStep, check_interface, repeat_step
from ...imports import import_library
from ..legacy_gym import LegacyGymAdapter
from ..registry import SEPARATOR, find_entry

_NAMESPACES = {"ALE": "ale_py"}  # the modules that register them
_FAMILIES = {  # the names of environments of well-known libraries, by the prefix of their entry
    "atari": r"ALE/",
    "minigrid": r"(MiniGrid|BabyAI)-",
    "box2d": r"(LunarLander|BipedalWalker|CarRacing)(Continuous|Hardcore)?-v",
    "mujoco": r"(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher"
    r"|Swimmer|Walker2d)-v",
    "highway": r"(highway|merge|roundabout|parking|intersection|racetrack|exit|two-way|u-turn|lane-keeping)-",
    "pybullet": r"\w+BulletEnv-v",
    "nle": r"NetHack\w*-v",
    "crafter": r"Crafter(No)?Reward-v",
    "mo": r"(mo-|deep-sea-treasure|resource-gathering|four-room|minecart|fruit-tree|water-reservoir)",
}
_ROBOTICS = r"(Fetch|HandReach|HandManipulate|AdroitHand|AntMaze|PointMaze|FrankaKitchen)"


def as_gymnasium(env: object) -> Env:
    """Returns a gymnasium environment unchanged, and any other environment in a `LegacyGymAdapter`.

    Raises:
        SpaceError: it is no environment, or has no spaces.
    """
    check_interface(env)
    return env if isinstance(env, gymnasium.Env) else LegacyGymAdapter(env)


def env_fn(name: str, *, python: str | None = None, **kwargs: Any) -> Callable[[], Env]:
    """Returns a function that makes the gymnasium environment `name`, also in workers that have not registered it.

    Args:
        name: the name of the environment.
        python: another interpreter, with gymnasium or the old gym, on which the environment is made; see
            `vecrl.simulators.foreign.foreign_env`.
        kwargs: arguments of `make`. `disable_env_checker` is True by default, since vecrl checks what it reads.

    Raises:
        gymnasium.error.Error: there is no environment of that name.
    """
    if python is not None:
        from ..foreign import named_env

        return named_env(name, python=python, **kwargs)
    import_namespace(name)
    with explained_names(name):
        spec_or_name = name if ":" in name else gymnasium.spec(name)  # "module:name" is registered by an import
    return partial(make_by_spec, spec_or_name, name, **{"disable_env_checker": True, **kwargs})


def names() -> list[str]:
    """Returns the ids in gymnasium's registry."""
    return list(gymnasium.registry)


def make(env_name: str, library: str, **kwargs: Any) -> Env:
    """Constructs an environment; see `maker`."""
    return maker(env_name, library, **kwargs)()


def maker(
    env_name: str,
    library: str,
    *,
    from_pixels: bool = False,
    disable_env_checker: bool | None = None,
    python: str | None = None,
    **kwargs: Any,
) -> Callable[[], Env]:
    """Returns a function that constructs an environment behind gymnasium's interface.

    Args:
        env_name: the id, as `make` of the library takes it; or a name with the prefix of a simulator of single
            environments, such as "minigrid::MiniGrid-Empty-5x5-v0".
        library: "gymnasium", "gym", or another library with such a `make`.
        from_pixels: set the render mode "rgb_array".
        disable_env_checker: disable the library's own checks; True by default.
        python: another interpreter on which the environment is made, by gymnasium or the gym that it has; or an
            argument of the simulator.
        kwargs: further arguments of `make`, or of the simulator; with `python`, "modules" to import there before.

    Raises:
        ValueError: the prefix is unknown, or that of a simulator which steps many environments in one call.
    """
    render_options = {"render_mode": "rgb_array"} if from_pixels else {}
    if python is not None and SEPARATOR not in env_name:
        from ..foreign import named_env

        return named_env(env_name, library, python=python, **{**render_options, **kwargs})
    if SEPARATOR not in env_name:
        return partial(_make_by_id, env_name, library, from_pixels, disable_env_checker, kwargs)
    entry, name = find_entry(env_name)
    if entry.env_fn is None:
        raise ValueError(
            f"Expected the prefix of a simulator of single environments, got {env_name!r}, of which many are stepped "
            f"in one call. Use vecrl.envs.SimulatorEnv({env_name!r}, num_envs=n), or make_env, which takes every name."
        )
    interpreter = {} if python is None else {"python": python}
    return entry.env_fn(name, **{**render_options, **interpreter, **kwargs})


def _make_by_id(
    env_id: str, library: str, from_pixels: bool, disable_env_checker: bool | None, kwargs: dict[str, Any]
) -> Env:
    if not isinstance(library, str) or not library:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected library to be the name of a library, such as 'gymnasium', got {library!r:.80}.")
    gym_module = import_library(
        library, f"Expected library to be that of an installed one, got {library!r}. Install it."
    )
    import_namespace(env_id)
    if _is_recent(gym_module):
        kwargs = {"disable_env_checker": True if disable_env_checker is None else disable_env_checker, **kwargs}
        if from_pixels:
            kwargs = {"render_mode": "rgb_array", **kwargs}
    with explained_names(env_id):
        env = gym_module.make(env_id, **kwargs)
    return as_gymnasium(env)


def make_by_spec(spec: Any, name: str, **kwargs: Any) -> Env:
    """Calls `gymnasium.make`; its error for a missing library also says what to install."""
    with explained_names(name):
        return gymnasium.make(spec, **kwargs)


def import_namespace(env_name: str) -> None:
    """Imports the library that registers names such as "ALE/Pong-v5" with gymnasium, if it is installed."""
    module = _NAMESPACES.get(env_name.partition("/")[0])
    if module is not None and env_name not in gymnasium.registry:
        with suppress(ImportError):
            import_module(module)


@contextmanager
def explained_names(env_name: str) -> Iterator[None]:
    """Extends the errors of gymnasium in its context with what to install or to write for the environment.

    It changes errors that say that gymnasium has no such environment or lacks a library, if the name is that of a known
    library.

    Raises:
        Exception: (of the class of gymnasium's error) gymnasium has no such environment, or lacks a library.
    """
    try:
        yield
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DependencyNotInstalled, ImportError) as error:
        advice = _library_advice(env_name)
        if not advice or isinstance(error, VecrlError):
            raise
        raise type(error)(f"{str(error).rstrip('.')}. {advice}".replace("?.", "?").rstrip()) from None


def _library_advice(env_name: str) -> str:
    """Returns what to install and to write for the name of an environment of a well-known library; "" for others."""
    if re.match(_ROBOTICS, env_name):
        return f"Install it: pip install gymnasium-robotics, and write 'gymnasium_robotics:{env_name}'."
    prefix = next((prefix for prefix, pattern in _FAMILIES.items() if re.match(pattern, env_name)), None)
    if prefix is None:
        return ""
    if prefix == "mujoco":
        env_name = env_name.partition("-v")[0] + "-v5"
    entry, name = find_entry(prefix + SEPARATOR + env_name)
    is_registered = env_name in gymnasium.registry or env_name.partition("/")[0] in _NAMESPACES
    install = "" if entry.missing is None else f"Install it: {entry.install}. "
    return install + (f"Write {prefix + SEPARATOR + name!r}." if not (install and is_registered) else "")


def takes_frameskip(env_name: str, library: str) -> bool:
    """Returns whether the registered environment takes `frameskip`, as those of ale-py do."""
    if SEPARATOR in env_name:
        return False
    import_namespace(env_name)
    registry = getattr(getattr(import_module(library), "envs", None), "registry", None)
    if not isinstance(registry, Mapping):
        return False
    module, _, name = env_name.rpartition(":")
    if module:
        import_module(module)
    same = [spec for other, spec in registry.items() if name in (other, other.rpartition("-v")[0])]
    return any("frameskip" in getattr(spec, "kwargs", {}) for spec in same)


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


def make_wrapped(make_env: Callable[[], Env], pixel_options: dict[str, Any], objectives: bool) -> Env:
    """Constructs one environment of a vector, with wrappers; with `objectives`, rewards are vectors in the infos."""
    env = apply_pixel_wrappers(make_env(), **pixel_options)
    return RewardInInfo(env) if objectives else env


class SkipFrames(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Repeats every action `frame_skip` times, or until the episode ends, and sums the rewards."""

    def __init__(self, env: Env, frame_skip: int):
        super().__init__(env)
        self.frame_skip = frame_skip

    def step(self, action: Tree) -> EnvStep:
        """Steps up to `frame_skip` times and returns the last results with the sum of the rewards."""
        result: Any = repeat_step(self.env.step, action, self.frame_skip)
        return result


class ObservePixels(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Adds the rendered frames to the observations, under the key "pixels": uint8 `[H, W, C]`.

    If observations are images already, they are the entry "pixels": nothing is rendered, and no frame is kept twice.
    An environment with several cameras has a method `read_frames`, which returns the frames of all.

    Args:
        env: an environment with the render mode "rgb_array". It is reset and rendered once, for the size of its frames.
        pixels_only: remove the environment's own observations. They are kept otherwise, under "observation" if the
            observation space is no Dict.
    """

    def __init__(self, env: Env, pixels_only: bool = True):
        super().__init__(env)
        inner_space = env.observation_space
        self._is_image = is_image_space(inner_space)
        if self._is_image:
            self.observation_space = spaces.Dict(pixels=inner_space)
            return
        env.reset()
        self._has_cameras = env.has_wrapper_attr("read_frames")
        pixel_space = spaces.Box(0, 255, self._frames().shape, np.uint8)
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

    def _with_pixels(self, obs: Tree) -> dict[str, Tree]:
        if self._is_image:
            return {"pixels": obs}
        other_entries = {} if self._pixels_only else obs if self._is_dict else {"observation": obs}
        return {**other_entries, "pixels": self._frames()}

    def _frames(self) -> np.ndarray:
        return self.env.get_wrapper_attr("read_frames")() if self._has_cameras else read_frame(self.env)

    def reset(self, **kwargs: Any) -> EnvReset:
        """Resets the environment and adds the frame to the observation."""
        obs, info = self.env.reset(**kwargs)
        return self._with_pixels(obs), info

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment and adds the frame to the observation."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_pixels(obs), reward, terminated, truncated, info


def is_image_space(space: object) -> bool:
    """Returns whether a space is a Box of images: `[H, W, 3]` with values from 0 to 255.

    >>> is_image_space(spaces.Box(0, 255, (210, 160, 3), np.uint8))
    True
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.shape[-1] != 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def read_frame(env: Any) -> np.ndarray:
    """Returns what `render` of an environment returns.

    Raises:
        SpaceError: it is no image, uint8 `[H, W, C]`.
    """
    frame = env.render()
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3:
        return np.ascontiguousarray(frame)
    raise SpaceError(
        f"Expected a uint8 array [H, W, C] from render(), got {type(frame).__name__}. Make the environment "
        'with render_mode="rgb_array".'
    )


class RewardInInfo(gymnasium.Wrapper[Tree, Tree, Tree, Tree]):
    """Sums a reward that is a vector, since rewards of the engine are numbers, and keeps the vector in the info."""

    KEY = "vector_reward"  # as in mo-gymnasium's `LinearReward`

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment and returns the sum of its rewards, with the vector in the info under `KEY`."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        rewards = np.asarray(reward)
        return obs, float(rewards.sum()), terminated, truncated, {**info, self.KEY: rewards}
