"""Tasks of Isaac Gym and Isaac Lab as a `BatchSimulator`: many rows on one device, which reset themselves in a step.

The observation with which an episode ends is not returned by these tasks: "next" observations are NaN (or zeros) in
rows that end an episode. This module imports the libraries when a task is made, and must not know any dialect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..engine.simulator import BatchStep, ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError, StateError
from .imports import import_library

_HINTS = {
    "isaacgym": "Isaac Gym is not installed: download it from https://developer.nvidia.com/isaac-gym, pip install its "
    "python folder, then pip install git+https://github.com/isaac-sim/IsaacGymEnvs.git. It needs Python 3.8 and a GPU",
    "isaaclab": "Isaac Lab is not installed: install Isaac Sim and Isaac Lab as https://isaac-sim.github.io/IsaacLab "
    "says. They need a GPU",
}


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

    def reset(self, seed: int | None) -> Tree: ...
    def step(self, actions: Tensor) -> TaskStep: ...
    def close(self) -> None: ...


class SelfResettingSimulator:
    """The rows of a task that resets itself; a `vecrl.engine.simulator.BatchSimulator`.

    Observations have the keys, shapes and dtypes of the first reset. All rows share one random generator, so the seed
    of row 0 seeds all.

    Args:
        task: see `Task`. It is reset once.
    """

    checks_actions = True  # the libraries clip actions
    metadata: dict[str, Any] = {"render_modes": []}
    render_mode: str | None = None

    def __init__(self, task: Task):
        self.task = task
        self.num_envs, self.device = task.num_envs, str(task.device)
        self.action_space = task.action_space
        self._obs = task.reset(None)
        self.observation_space = _space_of(self._obs)
        self._restarted = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Tree:
        """Resets all rows and returns their observations.

        Raises:
            SpaceError: options are given, which these tasks do not take.
        """
        if options:
            raise SpaceError(f"Expected no reset options for Isaac's tasks, got {sorted(options)}.")
        self._obs = self.task.reset(None if seeds is None else seeds[0])
        self._restarted = torch.ones_like(self._restarted)
        return _map(torch.clone, self._obs)

    def reset_where(self, mask: Tensor) -> Tree:
        """Returns the first observations of rows that have reset themselves in the last step, and all other rows.

        Raises:
            SpaceError: the mask has other rows, which cannot be reset alone.
        """
        if bool((mask & ~self._restarted).any()):
            raise SpaceError(
                "Expected a mask of rows that ended in the last step, got others. These tasks reset rows themselves; "
                "reset all rows instead."
            )
        return _map(torch.clone, self._obs)

    def step(self, actions: Tensor) -> BatchStep:
        """Steps all rows."""
        return self.step_and_reset(actions)[0]

    def step_and_reset(self, actions: Tensor) -> tuple[BatchStep, Tensor, Tree]:
        """Steps all rows; returns the step, the rows that ended, and the observations to act on next."""
        result = self.task.step(torch.as_tensor(actions, device=self.device))
        self._obs = result.obs
        self._restarted = result.terminated | result.truncated
        final = _map(lambda leaf: _blank_where(self._restarted, leaf), result.obs)
        step = BatchStep(final, result.reward.float().clone(), result.terminated.clone(), result.truncated.clone())
        return step, self._restarted.clone(), _map(torch.clone, result.obs)

    def render(self, row: int) -> None:
        """Returns None: cameras are part of the observations."""

    def get_state(self) -> dict[str, Tensor]:
        """Raises a StateError, since the state is in the physics engine."""
        raise StateError("Expected a simulator with states, got one of Isaac's tasks, which do not return theirs.")

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises a StateError, as `get_state`."""
        self.get_state()

    def close(self) -> None:
        """Closes the task."""
        self.task.close()


class IsaacGymTask:
    """A task of Isaac Gym: `isaacgymenvs.tasks.base.vec_task.VecTask`, or an object with its methods."""

    def __init__(self, env: Any):
        self.env = env
        self.num_envs, self.device = int(env.num_envs), str(getattr(env, "rl_device", env.device))
        self.action_space: AnySpace = _box_of(env.action_space)

    def reset(self, seed: int | None) -> Tree:
        """Resets all rows; the seed is that of the global generators, which the tasks use."""
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 -- the generator of the tasks
        self.env.reset_idx(torch.arange(self.num_envs, device=self.env.device))
        if hasattr(self.env, "compute_observations"):  # `reset` returns what was computed last
            self.env.compute_observations()
        return dict(self.env.reset())

    def step(self, actions: Tensor) -> TaskStep:
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
    """An environment of Isaac Lab: a `ManagerBasedRLEnv` or `DirectRLEnv`, or an object with its methods."""

    def __init__(self, env: Any):
        self.env = env
        base = env.unwrapped
        self.num_envs, self.device = int(base.num_envs), str(base.device)
        self.action_space: AnySpace = _box_of(base.single_action_space)

    def reset(self, seed: int | None) -> Tree:
        """Resets all rows."""
        return dict(self.env.reset(seed=seed)[0])

    def step(self, actions: Tensor) -> TaskStep:
        """Steps all rows."""
        obs, reward, terminated, truncated, _ = self.env.step(actions)
        return TaskStep(dict(obs), reward, terminated.bool(), truncated.bool())

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def _space_of(obs: Tree) -> AnySpace:
    """Returns the space of one row of a nested dict of tensors."""
    if isinstance(obs, Mapping):
        return spaces.Dict({name: _space_of(part) for name, part in obs.items()})
    array = torch.empty(0, dtype=obs.dtype).numpy()
    if obs.dtype.is_floating_point:
        return spaces.Box(-np.inf, np.inf, tuple(obs.shape[1:]), array.dtype.type)
    limits = np.iinfo(array.dtype)
    return spaces.Box(limits.min, limits.max, tuple(obs.shape[1:]), array.dtype.type)


def _box_of(space: Any) -> spaces.Box:
    """Returns a Box of gymnasium or of the old gym as one of gymnasium."""
    return spaces.Box(np.asarray(space.low), np.asarray(space.high), dtype=np.float32)


def _map(function: Any, tree: Tree) -> Tree:
    return {name: _map(function, part) for name, part in tree.items()} if isinstance(tree, Mapping) else function(tree)


def _blank_where(mask: Tensor, leaf: Tensor) -> Tensor:
    blank = float("nan") if leaf.dtype.is_floating_point else 0
    return leaf.masked_fill(mask.reshape(-1, *[1] * (leaf.ndim - 1)), blank)


def _library(library: str, module: str) -> Any:
    return import_library(module, _HINTS[library])


def make_task(name: str, num_envs: int, *, library: str, device: Any = None, **kwargs: Any) -> Any:
    """Makes a task by name and returns the library's object.

    Args:
        name: a key of `isaacgymenvs.tasks.isaacgym_task_map` ("Ant"), or an id of Isaac Lab ("Isaac-Ant-v0").
        num_envs: number of rows.
        library: "isaacgym" or "isaaclab".
        device: the device of physics and tensors; None for "cuda:0".
        kwargs: for `isaacgymenvs.make` (`seed`, `headless` …), or for `gymnasium.make` of Isaac Lab.

    Raises:
        ImportError: the library is not installed; the message says how to install it.
    """
    device = "cuda:0" if device is None else str(device)
    if library == "isaacgym":
        _library(library, "isaacgym")  # it must be imported before torch uses the GPU
        options = {"seed": 0, "sim_device": device, "rl_device": device, "headless": True, **kwargs}
        return _library(library, "isaacgymenvs").make(task=name, num_envs=num_envs, **options)
    _library(library, "isaaclab.app").AppLauncher(headless=True)  # nothing else can be imported before it
    _library(library, "isaaclab_tasks")
    config = _library(library, "isaaclab_tasks.utils").parse_env_cfg(name, device=device, num_envs=num_envs)
    return import_module("gymnasium").make(name, cfg=config, **kwargs)


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
    return [name for name in import_module("gymnasium").registry if name.startswith("Isaac-")]
