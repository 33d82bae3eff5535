"""Tasks of Isaac Gym and Isaac Lab as a `BatchSimulator`: many rows on one device, which reset themselves in a step.

The observation with which an episode ends is not returned by these tasks: "next" observations are NaN (0 in integers,
False in bools) in rows that end an episode. This module imports the libraries when a task is made.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from inspect import signature
from typing import Any, NoReturn

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..engine.simulator import BatchStep
from ..engine.space_layout import AnySpace, Tree
from ..engine.trees import map_tree
from ..errors import SpaceError, StateError, VersionError
from ..imports import import_library
from .array_library import on_host
from .batch_adapter import Seeds, SelfResetAdapter, space_of_rows
from .legacy_gym import as_gymnasium_space

_HINTS = {
    "isaacgym": "Isaac Gym (https://developer.nvidia.com/isaac-gym) cannot be imported. It needs Python 3.8 or older, "
    "on which vecrl does not run. Use isaaclab::, which replaces it",
    "isaaclab": "Isaac Lab is not installed: pip install 'isaaclab[isaacsim]==2.3.2' --extra-index-url "
    "https://pypi.nvidia.com on Python 3.11, as https://isaac-sim.github.io/IsaacLab says. It needs a GPU",
}
_app: dict[str, Any] = {}  # the application that this process has started, see `start_app`


class IsaacSimulator(SelfResetAdapter):
    """The base for tasks of Isaac, which reset their rows themselves in a step; see `SelfResetAdapter`.

    Observations have the keys, shapes and dtypes of the first reset. All rows share one random generator, so the seed
    of row 0 seeds all. A subclass defines `reset_all`, `step_all` and `free`, and, if single rows can be reset,
    `reset_some` and `reset_to_state`.

    Args:
        env: the environment of the library. It is reset once.
        num_envs, device: its number of rows and its device.
        action_space: that of one row, of gymnasium or of the old gym.

    Attributes:
        env: the environment.
    """

    label = "Isaac's tasks"
    checks_range = False  # it would wait for the device
    resets_again = False  # most tasks reset all rows only

    def __init__(self, env: Any, num_envs: int, device: Any, action_space: Any):
        self.env = env
        self._obs = self.reset_all(None)
        super().__init__(num_envs, space_of_rows(self._obs), _action_space(action_space), device=device)
        self.checks_actions = isinstance(self.action_space, spaces.Box)  # the libraries clip actions
        self.at_start = np.ones(num_envs, bool)
        self.was_reset = True

    @abstractmethod
    def reset_all(self, seed: int | None) -> Tree:
        """Resets all rows and returns their observations."""

    def reset_some(self, rows: Tensor) -> Tree:
        """Resets `rows` `[m]` and returns the observations of all rows."""
        raise SpaceError(
            "Expected a mask of rows that ended in the last step, got others. This task resets rows itself; reset all "
            "rows instead."
        )

    def reset_to_state(self, state: Any, rows: Tensor, is_relative: bool, seed: int | None) -> Tree:
        """Resets `rows` `[m]` to a state `[m, ...]`, and returns the observations of all rows."""
        name = type(self.env.unwrapped if hasattr(self.env, "unwrapped") else self.env).__name__
        raise StateError(f"Expected an environment with reset_to, got {name}. Use a manager-based one of Isaac Lab.")

    @abstractmethod
    def step_all(self, actions: Tree) -> tuple[Tree, Tensor, Tensor, Tensor]:
        """Steps all rows; observations of rows that ended are those of their next episodes.

        Returns:
            Observations, rewards `[n]`, terminated `[n]` and truncated `[n]`.
        """

    # -- SelfResetAdapter --------------------------------------------------------------------------

    def start(self, rows: np.ndarray, seeds: Seeds) -> None:
        """Starts an episode in each of `rows`."""
        if seeds is None:
            ids = torch.from_numpy(rows).to(self.device)
            self._replace_rows(ids, self.reset_some(ids))
        else:
            self._obs = self.reset_all(seeds[0])

    def reset_to(self, mask: Tensor, state: Any, is_relative: bool, seed: int | None) -> None:
        """Resets the rows of `mask` `[n]` to their parts of the state of a scene of Isaac Lab.

        Raises:
            StateError: the task cannot do so.
        """
        rows = mask.nonzero().squeeze(-1)
        self._replace_rows(rows, self.reset_to_state(map_tree(lambda leaf: leaf[rows], state), rows, is_relative, seed))
        self.at_start = self.at_start | on_host(mask)

    def _replace_rows(self, rows: Tensor, obs: Tree) -> None:
        """Keeps the new observations of `rows`, and the last ones of others."""
        self._obs = map_tree(lambda old, new: old.index_copy(0, rows, new[rows]), self._obs, obs)

    def advance(self, actions: Tree) -> BatchStep:
        """Steps all rows."""
        actions = map_tree(lambda action: torch.as_tensor(action, device=self.device), actions)
        self._obs, reward, terminated, truncated = self.step_all(actions)
        ended = terminated | truncated
        self.at_start = on_host(ended)
        final = map_tree(lambda leaf: _fill_where(ended, leaf), self._obs)
        return BatchStep(final, reward.float().clone(), terminated.clone(), truncated.clone())

    def observe(self) -> Tree:
        """Returns copies of the observations of all rows."""
        return map_tree(torch.clone, self._obs)

    def read_state(self) -> NoReturn:
        """Raises a StateError, since the state is in the physics engine."""
        raise StateError(
            "Expected a simulator with states, got one of Isaac's tasks, which do not return theirs. Reset the rows."
        )


class IsaacGymSimulator(IsaacSimulator):
    """A task of Isaac Gym: `isaacgymenvs.tasks.base.vec_task.VecTask`, or an object with its methods."""

    def __init__(self, env: Any):
        super().__init__(env, int(env.num_envs), getattr(env, "rl_device", env.device), env.action_space)

    def reset_all(self, seed: int | None) -> Tree:
        """Resets all rows; the seed is that of the global generators, which the tasks use."""
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 -- the generator of the tasks
        self.env.reset_idx(torch.arange(self.env.num_envs, device=self.env.device))
        if hasattr(self.env, "compute_observations"):  # `reset` returns what was computed last
            self.env.compute_observations()
        return dict(self.env.reset())

    def step_all(self, actions: Tree) -> tuple[Tree, Tensor, Tensor, Tensor]:
        """Steps all rows. An end at the time limit truncates."""
        obs, reward, done, extras = self.env.step(actions)
        done = done.bool()
        truncated = done & extras["time_outs"].bool() if "time_outs" in extras else torch.zeros_like(done)
        return dict(obs), reward, done & ~truncated, truncated

    def free(self) -> None:
        """Closes the task, if it can be closed."""
        if hasattr(self.env, "close"):
            self.env.close()


class IsaacLabSimulator(IsaacSimulator):
    """An environment of Isaac Lab: a `ManagerBasedRLEnv` or `DirectRLEnv`, or an object with its methods."""

    def __init__(self, env: Any):
        self._base = env.unwrapped
        super().__init__(env, int(self._base.num_envs), self._base.device, self._base.single_action_space)

    def reset_all(self, seed: int | None) -> Tree:
        """Resets all rows."""
        return dict(self.env.reset(seed=seed)[0])

    def reset_some(self, rows: Tensor) -> Tree:
        """Resets `rows` of a `ManagerBasedRLEnv`, and returns the observations of all rows."""
        if "env_ids" not in signature(self._base.reset).parameters:
            return super().reset_some(rows)
        return dict(self._base.reset(env_ids=rows)[0])

    def reset_to_state(self, state: Any, rows: Tensor, is_relative: bool, seed: int | None) -> Tree:
        """Resets `rows` to a state, and returns the observations of all rows."""
        if not hasattr(self._base, "reset_to"):
            return super().reset_to_state(state, rows, is_relative, seed)
        return dict(self._base.reset_to(state, rows, seed=seed, is_relative=is_relative)[0])

    def step_all(self, actions: Tree) -> tuple[Tree, Tensor, Tensor, Tensor]:
        """Steps all rows."""
        obs, reward, terminated, truncated, _ = self.env.step(_with_columns(self.action_space, actions))
        return dict(obs), reward, terminated.bool(), truncated.bool()

    def free(self) -> None:
        """Closes the environment."""
        self.env.close()


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


def _fill_where(mask: Tensor, leaf: Tensor) -> Tensor:
    """Returns a copy of a leaf `[n, ...]` with NaN (0 in integers, False in bools) in the rows of a mask `[n]`."""
    mask = mask.reshape(-1, *[1] * (leaf.ndim - 1))
    return leaf.masked_fill(mask, float("nan") if leaf.dtype.is_floating_point else 0)


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


SIMULATORS = {"isaacgym": IsaacGymSimulator, "isaaclab": IsaacLabSimulator}


def make_batch(
    name: str, num_envs: int, *, library: str, device: Any = None, infos: bool = True, **kwargs: Any
) -> IsaacSimulator:
    """Makes a task as a simulator; see `make_task` for the arguments. Its steps have no infos."""
    return SIMULATORS[library](make_task(name, num_envs, library=library, device=device, **kwargs))


def names(*, library: str) -> list[str]:
    """Returns the names of the tasks; those of Isaac Lab after its application has been started.

    Raises:
        ImportError: as `make_task`.
    """
    if library == "isaacgym":
        return list(_library(library, "isaacgymenvs.tasks").isaacgym_task_map)
    _library(library, "isaaclab")
    return [name for name in gymnasium.registry if name.startswith("Isaac-")]
