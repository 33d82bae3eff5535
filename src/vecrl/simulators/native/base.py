"""The base class of all native tasks: the batch, seeds, counters, resets without host synchronization, rendering.

A task consists of pure functions of a state `[d, n]`. Each quantity is contiguous in memory, which suits vector units
and GPUs. Nothing in `step`, `reset_where` or `step_and_reset` waits for a device. This module knows no auto-reset modes
or dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import ArrayLike
from torch import Tensor

from ...engine.simulator import BatchStep, ResetOptions
from ...errors import PendingError, SpaceError
from ...validation import parse_count
from .compile_utils import compile_static
from .counter_rng import keys_of, uniform, uniform_numpy

_NO_OPTIONS: ResetOptions = {}
_NO_LIMIT = 2**31 - 1


class NativeState(NamedTuple):
    """The full state of a batch of environments, as tensors on one device.

    Attributes:
        state: `[d, n]`, the state of the task.
        steps: `[n]` int32, the steps since the start of the episode.
        episodes: `[n]` int32, the number of earlier episodes since the row was seeded.
        keys: `[2, n]` int32, computed from the seed.
    """

    state: Tensor
    steps: Tensor
    episodes: Tensor
    keys: Tensor


class NativeSimulator:
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

    Its attributes are those of `BatchSimulator`, and `dtype` and `max_episode_steps`.

    Raises:
        ValueError: an argument is out of range.
    """

    checks_actions: ClassVar[bool] = True  # see `BatchSimulator`
    id: ClassVar[str]
    episode_steps: ClassVar[int]
    fps: ClassVar[int]
    num_draws: ClassVar[int]
    observation_space: Any
    action_space: Any

    @staticmethod
    def initial(uniforms: Tensor, options: ResetOptions) -> Tensor:
        """Computes start states `[d, n]` from `uniforms` in [0, 1), `[num_draws, n]`, and gymnasium's reset options."""
        raise NotImplementedError

    @staticmethod
    def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the next state `[d, n]`, the reward `[n]` and terminated `[n]`; `action` has the state's dtype."""
        raise NotImplementedError

    @staticmethod
    def observe(state: Tensor) -> Tensor:
        """Computes the observations `[k, n]`, which may be the state itself."""
        raise NotImplementedError

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
    ):
        limit = self.episode_steps if max_episode_steps is None else max_episode_steps
        _check_arguments(num_envs, dtype, render_mode, limit)
        self.num_envs = num_envs
        self.dtype = dtype
        self.max_episode_steps = limit
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": self.fps}
        if dtype == torch.float64:
            space = self.observation_space
            self.observation_space = Box(space.low.astype(np.float64), space.high.astype(np.float64), dtype=np.float64)
        self._limit = _NO_LIMIT if limit == -1 else limit
        self._device = torch.empty(0, device=device).device  # with an index, which "cuda" does not have
        self.device = str(self._device)
        self._check_values = check_actions
        self.compile = compile
        self._compiled: dict[str, Callable[..., tuple[Tensor, ...]]] = {}
        self._discrete = isinstance(self.action_space, Discrete)
        self._action_dtype = torch.int64 if self._discrete else dtype
        entropy = np.random.SeedSequence().generate_state(num_envs, np.uint64)
        self._keys = self._tensor(keys_of(entropy))
        self._episodes = torch.full((num_envs,), -1, dtype=torch.int32, device=self._device)
        self._rows: NativeState | None = None
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
        rows = self._rows
        keys, episodes = (self._keys, self._episodes) if rows is None else (rows.keys, rows.episodes)
        episodes = episodes + 1
        if seeds is not None:
            keys, episodes = self._reseed(seeds, keys, episodes)
        self._rows = self.start_rows(keys, episodes, options)
        return self._obs(self._rows.state)

    def reset_where(self, mask: Tensor) -> Tensor:
        """Starts an episode in the rows of the bool `mask` `[n]` and returns the observations of all rows."""
        obs, self._rows = self.restart_rows(mask, self._require_state())
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
        step, self._rows = self.step_rows(self._detached_actions(actions), rows)
        return step

    def step_and_reset(self, actions: ArrayLike | Tensor) -> tuple[BatchStep, Tensor, Tensor]:
        """Steps every row and starts an episode in rows that are done: one compiled region with `compile`.

        Returns:
            The step, `done` `[n]` (terminated or truncated), and the observations to act on next `[n, k]`.
        """
        rows = self._require_state()
        step, done, obs, self._rows = self.step_and_restart_rows(self._detached_actions(actions), rows)
        return step, done, obs

    def render(self, row: int) -> np.ndarray | None:
        """Renders a frame `[height, width, 3]` uint8 of one row with gymnasium's renderer; None without render mode."""
        if self.render_mode is None:
            return None
        state = self._require_state().state[:, row].double().cpu().numpy()
        if self._renderer is None:
            self._renderer = gymnasium.make(self.id, render_mode="rgb_array", disable_env_checker=True).unwrapped
            self._renderer.reset()
        self._renderer.state = state
        return self._renderer.render()

    def get_state(self) -> dict[str, Tensor]:
        """Returns copies of the rows as tensors of leading size n: "state", "steps", "episodes" and "keys".

        Before the first reset there are only "episodes" and "keys".
        """
        rows = {"episodes": self._episodes, "keys": self._keys} if self._rows is None else self._rows._asdict()
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
            self._rows = NativeState(**values_by_name)
        else:
            self._episodes, self._keys = values_by_name["episodes"], values_by_name["keys"]

    def close(self) -> None:
        """Closes the renderer. Further calls have no effect."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_envs}, device={self.device!r}, dtype={self.dtype})"

    # -- pure functions of tensors, called directly or compiled ------------------------------------

    @property
    def rows(self) -> NativeState:
        """The rows, not copies of them, for functions that fuse `step_and_restart` with other code."""
        return self._require_state()

    @rows.setter
    def rows(self, rows: NativeState) -> None:
        self._rows = rows

    def step_and_restart(self, actions: Tensor, rows: NativeState) -> tuple[BatchStep, Tensor, NativeState]:
        """Computes `step_and_reset` as a pure function of `rows`, without checks.

        Returns:
            The step, the observations to act on next `[n, k]`, and the new rows.
        """
        values: Any = self._move_and_restart(actions, *rows)
        *step_values, _, obs, state, steps, episodes = values
        return BatchStep(*step_values), obs, NativeState(state, steps, episodes, rows.keys)

    def rows_obs(self, rows: NativeState) -> Tensor:
        """Computes the observations `[n, k]` of `rows`."""
        return self._obs(rows.state)

    def start_rows(self, keys: Tensor, episodes: Tensor, options: ResetOptions | None = None) -> NativeState:
        """Returns any number of rows at the start of the `episodes` `[n]` of their streams `keys` `[2, n]`."""
        state = self._start(keys, episodes, options or _NO_OPTIONS)
        return NativeState(state, torch.zeros_like(episodes), episodes, keys)

    def step_rows(self, actions: Tensor, rows: NativeState) -> tuple[BatchStep, NativeState]:
        """Computes `step` as a function of `rows` and checked actions; with `compile`, always as many rows."""
        *values, state, steps = self._maybe_compile(self._move)(actions, *rows)
        return BatchStep(*values), NativeState(state, steps, rows.episodes, rows.keys)

    def restart_rows(self, mask: Tensor, rows: NativeState) -> tuple[Tensor, NativeState]:
        """Computes `reset_where` as a function of `rows`, as `step_rows`."""
        if self.can_sync_host():
            row_index = mask.nonzero().squeeze(-1)
            if len(row_index):
                rows, _ = self.restart_selected_rows(row_index, rows)
            return self._obs(rows.state), rows
        obs, state, steps, episodes = self._maybe_compile(self._restart_masked)(mask, *rows)
        return obs, NativeState(state, steps, episodes, rows.keys)

    def step_and_restart_rows(
        self, actions: Tensor, rows: NativeState
    ) -> tuple[BatchStep, Tensor, Tensor, NativeState]:
        """Computes `step_and_reset` as a function of `rows` and checked actions, as `step_rows`."""
        if self.can_sync_host():
            step, rows = self.step_rows(actions, rows)
            done = torch.logical_or(step.terminated, step.truncated)
            return step, done, *self.restart_rows(done, rows)
        *step_values, done, obs, state, steps, episodes = self._maybe_compile(self._move_and_restart)(actions, *rows)
        return BatchStep(*step_values), done, obs, NativeState(state, steps, episodes, rows.keys)

    def move_rows(self, actions: Tensor, state: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
        """Computes a step without its observations: reward, terminated, truncated, the next state and steps."""
        state, reward, terminated = self.advance(state, actions.to(self.dtype))
        steps = steps + 1
        return reward, terminated, steps >= self._limit, state, steps

    def _start(self, keys: Tensor, episodes: Tensor, options: ResetOptions = _NO_OPTIONS) -> Tensor:
        return self.initial(uniform(keys, episodes, self.num_draws, self.dtype), options)

    def _obs(self, state: Tensor) -> Tensor:
        # Computed per quantity, which is fast, then transposed into new memory, which the caller may write to.
        return self.observe(state).t().clone(memory_format=torch.contiguous_format)

    def _move(self, actions: Tensor, state: Tensor, steps: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        *values, state, steps = self.move_rows(actions, state, steps)
        return self._obs(state), *values, state, steps

    def _restart_masked(
        self, mask: Tensor, state: Tensor, steps: Tensor, episodes: Tensor, keys: Tensor
    ) -> tuple[Tensor, ...]:
        # Computes start states for all rows and selects those of the mask, so the host does not wait for its values.
        episodes = episodes + mask
        state = torch.where(mask, self._start(keys, episodes), state)
        return self._obs(state), state, torch.where(mask, 0, steps), episodes

    def _move_and_restart(
        self, actions: Tensor, state: Tensor, steps: Tensor, episodes: Tensor, keys: Tensor
    ) -> tuple[Tensor, ...]:
        *values, state, steps = self._move(actions, state, steps)
        done = values[2] | values[3]
        return *values, done, *self._restart_masked(done, state, steps, episodes, keys)

    # -- compilation, and resets of few rows -------------------------------------------------------

    def can_sync_host(self) -> bool:
        """Whether reading a mask takes no time. Resetting only the selected rows is then faster than computing all."""
        return self._device.type == "cpu" and not self.compile and not torch.compiler.is_compiling()

    def restart_selected_rows(self, row_index: Tensor, rows: NativeState) -> tuple[NativeState, Tensor]:
        """Starts an episode in the rows `row_index` `[m]`, on a CPU; returns all rows and the start states `[d, m]`."""
        episodes = rows.episodes[row_index] + 1
        uniforms = uniform_numpy(rows.keys[:, row_index], episodes, self.num_draws, self.dtype)
        new_state = self.initial(uniforms, _NO_OPTIONS)
        state, steps = rows.state.index_copy(1, row_index, new_state), rows.steps.index_fill(0, row_index, 0)
        return NativeState(state, steps, rows.episodes.index_copy(0, row_index, episodes), rows.keys), new_state

    def _maybe_compile(self, function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
        """Returns `function`; with `compile`, compiled into one kernel on the first call."""
        if not self.compile:
            return function
        name = function.__name__
        if name not in self._compiled:
            self._compiled[name] = compile_static(function)
        return self._compiled[name]

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
        shape = (count, *self.action_space.shape)
        if not isinstance(actions, Tensor):
            actions = torch.from_numpy(np.array(actions))  # a copy, since torch cannot share read-only arrays
        if actions.shape != shape:
            raise SpaceError(
                f"Expected actions of shape {shape}, one row per environment of {self.id}, got {tuple(actions.shape)}."
            )
        if self._discrete and (actions.is_floating_point() or actions.is_complex()):
            raise SpaceError(f"Expected integers as actions of {self.id}, got {actions.dtype}. Convert them first.")
        if actions.dtype != self._action_dtype or actions.device != self._device:
            actions = actions.to(self._device, self._action_dtype)
        check = self.can_sync_host() if self._check_values is None else self._check_values
        if check and self._discrete:
            self._check_range(actions)
        return actions

    def _check_range(self, actions: Tensor) -> None:
        invalid = ((actions < 0) | (actions >= self.action_space.n)).nonzero().squeeze(-1).tolist()
        if invalid:
            values = [int(actions[i]) for i in invalid[:5]]
            raise SpaceError(
                f"Expected actions from 0 to {self.action_space.n - 1} for {self.id}, got {values} for the "
                f"environments {invalid[:5]}."
            )

    def _reseed(self, seeds: Sequence[int | None], keys: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
        if len(seeds) != self.num_envs:
            raise SpaceError(f"Expected {self.num_envs} seeds, one per environment, got {len(seeds)}.")
        invalid = [seed for seed in seeds if seed is not None and not 0 <= seed < 2**64]
        if invalid:
            raise SpaceError(f"Expected seeds of at least 0 and less than 2**64, got {invalid[0]!r}.")
        is_seeded = self._tensor(np.array([seed is not None for seed in seeds]))
        new_keys = self._tensor(keys_of(np.array([seed or 0 for seed in seeds], np.uint64)))
        return torch.where(is_seeded, new_keys, keys), torch.where(is_seeded, 0, episodes)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def start_bounds(options: ResetOptions, low: float, high: float) -> tuple[float, float]:
    """Returns `options["low"]` and `options["high"]`, or the defaults.

    Raises:
        SpaceError: an option is not a number, or the first is greater than the second.
    """
    low, high = option_number(options, "low", low), option_number(options, "high", high)
    if low > high:
        raise SpaceError(f"Expected options['low'] to be at most options['high'], got {low} and {high}.")
    return low, high


def option_number(options: ResetOptions, name: str, default: float) -> float:
    """Returns `options[name]` as a float, or `default`.

    Raises:
        SpaceError: it is not a number.
    """
    try:
        return float(options.get(name, default))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"Expected options[{name!r}] to be a number, got {options[name]!r}.") from error


def env_first(value: Tensor) -> Tensor:
    """Transposes `[d, n]` to `[n, d]`, and back; returns `[n]` unchanged."""
    return value if value.ndim == 1 else value.t()


def _check_arguments(num_envs: int, dtype: torch.dtype, render_mode: str | None, limit: int) -> None:
    parse_count("num_envs", num_envs)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"Expected dtype torch.float32 or torch.float64, got {dtype!r}.")
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"Expected render_mode 'rgb_array' or None, got {render_mode!r}.")
    if limit < 1 and limit != -1:
        raise ValueError(f"Expected max_episode_steps of at least 1, or -1 for no limit, got {limit!r}.")
