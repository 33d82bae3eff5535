"""Adapts environments of dm_control, and any other `dm_env.Environment`, to gymnasium's interface.

A name of the suite is "DOMAIN-TASK". The end of an episode with a discount of 0 is a termination, any other end (a time
limit) is a truncation. The first rendering reads the environment variable MUJOCO_GL; without a display it must be
"egl" or "osmesa". Worker processes import this module, so it must not import torch.
"""

from __future__ import annotations

import string
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..engine.simulator import ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError
from ..gym_interface import Env, EnvReset, EnvStep
from ..imports import import_library
from ..registries import check_name
from .gymnasium.make import apply_pixel_wrappers

DmEnv = Any  # a `dm_env.Environment`; none of its libraries is imported for its type
FRAME = {"height": 240, "width": 320, "camera_id": 0}


def suite() -> Any:
    """Imports dm_control's suite.

    Raises:
        ImportError: dm_control is not installed; the message names the extra.
    """
    return import_library("dm_control.suite", 'dm_control is not installed: pip install "vecrl[dmc]"')


def names() -> list[str]:
    """Returns the names of the suite's tasks, such as "cheetah-run"; raises ImportError as `suite`."""
    return [f"{domain}-{task}" for domain, task in suite().ALL_TASKS]


def env_fn(name: str, **kwargs: Any) -> Callable[[], Env]:
    """Returns a function that makes a task of the suite by `make`.

    Args:
        name: "DOMAIN-TASK".
        kwargs: of `make`.

    Raises:
        ValueError: there is no task of that name.
    """
    check_name("a task of dm_control", name, names())
    domain, _, task = name.partition("-")
    return partial(make, domain, task, **kwargs)


def make(
    domain: str,
    task: str,
    *,
    from_pixels: bool = False,
    pixels_only: bool = True,
    frame_skip: int | None = None,
    render_mode: str | None = None,
    render_kwargs: Mapping[str, Any] | None = None,
    scalars_as_vectors: bool = False,
    **kwargs: Any,
) -> Env:
    """Makes a task of the suite as a gymnasium environment.

    Args:
        domain, task: the names of the suite, such as "cheetah" and "run".
        from_pixels: add rendered frames to the observations, under "pixels".
        pixels_only: return the frames instead of the other observations.
        frame_skip: number of control steps per step; their rewards are summed.
        render_mode: None or "rgb_array".
        render_kwargs: arguments of `physics.render` that differ from a height of 240, a width of 320 and camera 0.
        scalars_as_vectors: give observations of shape () the shape (1,).
        kwargs: `task_kwargs`, `environment_kwargs` and `visualize_reward` of `suite.load`; all others are added to
            `task_kwargs`.
    """
    env = DmEnvAdapter(
        *load(domain, task, **kwargs),
        render_mode="rgb_array" if from_pixels else render_mode,
        render_kwargs=render_kwargs,
        scalars_as_vectors=scalars_as_vectors,
    )
    return apply_pixel_wrappers(env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip)


def load(
    domain: str, task: str, *, task_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
) -> tuple[DmEnv, Callable[[int], DmEnv] | None]:
    """Loads a task of the suite.

    Returns:
        The environment; and a function that loads it for a seed if its model is random, such as that of `lqr`.
    """
    options = {name: kwargs.pop(name) for name in ("environment_kwargs", "visualize_reward") if name in kwargs}
    task_options = {**(task_kwargs or {}), **kwargs}
    if task_options.get("random") is not None:
        return suite().load(domain, task, task_options, **options), None
    random = np.random.RandomState()
    before = random.get_state(legacy=False)["state"]
    env = suite().load(domain, task, {**task_options, "random": random}, **options)
    after = random.get_state(legacy=False)["state"]
    is_fixed = before["pos"] == after["pos"] and np.array_equal(before["key"], after["key"])
    return env, None if is_fixed else partial(_load_seeded, domain, task, task_options, options)


def _load_seeded(domain: str, task: str, task_options: dict[str, Any], options: dict[str, Any], seed: int) -> DmEnv:
    return suite().load(domain, task, {**task_options, "random": seed}, **options)


class DmEnvAdapter(gymnasium.Env[Tree, Tree]):
    """A `dm_env.Environment` behind gymnasium's interface. Other attributes are those of the environment.

    Observations have the structure, shapes and dtypes of `observation_spec()`; actions those of `action_spec()`. A seed
    sets the random state of the task or of the environment; it has no effect on an environment that has none.

    Args:
        env: the environment.
        load: makes the environment for a seed, if its model depends on it; a seeded reset calls it.
        render_mode: None or "rgb_array", for environments with a `physics`.
        render_kwargs: see `make`.
        scalars_as_vectors: give observations of shape () the shape (1,).

    Attributes:
        dm_env: the environment.
        render_kwargs: the arguments of `physics.render`.

    >>> import dm_env
    >>> class Count(dm_env.Environment):
    ...     def reset(self): self.n = 0; return dm_env.restart(np.float32(0))
    ...     def step(self, action): self.n += 1; return dm_env.truncation(1.0, np.float32(self.n))
    ...     def observation_spec(self): return dm_env.specs.Array((), np.float32)
    ...     def action_spec(self): return dm_env.specs.DiscreteArray(2, np.int64)
    >>> env = DmEnvAdapter(Count())
    >>> env.reset(), env.step(1), env.action_space
    ((np.float32(0.0), {}), (np.float32(1.0), 1.0, False, True, {}), Discrete(2))
    """

    def __init__(
        self,
        env: DmEnv,
        load: Callable[[int], DmEnv] | None = None,
        *,
        render_mode: str | None = None,
        render_kwargs: Mapping[str, Any] | None = None,
        scalars_as_vectors: bool = False,
    ):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"Expected render_mode None or 'rgb_array', got {render_mode!r}.")
        self.dm_env = env
        self._load = load
        self._min_ndim = int(scalars_as_vectors)
        self.observation_space = _space(env.observation_spec(), self._min_ndim)
        self.action_space = _space(env.action_spec())
        self.render_mode, self.render_kwargs = render_mode, {**FRAME, **(render_kwargs or {})}
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": _frames_per_second(env)}

    def reset(self, *, seed: int | None = None, options: ResetOptions | None = None) -> EnvReset:
        """Starts an episode.

        Args:
            seed: the seed of the random state. The episode is the first one of `suite.load` with this seed.
            options: must be empty, since dm_env has none.
        """
        if options:
            raise SpaceError(f"Expected no reset options for an environment of dm_env, got {sorted(options)}.")
        if seed is not None:
            self._seed(seed % 2**32)
        return self._observe(self.dm_env.reset().observation), {}

    def step(self, action: Tree) -> EnvStep:
        """Steps the environment."""
        time_step = self.dm_env.step(action)
        is_last = time_step.last()
        terminated = bool(is_last and time_step.discount == 0)
        obs = self._observe(time_step.observation)
        return obs, time_step.reward, terminated, bool(is_last and not terminated), {}

    def _observe(self, obs: Tree) -> Tree:
        if type(self.observation_space) is spaces.Box:
            return np.array(obs, self.observation_space.dtype, ndmin=self._min_ndim)[()]
        return _as_arrays(obs, self._min_ndim)

    def _seed(self, seed: int) -> None:
        if self._load is not None:
            self.dm_env.close()
            self.dm_env = self._load(seed)
            return
        random = _random_of(self.dm_env)
        if isinstance(random, np.random.RandomState):
            random.seed(seed)
        elif random is not None:
            random.bit_generator.state = type(random.bit_generator)(seed).state

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Renders a frame, uint8 `[height, width, 3]`; returns None without a render mode."""
        return None if self.render_mode is None else self.dm_env.physics.render(**self.render_kwargs)

    def close(self) -> None:
        """Closes the environment."""
        self.dm_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "dm_env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dm_env, name)

    def __str__(self) -> str:
        return f"<DmEnvAdapter of {type(getattr(self.dm_env, 'task', self.dm_env)).__name__}>"


def _random_of(env: DmEnv) -> np.random.RandomState | np.random.Generator | None:
    """Returns the random state of an environment's task, or of the environment, if either has one."""
    for owner in (getattr(env, "task", None), env):
        for name in ("random", "random_state", "_random_state", "_random", "_rng"):
            random = getattr(owner, name, None)
            if isinstance(random, np.random.RandomState | np.random.Generator):
                return random
    return None


def _frames_per_second(env: DmEnv) -> float:
    return round(1 / env.control_timestep(), 3) if hasattr(env, "control_timestep") else 30.0


def _as_arrays(obs: Any, min_ndim: int) -> Any:
    """Returns an observation with arrays or numbers of NumPy as leaves, and dicts and tuples around them."""
    if isinstance(obs, Mapping):
        return {name: _as_arrays(value, min_ndim) for name, value in obs.items()}
    if isinstance(obs, list | tuple):
        return tuple(_as_arrays(value, min_ndim) for value in obs)
    if isinstance(obs, np.ndarray):
        return obs if obs.ndim >= min_ndim else obs.reshape(1)
    return np.array(obs, ndmin=min_ndim)[()] if isinstance(obs, np.generic | int | float) else obs


def _space(spec: Any, min_ndim: int = 0) -> AnySpace:
    """Converts a dm_env spec, or a nested structure of them, to the space with the same elements."""
    if isinstance(spec, Mapping):
        parts = OrderedDict((name, _space(part, min_ndim)) for name, part in spec.items())
        return spaces.Dict(parts)  # keeps the order; the keys of a dict would be sorted
    if isinstance(spec, list | tuple):
        return spaces.Tuple([_space(part, min_ndim) for part in spec])
    if not (hasattr(spec, "shape") and hasattr(spec, "dtype")):
        raise SpaceError(f"Expected a spec of dm_env with a shape and a dtype, got {spec!r:.80}.")
    shape, dtype = tuple(spec.shape) or (1,) * min_ndim, np.dtype(spec.dtype)
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values), dtype=dtype.type)
    if dtype.kind in "OSU":
        return spaces.Text(4096, min_length=0, charset=string.printable)
    low, high = (getattr(spec, name, None) for name in ("minimum", "maximum"))
    if low is None or high is None:
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else (0, 1) if dtype.kind == "b" else _int_range(dtype)
    low, high = (np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (low, high))
    return spaces.Box(low, high, shape, dtype.type)


def _int_range(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
