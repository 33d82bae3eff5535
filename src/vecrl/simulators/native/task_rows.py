"""`TaskRows`: steps and resets of the rows of a native task as functions, with NumPy or torch.

No function of tensors waits for a device, except on a CPU, where that takes no time. This module knows no seeds,
batches or checks of arguments, which `base` has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...engine.simulator import Array, BatchStep, ResetOptions
from ..array_library import ArrayLibrary, to_numpy_dtype, to_tensors
from ..compile_utils import compile_static
from ..counter_rng import uniform, uniform_numpy
from .start_cache import StartCache
from .state import NativeState

NO_OPTIONS: ResetOptions = {}
_ROWS_OF_ONE_COPY = 512  # NumPy transposes more rows faster by one copy per quantity


class TaskRows:
    """The functions of rows of one task. Those of `NativeState` take and return tensors.

    Args:
        device: of the tensors.
        dtype: of states, observations and rewards.
        limit: truncates episodes of this length.
        compile: compiles steps and resets on first use.
        arrays: the library that computes; with "numpy", torch still computes rows that need gradients.
    """

    can_compile: ClassVar[bool] = True  # whether the functions of the task consist of torch's only
    supports_numpy: ClassVar[bool] = False  # whether they also take NumPy arrays, and `advance` returns new ones
    num_draws: int

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
        device: torch.device,
        dtype: torch.dtype,
        limit: int,
        arrays: ArrayLibrary,
        compile: bool,  # noqa: A002 -- torch's name for it
    ):
        self.dtype, self.compile, self.arrays = dtype, compile, arrays
        self._device, self._limit = device, limit
        self._numpy_dtype = to_numpy_dtype(dtype)
        self._compiled: dict[str, Callable[..., tuple[Tensor, ...]]] = {}
        self._starts = StartCache(self._start)

    # -- functions of tensors, without checks ------------------------------------------------------

    def step_and_restart(self, actions: Tensor, rows: NativeState) -> tuple[BatchStep, Tensor, NativeState]:
        """Computes `step_and_reset` as a pure function of `rows`, for code that is compiled with it.

        Returns:
            The step, the observations to act on next `[n, k]`, and the new rows.
        """
        values: Any = self._move_and_restart(actions, *rows)
        *step_values, _, obs, state, steps, episodes = values
        return BatchStep(*step_values), obs, NativeState(state, steps, episodes, rows.keys)

    def rows_obs(self, rows: NativeState) -> Tensor:
        """Computes the observations `[n, k]` of `rows`."""
        return self._tensor_obs(rows.state)

    def start_rows(self, keys: Tensor, episodes: Tensor, options: ResetOptions | None = None) -> NativeState:
        """Returns any number of rows at the start of the `episodes` `[n]` of their streams `keys` `[2, n]`."""
        state = self._start(keys, episodes, options or NO_OPTIONS)
        return NativeState(state, torch.zeros_like(episodes), episodes, keys)

    def step_rows(self, actions: Tensor, rows: NativeState) -> tuple[BatchStep, NativeState]:
        """Computes `step` as a function of `rows` and checked actions; with `compile`, always as many rows."""
        if self._uses_numpy(actions, rows.state):
            values, new_rows = self._numpy_step(actions.detach().numpy(), rows.to_numpy())
            return BatchStep(*to_tensors(values)), new_rows.to_torch()
        *values, state, steps = self._maybe_compile(self._move)(actions, *rows)
        return BatchStep(*values), NativeState(state, steps, rows.episodes, rows.keys)

    def restart_rows(self, mask: Tensor, rows: NativeState) -> tuple[Tensor, NativeState]:
        """Computes `reset_where` as a function of `rows`, as `step_rows`."""
        if self.can_sync_host():
            row_index = mask.nonzero().squeeze(-1)
            if len(row_index):
                rows = self._restart_selected_rows(row_index, rows)
            return self.rows_obs(rows), rows
        obs, state, steps, episodes = self._maybe_compile(self._restart_masked)(mask, *rows)
        return obs, NativeState(state, steps, episodes, rows.keys)

    def step_and_restart_rows(
        self, actions: Tensor, rows: NativeState
    ) -> tuple[BatchStep, Tensor, Tensor, NativeState]:
        """Computes `step_and_reset` as a function of `rows` and checked actions, as `step_rows`."""
        if self._uses_numpy(actions, rows.state):
            values, done, obs, new_rows = self._numpy_step_and_restart(actions.detach().numpy(), rows.to_numpy())
            done, obs = to_tensors((done, obs))
            return BatchStep(*to_tensors(values)), done, obs, new_rows.to_torch()
        if self.can_sync_host():
            step, rows = self.step_rows(actions, rows)
            done = torch.logical_or(step.terminated, step.truncated)
            return step, done, *self.restart_rows(done, rows)
        *step_values, done, obs, state, steps, episodes = self._maybe_compile(self._move_and_restart)(actions, *rows)
        return BatchStep(*step_values), done, obs, NativeState(state, steps, episodes, rows.keys)

    def _restart_selected_rows(self, row_index: Tensor, rows: NativeState) -> NativeState:
        """Starts an episode in the rows `row_index` `[m]`, on a CPU; returns all rows."""
        episodes = rows.episodes[row_index] + 1
        uniforms = uniform_numpy(rows.keys[:, row_index].numpy(), episodes.numpy(), self.num_draws, self._numpy_dtype)
        new_state = self.initial(torch.from_numpy(uniforms), NO_OPTIONS)
        state, steps = rows.state.index_copy(1, row_index, new_state), rows.steps.index_fill(0, row_index, 0)
        return NativeState(state, steps, rows.episodes.index_copy(0, row_index, episodes), rows.keys)

    def can_sync_host(self) -> bool:
        """Whether reading a mask takes no time. Resetting only the selected rows is then faster than computing all."""
        return self._device.type == "cpu" and not self.compile and not torch.compiler.is_compiling()

    def _uses_numpy(self, *tensors: Tensor) -> bool:
        """Whether NumPy computes with these tensors: not if torch records or compiles what is computed."""
        if self.arrays != "numpy" or torch.compiler.is_compiling():
            return False
        records = torch.is_grad_enabled()
        return not any(type(value) is not Tensor or (records and value.requires_grad) for value in tensors)

    def _tensor_obs(self, state: Tensor) -> Tensor:
        """Computes the observations `[n, k]`, with the library that computes the steps."""
        return torch.from_numpy(self._obs(state.detach().numpy())) if self._uses_numpy(state) else self._obs(state)

    # -- functions of arrays of either library -----------------------------------------------------

    def move_rows(self, actions: Array, state: Array, steps: Array) -> tuple[Array, ...]:
        """Computes a step without its observations: reward, terminated, truncated, the next state and steps.

        Args:
            actions: `[n, ...]` in any dtype, as `state` `[d, n]` and `steps` `[n]` tensors or NumPy arrays.
        """
        is_tensor = isinstance(state, Tensor)
        actions = actions.to(self.dtype) if is_tensor else actions.astype(self._numpy_dtype, copy=False)
        state, reward, terminated = self.advance(state, actions)
        steps = steps + 1
        return reward, terminated, steps >= self._limit, state, steps

    def _start(self, keys: Array, episodes: Array, options: ResetOptions = NO_OPTIONS) -> Array:
        if isinstance(keys, Tensor):
            return self.initial(uniform(keys, episodes, self.num_draws, self.dtype), options)
        uniforms: Any = uniform_numpy(keys, episodes, self.num_draws, self._numpy_dtype)
        return self.initial(uniforms, options)

    def _obs(self, state: Array) -> Array:
        # Computed per quantity, which is fast, then transposed into new memory, which the caller may write to.
        obs: Array = self.observe(state)
        if isinstance(obs, Tensor):
            return obs.t().clone(memory_format=torch.contiguous_format)
        if obs.shape[1] < _ROWS_OF_ONE_COPY:
            return obs.T.copy()
        result = np.empty((obs.shape[1], obs.shape[0]), obs.dtype)
        for i, quantity in enumerate(obs):
            result[:, i] = quantity
        return result

    # -- functions of NumPy arrays -----------------------------------------------------------------

    def _numpy_step(self, actions: Array, rows: NativeState) -> tuple[tuple[Array, ...], NativeState]:
        """Computes a step: its observations, reward, terminated and truncated; the new rows."""
        with np.errstate(all="ignore"):  # the values of rows with an ended episode are undefined
            *values, state, steps = self.move_rows(actions, rows.state, rows.steps)
        return (self._obs(state), *values), NativeState(state, steps, rows.episodes, rows.keys)

    def _numpy_step_and_restart(
        self, actions: Array, rows: NativeState
    ) -> tuple[tuple[Array, ...], Array, Array, NativeState]:
        """Computes a step and resets: the results of the step, done, the observations to act on, the new rows."""
        reward, terminated, truncated, state, steps = self.move_rows(actions, rows.state, rows.steps)
        next_obs, done = self._obs(state), terminated | truncated
        obs = next_obs.copy()
        new_rows = self._numpy_restart(done, obs, NativeState(state, steps, rows.episodes, rows.keys))
        return (next_obs, reward, terminated, truncated), done, obs, new_rows

    def _numpy_restart(self, mask: Array, obs: Array, rows: NativeState) -> NativeState:
        """Starts an episode in the rows of `mask`: writes to `obs`, `rows.state` and `rows.steps`; returns the rows."""
        (row_index,) = mask.nonzero()
        if not len(row_index):
            return rows
        state, steps, episodes, keys = rows
        episodes: Array = episodes + mask
        new_state = self._starts.get(keys, episodes, row_index)
        obs[row_index] = self.observe(new_state).T
        state[:, row_index] = new_state
        steps[row_index] = 0
        return NativeState(state, steps, episodes, keys)  # pyright: ignore[reportArgumentType]

    # -- functions of tensors for compiled steps and GPUs ------------------------------------------

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

    def _maybe_compile(self, function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
        """Returns `function`; with `compile`, compiled into one kernel on the first call."""
        if not self.compile:
            return function
        name = function.__name__
        if name not in self._compiled:
            self._compiled[name] = compile_static(function)
        return self._compiled[name]
