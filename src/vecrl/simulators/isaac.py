"""Tasks of Isaac Gym and Isaac Lab as a `BatchSimulator`: many rows on one device, which reset themselves in a step.

The observation with which an episode ends is not returned by these tasks: "next" observations are NaN (0 in integers,
False in bools) in rows that end an episode. This module imports the libraries when a task is made, and must not know
any dialect.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..engine.simulator import BatchStep, ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError, StateError, VersionError
from ..imports import import_library
from .legacy_gym import as_gymnasium_space

_HINTS = {
    "isaacgym": "Isaac Gym (https://developer.nvidia.com/isaac-gym) cannot be imported. It needs Python 3.8 or older, "
    "on which vecrl does not run. Use isaaclab::, which replaces it",
    "isaaclab": "Isaac Lab is not installed: pip install 'isaaclab[isaacsim]==2.3.2' --extra-index-url "
    "https://pypi.nvidia.com on Python 3.11, as https://isaac-sim.github.io/IsaacLab says. It needs a GPU",
}
_app: dict[str, Any] = {}  # the application that this process has started, see `start_app`


class TaskStep(NamedTuple):
    """What a task returns from a step; observations of rows that ended are those of their next episodes."""

    obs: Tree
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class Task(Protocol):
    """The library's side of a `SelfResettingSimulator`."""

    num_envs: int
    device: str
    action_space: AnySpace
    resets_rows: bool

    def reset(self, seed: int | None) -> Tree: ...
    def reset_rows(self, ids: Tensor) -> Tree: ...
    def reset_to(self, state: Any, ids: Tensor, is_relative: bool, seed: int | None) -> Tree: ...
    def step(self, actions: Tree) -> TaskStep: ...
    def close(self) -> None: ...


class SelfResettingSimulator:
    """The rows of a task that resets itself; a `vecrl.engine.simulator.BatchSimulator`.

    Observations have the keys, shapes and dtypes of the first reset. All rows share one random generator, so the seed
    of row 0 seeds all.

    Args:
        task: see `Task`. It is reset once.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    render_mode: str | None = None

    def __init__(self, task: Task):
        self.task = task
        self.num_envs, self.device = task.num_envs, str(task.device)
        self.action_space = task.action_space
        self.checks_actions = isinstance(task.action_space, spaces.Box)  # the libraries clip actions
        self._obs = task.reset(None)
        self.observation_space = _space_of(self._obs)
        self._was_reset = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Tree:
        """Resets all rows and returns their observations.

        Raises:
            SpaceError: options are given, which these tasks do not take.
        """
        if options:
            raise SpaceError(f"Expected no reset options for Isaac's tasks, got {sorted(options)}. Omit them.")
        self._obs = self.task.reset(None if seeds is None else seeds[0])
        self._was_reset = torch.ones_like(self._was_reset)
        return _map(torch.clone, self._obs)

    def reset_where(self, mask: Tensor) -> Tree:
        """Returns the observations of all rows: the first ones of rows that reset themselves in the last step.

        Other rows of the mask are reset, if the task can reset single rows.

        Raises:
            SpaceError: the mask has other rows, and the task cannot reset them alone.
        """
        others = mask & ~self._was_reset
        if bool(others.any()):
            if not self.task.resets_rows:
                raise SpaceError(
                    "Expected a mask of rows that ended in the last step, got others. This task resets rows itself; "
                    "reset all rows instead."
                )
            self._replace_rows(others, self.task.reset_rows(others.nonzero().squeeze(-1)))
        return _map(torch.clone, self._obs)

    def reset_to(self, mask: Tensor, state: Any, is_relative: bool, seed: int | None) -> None:
        """Resets the rows of `mask` `[n]` to their parts of the state of a scene of Isaac Lab.

        Raises:
            StateError: the task cannot do so.
        """
        ids = mask.nonzero().squeeze(-1)
        self._replace_rows(mask, self.task.reset_to(_map(lambda leaf: leaf[ids], state), ids, is_relative, seed))

    def _replace_rows(self, mask: Tensor, obs: Tree) -> None:
        """Keeps the new observations of the rows of `mask`, and the last ones of others."""
        self._obs = _map(lambda new, old: torch.where(_as_column_mask(mask, new), new, old), obs, self._obs)
        self._was_reset = self._was_reset | mask

    def step(self, actions: Tree) -> BatchStep:
        """Steps all rows."""
        return self.step_and_reset(actions)[0]

    def step_and_reset(self, actions: Tree) -> tuple[BatchStep, Tensor, Tree]:
        """Steps all rows; returns the step, the rows that ended, and the observations to act on next."""
        result = self.task.step(_map(lambda action: torch.as_tensor(action, device=self.device), actions))
        self._obs = result.obs
        self._was_reset = result.terminated | result.truncated
        final = _map(lambda leaf: _fill_where(self._was_reset, leaf), result.obs)
        step = BatchStep(final, result.reward.float().clone(), result.terminated.clone(), result.truncated.clone())
        return step, self._was_reset.clone(), _map(torch.clone, result.obs)

    def render(self, row: int) -> None:
        """Returns None: cameras are part of the observations."""

    def get_state(self) -> dict[str, Tensor]:
        """Raises a StateError, since the state is in the physics engine."""
        raise StateError(
            "Expected a simulator with states, got one of Isaac's tasks, which do not return theirs. Reset the rows."
        )

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises a StateError, as `get_state`."""
        self.get_state()

    def close(self) -> None:
        """Closes the task."""
        self.task.close()


class IsaacGymTask:
    """A task of Isaac Gym: `isaacgymenvs.tasks.base.vec_task.VecTask`, or an object with its methods."""

    resets_rows = False

    def __init__(self, env: Any):
        self.env = env
        self.num_envs, self.device = int(env.num_envs), str(getattr(env, "rl_device", env.device))
        self.action_space = _action_space(env.action_space)

    def reset(self, seed: int | None) -> Tree:
        """Resets all rows; the seed is that of the global generators, which the tasks use."""
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 -- the generator of the tasks
        self.env.reset_idx(torch.arange(self.num_envs, device=self.env.device))
        if hasattr(self.env, "compute_observations"):  # `reset` returns what was computed last
            self.env.compute_observations()
        return dict(self.env.reset())

    def reset_rows(self, ids: Tensor) -> Tree:
        """Is never called, see `resets_rows`."""
        raise NotImplementedError

    def reset_to(self, state: Any, ids: Tensor, is_relative: bool, seed: int | None) -> Tree:
        """Raises a StateError, since the tasks have no states."""
        raise StateError("Expected a task with reset_to, got one of Isaac Gym. Reset all rows.")

    def step(self, actions: Tree) -> TaskStep:
        """Steps all rows. An end at the time limit truncates."""
        obs, reward, done, extras = self.env.step(actions)
        done = done.bool()
        truncated = done & extras["time_outs"].bool() if "time_outs" in extras else torch.zeros_like(done)
        return TaskStep(dict(obs), reward, done & ~truncated, truncated)

    def close(self) -> None:
        """Closes the task, if it can be closed."""
        if hasattr(self.env, "close"):
            self.env.close()


class IsaacLabTask:
    """An environment of Isaac Lab: a `ManagerBasedRLEnv` or `DirectRLEnv`, or an object with its methods.

    Attributes:
        resets_rows: whether single rows can be reset, as those of a `ManagerBasedRLEnv`.
    """

    def __init__(self, env: Any):
        self.env = env
        base = env.unwrapped
        self.num_envs, self.device = int(base.num_envs), str(base.device)
        self.action_space = _action_space(base.single_action_space)
        self.resets_rows = "env_ids" in signature(base.reset).parameters

    def reset(self, seed: int | None) -> Tree:
        """Resets all rows."""
        return dict(self.env.reset(seed=seed)[0])

    def reset_rows(self, ids: Tensor) -> Tree:
        """Resets rows and returns the observations of all."""
        return dict(self.env.unwrapped.reset(env_ids=ids)[0])

    def reset_to(self, state: Any, ids: Tensor, is_relative: bool, seed: int | None) -> Tree:
        """Resets rows to a state, and returns the observations of all rows.

        Raises:
            StateError: the environment cannot do so.
        """
        base = self.env.unwrapped
        if not hasattr(base, "reset_to"):
            raise StateError(
                f"Expected an environment with reset_to, got {type(base).__name__}. Use a manager-based one."
            )
        return dict(base.reset_to(state, ids, seed=seed, is_relative=is_relative)[0])

    def step(self, actions: Tree) -> TaskStep:
        """Steps all rows."""
        obs, reward, terminated, truncated, _ = self.env.step(_with_columns(self.action_space, actions))
        return TaskStep(dict(obs), reward, terminated.bool(), truncated.bool())

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def _space_of(obs: Tree) -> AnySpace:
    """Returns the space of one row of a nested dict of tensors."""
    if isinstance(obs, Mapping):
        return spaces.Dict({name: _space_of(part) for name, part in obs.items()})
    dtype: Any = torch.empty(0, dtype=obs.dtype).numpy().dtype.type
    if obs.dtype.is_floating_point:
        low, high = -np.inf, np.inf
    elif obs.dtype == torch.bool:
        low, high = 0, 1
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, tuple(obs.shape[1:]), dtype)


def _action_space(space: Any) -> AnySpace:
    """Returns a space of gymnasium or of the old gym as one of gymnasium, a Box with float32."""
    space = as_gymnasium_space(space)
    return spaces.Box(space.low, space.high, dtype=np.float32) if isinstance(space, spaces.Box) else space


def _with_columns(space: AnySpace, actions: Tree) -> Tree:
    """Returns actions as Isaac Lab's environments take them: those of a Discrete are `[n, 1]`."""
    if isinstance(space, spaces.Dict):
        return {name: _with_columns(part, actions[name]) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_with_columns(part, action) for part, action in zip(space, actions, strict=True))
    return actions.unsqueeze(-1) if isinstance(space, spaces.Discrete) else actions


def _map(function: Any, tree: Tree, *others: Tree) -> Tree:
    """Calls a function with the leaves at equal places of nested dicts and tuples of tensors."""
    if isinstance(tree, Mapping):
        return {name: _map(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def _as_column_mask(mask: Tensor, leaf: Tensor) -> Tensor:
    """Returns a mask `[n]` with the number of dimensions of a leaf `[n, ...]`."""
    return mask.reshape(-1, *[1] * (leaf.ndim - 1))


def _fill_where(mask: Tensor, leaf: Tensor) -> Tensor:
    """Returns a copy of a leaf `[n, ...]` with NaN (0 in integers, False in bools) in the rows of a mask `[n]`."""
    return leaf.masked_fill(_as_column_mask(mask, leaf), float("nan") if leaf.dtype.is_floating_point else 0)


def _library(library: str, module: str) -> Any:
    return import_library(module, _HINTS[library])


def start_app(device: str = "cuda:0", *, enable_cameras: bool = False, headless: bool = True) -> None:
    """Starts Isaac Sim's application, without which Isaac Lab's environments cannot be imported.

    A process can have one application only. So this function has no effect if an earlier call has started it, or if the
    program has started it by Isaac Lab's own `AppLauncher`.

    Args:
        device: the device of physics and rendering.
        enable_cameras: whether cameras can render, which tasks that observe images need.
        headless: whether to open no window.

    Raises:
        VersionError: Isaac Lab is not installed; the message says how to install it.
        ValueError: cameras are needed, and an earlier call has started the application without them.
    """
    if not _app and "omni.kit.app" not in sys.modules:
        try:
            # The package sets no attribute, and supports this form only
            from isaaclab.app import AppLauncher  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise VersionError(f"{_HINTS['isaaclab']} ({error})") from error
        launcher = AppLauncher(headless=headless, enable_cameras=enable_cameras, device=device)
        _app.update(launcher=launcher, enable_cameras=enable_cameras)
    elif enable_cameras and not _app.get("enable_cameras", True):
        raise ValueError(
            "Expected enable_cameras=True for the first environment of Isaac Lab in this process, got False. "
            "Cameras cannot be enabled later. Give enable_cameras=True to the first environment, or to start_app."
        )


def make_task(
    name: str,
    num_envs: int,
    *,
    library: str,
    device: Any = None,
    enable_cameras: bool = False,
    **kwargs: Any,
) -> Any:
    """Makes a task by name and returns the library's object.

    Args:
        name: a key of `isaacgymenvs.tasks.isaacgym_task_map` ("Ant"), or an id of Isaac Lab ("Isaac-Ant-v0").
        num_envs: number of rows.
        library: "isaacgym" or "isaaclab".
        device: the device of physics and tensors; None for "cuda:0".
        enable_cameras: of Isaac Lab, see `start_app`.
        kwargs: for `isaacgymenvs.make` (`seed`, `headless` …), or for `gymnasium.make` of Isaac Lab.

    Raises:
        ImportError: the library is not installed; the message says how to install it.
    """
    device = "cuda:0" if device is None else str(device)
    if library == "isaacgym":
        _library(library, "isaacgym")  # it must be imported before torch uses the GPU
        options = {"seed": 0, "sim_device": device, "rl_device": device, "headless": True, **kwargs}
        return _library(library, "isaacgymenvs").make(task=name, num_envs=num_envs, **options)
    start_app(device, enable_cameras=enable_cameras)
    _library(library, "isaaclab_tasks")
    config = _library(library, "isaaclab_tasks.utils").parse_env_cfg(name, device=device, num_envs=num_envs)
    return gymnasium.make(name, cfg=config, **kwargs)


TASKS = {"isaacgym": IsaacGymTask, "isaaclab": IsaacLabTask}


def make_batch(
    name: str, num_envs: int, *, library: str, device: Any = None, infos: bool = True, **kwargs: Any
) -> SelfResettingSimulator:
    """Makes a task as a simulator; see `make_task` for the arguments. Its steps have no infos."""
    return SelfResettingSimulator(TASKS[library](make_task(name, num_envs, library=library, device=device, **kwargs)))


def names(*, library: str) -> list[str]:
    """Returns the names of the tasks; those of Isaac Lab after its application has been started.

    Raises:
        ImportError: as `make_task`.
    """
    if library == "isaacgym":
        return list(_library(library, "isaacgymenvs.tasks").isaacgym_task_map)
    _library(library, "isaaclab")
    return [name for name in gymnasium.registry if name.startswith("Isaac-")]
