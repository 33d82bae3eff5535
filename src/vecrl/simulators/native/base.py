"""The base class of all native tasks: the batch, seeds, counters, resets without host synchronization, rendering.

A task consists of pure functions of a state `[d, n]`. Each quantity is contiguous in memory, which suits vector units
and GPUs. They compute with NumPy in small batches on a CPU, and with torch otherwise. Nothing in `step`, `reset_where`
or `step_and_reset` waits for a device. This module knows no auto-reset modes or dialects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import ArrayLike
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from ...engine.simulator import BatchStep, ResetOptions
from ...errors import PendingError, SpaceError
from ...seeding import random_seeds
from ...validation import check_discrete, check_seeds, parse_count
from ..array_library import ArrayLibrary, choose_library, to_tensors
from ..counter_rng import keys_of
from .state import NativeState, env_first
from .task_rows import TaskRows

_NO_LIMIT = 2**31 - 1


class NativeSimulator(TaskRows):
    """n environments of one task as tensors on one device; a `vecrl.engine.simulator.BatchSimulator`.

    The start state of an episode depends only on the row's seed and the number of its episodes since, but not on the
    batch size, the other rows, the device or the dtype.

    Args:
        num_envs: n, at least 1.
        device: a torch device or its name.
        dtype: of states, observations and rewards, `torch.float32` or `torch.float64`.
        render_mode: "rgb_array" or None.
        max_episode_steps: truncates episodes of this length; None for gymnasium's limit, -1 for no limit.
        check_actions: check that every discrete action is in range. By default only if this waits for no device: on a
            CPU, not compiled.
        compile: compile the step (and the auto-reset in it) into one kernel on first use, which takes seconds and, on
            a CPU, needs a C++ compiler. This is worthwhile for more than a few thousand steps.
        arrays: the library that computes the rows, "numpy" or "torch". None chooses NumPy on a CPU for fewer than
            `array_library.NUMPY_ROWS` rows if nothing is compiled, because its calls take less time, and torch
            otherwise. Results are tensors in both cases. The libraries differ in the last bits of sines and cosines.
        physics: physical constants of the task by gymnasium's names, for example `g` of "Pendulum-v1".

    Its attributes are those of `BatchSimulator`, and `dtype`, `max_episode_steps`, `arrays` and the physical constants.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the task has no such physical constant, or it is of another type.
    """

    checks_actions: ClassVar[bool] = True  # see `BatchSimulator`
    physics: ClassVar[tuple[str, ...]] = ()  # the attributes of the task that its constructor may set
    id: str
    episode_steps: int
    fps: int
    observation_space: Any
    action_space: Any

    def __init__(
        self,
        num_envs: int,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        check_actions: bool | None = None,
        compile: bool = False,  # noqa: A002 -- torch's name for it
        arrays: ArrayLibrary | None = None,
        **physics: float | bool,
    ):
        limit = self.episode_steps if max_episode_steps is None else max_episode_steps
        _check_arguments(num_envs, dtype, render_mode, limit)
        torch_device = torch.empty(0, device=device).device  # with an index, which "cuda" does not have
        can_use_numpy = self.supports_numpy and torch_device.type == "cpu" and not compile
        library = choose_library(arrays, num_envs, can_use_numpy)
        super().__init__(torch_device, dtype, _NO_LIMIT if limit == -1 else limit, library, compile)
        self.num_envs = num_envs
        self.device = str(torch_device)
        self.max_episode_steps = limit
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": self.fps}
        if dtype == torch.float64:
            space = self.observation_space
            self.observation_space = Box(space.low.astype(np.float64), space.high.astype(np.float64), dtype=np.float64)
        for name, value in physics.items():
            setattr(self, name, self._parse_physics(name, value))
        self._discrete = isinstance(self.action_space, Discrete)
        self._checks_range = self._discrete and (self.can_sync_host() if check_actions is None else check_actions)
        self._action_dtype = torch.int64 if self._discrete else dtype
        self._action_shape = (num_envs, *self.action_space.shape)
        self._keys = self._tensor(keys_of(random_seeds(num_envs, 64)))
        self._episodes = torch.full((num_envs,), -1, dtype=torch.int32, device=self._device)
        self._rows: NativeState | None = None  # tensors, or NumPy arrays after a step with NumPy
        self._renderer: Any = None

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Tensor:
        """Starts an episode in every row.

        Args:
            seeds: n seeds, None or 0 <= seed < 2**64. None continues the row's random stream (which starts from the
                operating system's entropy if the row was never seeded).
            options: gymnasium's options of the task ("low" and "high", or "x_init" and "y_init"), for this reset only.

        Returns:
            The observations `[n, k]`.
        """
        rows = None if self._rows is None else self.rows
        keys, episodes = (self._keys, self._episodes) if rows is None else (rows.keys, rows.episodes)
        episodes = episodes + 1
        if seeds is not None:
            keys, episodes = self._reseed(seeds, keys, episodes)
        self.rows = rows = self.start_rows(keys, episodes, options)
        return self.rows_obs(rows)

    def reset_where(self, mask: Tensor) -> Tensor:
        """Starts an episode in the rows of the bool `mask` `[n]` and returns the observations of all rows."""
        if self._uses_numpy():
            rows: Any = self._numpy_rows()
            obs = self._obs(rows.state)
            copied = rows._replace(state=rows.state.copy(), steps=rows.steps.copy())
            self._rows = self._numpy_restart(mask.numpy(), obs, copied)
            return torch.from_numpy(obs)
        obs, self._rows = self.restart_rows(mask, self.rows)
        return obs

    def step(self, actions: ArrayLike | Tensor) -> BatchStep:
        """Steps every row.

        Args:
            actions: `[n]` integers or `[n, k]` numbers, as a tensor or an array-like.

        Raises:
            SpaceError: actions have another shape or kind, or, with `check_actions`, are out of range.
            PendingError: the simulator was not reset yet.
        """
        rows = self._require_state()
        if self._uses_numpy():
            values, self._rows = self._numpy_step(self._numpy_actions(actions), self._numpy_rows())
            return BatchStep(*to_tensors(values))
        step, self._rows = self.step_rows(self._detached_actions(actions), rows.to_torch())
        return step

    def step_and_reset(self, actions: ArrayLike | Tensor) -> tuple[BatchStep, Tensor, Tensor]:
        """Steps every row and starts an episode in rows that are done: one compiled region with `compile`.

        Returns:
            The step, `done` `[n]` (terminated or truncated), and the observations to act on next `[n, k]`.
        """
        rows = self._require_state()
        if self._uses_numpy():
            array, rows = self._numpy_actions(actions), self._numpy_rows()
            values, done, obs, self._rows = self._numpy_step_and_restart(array, rows)
            return BatchStep(*to_tensors(values)), torch.from_numpy(done), torch.from_numpy(obs)
        step, done, obs, self._rows = self.step_and_restart_rows(self._detached_actions(actions), rows.to_torch())
        return step, done, obs

    def render(self, row: int) -> np.ndarray | None:
        """Renders a frame `[height, width, 3]` uint8 of one row with gymnasium's renderer; None without render mode."""
        if self.render_mode is None:
            return None
        state = self.rows.state[:, row].double().cpu().numpy()
        if self._renderer is None:
            self._renderer = gymnasium.make(self.id, render_mode="rgb_array", disable_env_checker=True).unwrapped
            self._renderer.reset()
        self._renderer.state = state
        return self._renderer.render()

    def get_state(self) -> dict[str, Tensor]:
        """Returns copies of the rows as tensors of leading size n: "state", "steps", "episodes" and "keys".

        Before the first reset there are only "episodes" and "keys".
        """
        rows = {"episodes": self._episodes, "keys": self._keys} if self._rows is None else self.rows._asdict()
        return {name: env_first(value).clone() for name, value in rows.items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores a state that `get_state` returned, of this simulator or of another of this task and size."""
        names = NativeState._fields if "state" in state else ("episodes", "keys")
        values_by_name = {name: torch.as_tensor(state[name], device=self._device) for name in names}
        if any(value.shape[:1] != (self.num_envs,) for value in values_by_name.values()):
            sizes = {name: tuple(value.shape) for name, value in values_by_name.items()}
            raise SpaceError(f"Expected a state of {self.num_envs} rows, got the shapes {sizes}.")
        values_by_name = {name: env_first(value).contiguous().clone() for name, value in values_by_name.items()}
        self._rows = None
        if "state" in values_by_name:
            values_by_name["state"] = values_by_name["state"].to(self.dtype)
            self.rows = NativeState(**values_by_name)
        else:
            self._episodes, self._keys = values_by_name["episodes"], values_by_name["keys"]

    def close(self) -> None:
        """Closes the renderer. Further calls have no effect."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def __repr__(self) -> str:
        constants = "".join(f", {name}={getattr(self, name)!r}" for name in self.physics if name in vars(self))
        details = f"device={self.device!r}, dtype={self.dtype}, arrays={self.arrays!r}{constants}"
        return f"{type(self).__name__}({self.num_envs}, {details})"

    @property
    def rows(self) -> NativeState:
        """The rows as tensors, not copies of them, for functions that fuse `step_and_restart` with other code."""
        return self._require_state().to_torch()

    @rows.setter
    def rows(self, rows: NativeState) -> None:
        self._rows = rows

    def _numpy_rows(self) -> NativeState:
        rows = self._require_state()
        return rows.to_numpy() if isinstance(rows.state, Tensor) else rows

    # -- checks and conversions --------------------------------------------------------------------

    def _require_state(self) -> NativeState:
        if self._rows is None:
            raise PendingError(f"No episode of {self.id} was started. Call reset first.")
        return self._rows

    def _detached_actions(self, actions: ArrayLike | Tensor) -> Tensor:
        actions = self.as_actions(actions, self.num_envs)
        return actions.detach() if actions.requires_grad else actions

    def as_actions(self, actions: ArrayLike | Tensor, count: int) -> Tensor:
        """Converts the actions of `count` rows to the simulator's device and dtype; raises the errors of `step`."""
        if not isinstance(actions, Tensor):
            actions = torch.from_numpy(np.array(actions))  # a copy, since torch cannot share read-only arrays
        is_number = actions.is_floating_point() or actions.is_complex()
        self._check_actions(tuple(actions.shape), (count, *self.action_space.shape), is_number, actions.dtype)
        if actions.dtype != self._action_dtype or actions.device != self._device:
            actions = actions.to(self._device, self._action_dtype)
        if self.checks_values(actions):
            check_discrete(actions, self.action_space, self.id)
        return actions

    def checks_values(self, actions: Tensor) -> bool:
        """Whether to check that actions are in range: by default on the CPU only, where reading them takes no time."""
        return self._checks_range and not torch.compiler.is_compiling() and peek_interpreter_stack() is None

    def _numpy_actions(self, actions: ArrayLike | Tensor) -> np.ndarray:
        """Converts the actions of all rows to an array, as `as_actions` does to a tensor."""
        if isinstance(actions, Tensor):
            array = (actions.detach() if actions.requires_grad else actions).numpy(force=not actions.is_cpu)
        else:
            array = np.asarray(actions)
        if array.shape != self._action_shape or (self._discrete and array.dtype != np.int64):
            self._check_actions(array.shape, self._action_shape, array.dtype.kind not in "biu", array.dtype)
            array = array.astype(np.int64)
        # Negative indices become large unsigned ones.
        if self._checks_range and np.maximum.reduce(array.view(np.uint64)) >= self.action_space.n:
            check_discrete(array, self.action_space, self.id)
        return array

    def _check_actions(self, shape: tuple[int, ...], expected: tuple[int, ...], is_number: bool, dtype: Any) -> None:
        if shape != expected:
            raise SpaceError(
                f"Expected actions of shape {expected}, one row per environment of {self.id}, got {shape}."
            )
        if self._discrete and is_number:
            raise SpaceError(f"Expected integers as actions of {self.id}, got {dtype}. Convert them first.")

    def _reseed(self, seeds: Sequence[int | None], keys: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
        if len(seeds) != self.num_envs:
            raise SpaceError(f"Expected {self.num_envs} seeds, one per environment, got {len(seeds)}.")
        check_seeds(seeds)
        is_seeded = self._tensor(np.array([seed is not None for seed in seeds]))
        new_keys = self._tensor(keys_of(np.array([seed or 0 for seed in seeds], np.uint64)))
        return torch.where(is_seeded, new_keys, keys), torch.where(is_seeded, 0, episodes)

    def _parse_physics(self, name: str, value: Any) -> float | bool:
        if name not in self.physics:
            options = signature(NativeSimulator).parameters.values()
            known = [option.name for option in options if option.kind is option.KEYWORD_ONLY]
            raise TypeError(
                f"Expected arguments of {self.id} ({', '.join([*known, *self.physics])}), got {name!r}. "
                "Correct the name, or omit the argument."
            )
        kind = bool if isinstance(getattr(self, name), bool) else float
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, int | float):
            raise TypeError(f"Expected {name} of {self.id} to be a {kind.__name__}, got {value!r}.")
        return kind(value)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _check_arguments(num_envs: int, dtype: torch.dtype, render_mode: str | None, limit: int) -> None:
    parse_count("num_envs", num_envs)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"Expected dtype torch.float32 or torch.float64, got {dtype!r}.")
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"Expected render_mode 'rgb_array' or None, got {render_mode!r}.")
    if limit < 1 and limit != -1:
        raise ValueError(f"Expected max_episode_steps of at least 1, or -1 for no limit, got {limit!r}.")
