"""Tasks over rows: functions of arrays of all rows, and the simulator that drives them.

A `RowTask` is how episodes start, step and are observed, written once for NumPy and torch. `RowTaskSimulator` adds what
all tasks share: random streams, time limits, resets of some rows, states, checks of arguments. Each quantity of the
state is contiguous in memory, which suits vector units and GPUs.
"""

from __future__ import annotations

from ..imports import require_extra

require_extra("torch", __name__)

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import ArrayLike
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from ..engine.simulator import Array, BatchStep, ResetOptions
from ..errors import SpaceError
from ..seeding import random_seeds
from ..validation import check_discrete
from .array_library import ArrayLibrary, choose_library, on_host, to_numpy_dtype, to_tensors
from .batch_adapter import BatchDriver, Seeds, check_entries
from .compile_utils import compile_static
from .counter_rng import keys_of, uniform, uniform_numpy

_NO_OPTIONS: ResetOptions = {}
STREAM_ENTRIES = "episodes", "keys"  # of states; those before the first reset have no others
_ROWS_OF_ONE_COPY = 512  # NumPy transposes more rows faster by one copy per quantity


class RowState(NamedTuple):
    """The full state of a batch of environments, as tensors on one device (within simulators also as NumPy arrays).

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

    def to_numpy(self) -> RowState:
        """Returns the rows as NumPy arrays that share their memory, without gradients."""
        return RowState(*(value.detach().numpy() for value in self)) if isinstance(self.state, Tensor) else self  # pyright: ignore[reportArgumentType]

    def to_torch(self) -> RowState:
        """Returns rows of NumPy arrays as tensors that share their memory; rows of tensors unchanged."""
        return self if isinstance(self.state, Tensor) else RowState(*to_tensors(self))

    def where(self, mask: Tensor, other: RowState) -> RowState:
        """Returns these rows where the bool `mask` `[n]` holds, and those of `other` elsewhere."""
        return RowState(*map(torch.where, [mask] * len(self), self, other))


def env_first(value: Tensor) -> Tensor:
    """Transposes `[d, n]` to `[n, d]`, and back; returns `[n]` unchanged."""
    return value if value.ndim == 1 else value.t()


class RowTask:
    """A task as functions of arrays of all rows: NumPy arrays or tensors, without a change in place.

    Attributes:
        id: its name.
        observation_space, action_space: the spaces of one row, a `Box` or, for actions, a `Discrete` space.
        episode_steps: truncates episodes of this length; -1 for no limit.
        fps: frames per second of a video in real time; None for a task that is not rendered.
        num_draws: random numbers that the start of an episode needs.
        supports_numpy: whether the functions also take NumPy arrays. They then compute small batches on a CPU.
        can_compile: whether the functions consist of torch's only.
    """

    id: str
    observation_space: Any
    action_space: Any
    episode_steps: int
    fps: int | None
    num_draws: int
    supports_numpy: ClassVar[bool] = False
    can_compile: ClassVar[bool] = True

    @staticmethod
    def initial(uniforms: Array, options: ResetOptions) -> Array:
        """Computes start states `[d, n]` from `uniforms` in [0, 1), `[num_draws, n]`, and gymnasium's reset options."""
        raise NotImplementedError

    @staticmethod
    def advance(state: Array, action: Array) -> tuple[Array, Array, Array]:
        """Computes the next state `[d, n]`, the reward `[n]` and terminated `[n]`, bool.

        `action` is `[n, k]` for a `Box`, and indices `[n]` for a `Discrete` space; it has the state's dtype.
        """
        raise NotImplementedError

    @staticmethod
    def observe(state: Array) -> Array:
        """Computes the observations `[k, n]`, which may be the state itself."""
        raise NotImplementedError


class RowTaskSimulator(RowTask, BatchDriver):
    """n environments of one task as tensors on one device; a `vecrl.engine.simulator.BatchSimulator`.

    The start state of an episode depends only on the row's seed and the number of its episodes since, but not on the
    batch size, the other rows, the device or the dtype. No function waits for a device, except on a CPU, where that
    takes no time. A subclass defines the functions of `RowTask`, and `_draw` if it renders.

    Args:
        num_envs: n, at least 1.
        device: a torch device or its name.
        dtype: of states, observations and rewards, `torch.float32` or `torch.float64`.
        render_mode: "rgb_array" or None.
        max_episode_steps: truncates episodes of this length; None for the task's limit, -1 for no limit.
        check_actions: check that every discrete action is in range. By default only if this waits for no device: on a
            CPU, not compiled.
        compile: compile the step (and the auto-reset in it) into one kernel on first use, which takes seconds and, on
            a CPU, needs a C++ compiler. This is worthwhile for more than a few thousand steps.
        arrays: the library that computes the rows, "numpy" or "torch". None chooses NumPy on a CPU for fewer than
            `array_library.NUMPY_ROWS` rows if nothing is compiled, because its calls take less time, and torch
            otherwise. Results are tensors in both cases. The libraries differ in the last bits of sines and cosines.

    Its attributes are those of `BatchSimulator` and `RowTask`, and `dtype`, `max_episode_steps` and `arrays`.

    Raises:
        ValueError: an argument is out of range.
    """

    checks_actions: ClassVar[bool] = True  # see `BatchSimulator`
    _takes_options: ClassVar[bool] = True  # see `RowTask.initial`

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
    ):
        self.label = self.id
        self.max_episode_steps = self.episode_steps if max_episode_steps is None else max_episode_steps
        self._device = torch.empty(0, device=device).device  # with an index, which "cuda" does not have
        super().__init__(
            num_envs,
            self.observation_space,
            self.action_space,
            device=self._device,
            render_mode=render_mode,
            render_fps=self.fps,
            max_episode_steps=self.max_episode_steps,
        )
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"Expected dtype torch.float32 or torch.float64, got {dtype!r}.")
        self.dtype, self.compile = dtype, compile
        can_use_numpy = self.supports_numpy and self._device.type == "cpu" and not compile
        self.arrays = choose_library(arrays, num_envs, can_use_numpy)
        if dtype == torch.float64:
            space = self.observation_space
            self.observation_space = Box(space.low.astype(np.float64), space.high.astype(np.float64), dtype=np.float64)
        self._numpy_dtype = to_numpy_dtype(dtype)
        self._compiled: dict[str, Callable[..., tuple[Tensor, ...]]] = {}
        self._starts = _StartCache(self._start)
        self._discrete = isinstance(self.action_space, Discrete)
        self._checks_range = self._discrete and (self.can_sync_host() if check_actions is None else check_actions)
        self._action_dtype = torch.int64 if self._discrete else dtype
        self._action_shape = (num_envs, *self.action_space.shape)
        keys = self._tensor(keys_of(random_seeds(num_envs, 64)))
        episodes = torch.full((num_envs,), -1, dtype=torch.int32, device=self._device)  # 0 after the first reset
        # Tensors, or NumPy arrays after a step with NumPy
        self._rows = RowState(keys.new_empty(0), torch.zeros_like(episodes), episodes, keys)

    def _seed(self, seeds: Sequence[int | None]) -> None:
        rows, is_seeded = self._rows.to_torch(), self._tensor(np.array([seed is not None for seed in seeds]))
        keys = self._tensor(keys_of(np.array([seed or 0 for seed in seeds], np.uint64)))
        keys, episodes = torch.where(is_seeded, keys, rows.keys), torch.where(is_seeded, -1, rows.episodes)
        self._rows = rows._replace(keys=keys, episodes=episodes)

    def _reset_all(self, seeds: Seeds, options: ResetOptions) -> Tensor:
        rows = self._rows.to_torch()
        self._rows = rows = self.start_rows(rows.keys, rows.episodes + 1, options)
        return self.rows_obs(rows)

    def _reset_rows(self, mask: Tensor) -> Tensor:
        rows = self._rows
        if self._uses_numpy():
            rows: Any = rows.to_numpy()
            obs, copies = self._obs(rows.state), rows._replace(state=rows.state.copy(), steps=rows.steps.copy())
            self._rows = self._restart_in_place(mask.numpy(), obs, copies)
            return torch.from_numpy(obs)
        obs, self._rows = self.restart_rows(mask, rows)
        return obs

    def step(self, actions: ArrayLike | Tensor) -> BatchStep:
        """Steps every row.

        Args:
            actions: `[n]` integers or `[n, k]` numbers, as a tensor or an array-like.

        Raises:
            SpaceError: actions have another shape or kind, or, with `check_actions`, are out of range.
            PendingError: the simulator was not reset yet.
        """
        values, self._rows = self._step(*self._inputs(actions))
        next_obs, reward, terminated, truncated = to_tensors(values)
        return BatchStep(next_obs, reward, terminated, truncated)

    def step_and_reset(self, actions: ArrayLike | Tensor) -> tuple[BatchStep, Tensor, Tensor]:
        """Steps every row and starts an episode in rows that are done: one compiled region with `compile`.

        Returns:
            The step, `done` `[n]` (terminated or truncated), and the observations to act on next `[n, k]`.
        """
        values, self._rows = self._step_and_restart(*self._inputs(actions))
        next_obs, reward, terminated, truncated, done, obs = to_tensors(values)
        return BatchStep(next_obs, reward, terminated, truncated), done, obs

    def step_and_reset_arrays(
        self, actions: np.ndarray, mask: np.ndarray | None = None
    ) -> tuple[BatchStep, np.ndarray, np.ndarray]:
        """Returns what `step_and_reset` does as NumPy arrays; see `SupportsArrays`."""
        values, self._rows = self._step_and_restart(*self._inputs(actions), mask)
        next_obs, reward, terminated, truncated, done, obs = values
        return BatchStep(next_obs, reward, terminated, truncated), done, obs

    def get_state(self) -> dict[str, Tensor]:
        """Returns copies of the rows as tensors of leading size n: "state", "steps", "episodes" and "keys".

        Before the first reset there are only "episodes" and "keys".
        """
        rows = self._rows.to_torch()
        names = RowState._fields if self.was_reset else STREAM_ENTRIES
        return {name: env_first(getattr(rows, name)).clone() for name in names}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores a state that `get_state` returned, of this simulator or of another of this task and size."""
        super().set_state(state)
        self.was_reset = "state" in state

    def _restore(self, state: Mapping[str, Tensor]) -> None:
        names = RowState._fields if "state" in state else STREAM_ENTRIES
        rows = self._rows.to_torch()
        known = names if self.was_reset else STREAM_ENTRIES  # before the first reset, rows have no state
        check_entries(self.label, state, {name: env_first(getattr(rows, name)) for name in known})
        values = {name: state[name].to(self._device) for name in names}
        values = {name: env_first(value).contiguous().clone() for name, value in values.items()}
        if "state" in values:
            values["state"] = values["state"].to(self.dtype)
        self._rows = rows._replace(**values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_envs}, {self._details()})"

    def _details(self) -> str:
        return f"device={self.device!r}, dtype={self.dtype}, arrays={self.arrays!r}"

    @property
    def rows(self) -> RowState:
        """The rows as tensors, not copies of them, for functions that fuse `step_and_restart` with other code."""
        self._require_reset()
        return self._rows.to_torch()

    @rows.setter
    def rows(self, rows: RowState) -> None:
        self._rows, self.was_reset = rows, True

    # -- functions of rows as tensors, without checks ----------------------------------------------

    def rows_obs(self, rows: RowState) -> Tensor:
        """Computes the observations `[n, k]` of `rows`."""
        state = rows.state
        return torch.from_numpy(self._obs(state.detach().numpy())) if self._uses_numpy(state) else self._obs(state)

    def start_rows(self, keys: Tensor, episodes: Tensor, options: ResetOptions | None = None) -> RowState:
        """Returns any number of rows at the start of the `episodes` `[n]` of their streams `keys` `[2, n]`."""
        state = self._start(keys, episodes, options or _NO_OPTIONS)
        return RowState(state, torch.zeros_like(episodes), episodes, keys)

    def step_rows(self, actions: Tensor, rows: RowState) -> tuple[BatchStep, RowState]:
        """Computes `step` as a function of `rows` and checked actions; with `compile`, always as many rows."""
        values, rows = self._step(*self._in_library(actions, rows))
        next_obs, reward, terminated, truncated = to_tensors(values)
        return BatchStep(next_obs, reward, terminated, truncated), rows.to_torch()

    def restart_rows(self, mask: Tensor, rows: RowState) -> tuple[Tensor, RowState]:
        """Computes `reset_where` as a function of `rows`, as `step_rows`."""
        if self.can_sync_host():
            row_index = mask.nonzero().squeeze(-1)
            if len(row_index):
                rows = self._restart_index(row_index, rows)
            return self.rows_obs(rows), rows
        obs, state, steps, episodes = self._maybe_compile(self._restart_masked)(mask, *rows)
        return obs, RowState(state, steps, episodes, rows.keys)

    def step_and_restart_rows(self, actions: Tensor, rows: RowState) -> tuple[BatchStep, Tensor, Tensor, RowState]:
        """Computes `step_and_reset` as a function of `rows` and checked actions, as `step_rows`."""
        values, rows = self._step_and_restart(*self._in_library(actions, rows))
        next_obs, reward, terminated, truncated, done, obs = to_tensors(values)
        return BatchStep(next_obs, reward, terminated, truncated), done, obs, rows.to_torch()

    def step_and_restart(self, actions: Tensor, rows: RowState) -> tuple[BatchStep, Tensor, RowState]:
        """Computes `step_and_reset` as a pure function of `rows`, for code that is compiled with it.

        Returns:
            The step, the observations to act on next `[n, k]`, and the new rows.
        """
        values: Any = self._move_and_restart(actions, *rows)
        *step_values, _, obs, state, steps, episodes = values
        return BatchStep(*step_values), obs, RowState(state, steps, episodes, rows.keys)

    def can_sync_host(self) -> bool:
        """Whether reading a mask takes no time. Resetting only the selected rows is then faster than computing all."""
        return self._device.type == "cpu" and not self.compile and not torch.compiler.is_compiling()

    # -- the same functions in the library that computes: results are those of a step, and the rows ----

    def _step(self, actions: Array, rows: RowState) -> tuple[Sequence[Array], RowState]:
        if isinstance(rows.state, Tensor):
            *values, state, steps = self._maybe_compile(self._move)(actions, *rows)
        else:
            with np.errstate(all="ignore"):  # the values of rows with an ended episode are undefined
                *values, state, steps = self._move(actions, rows.state, rows.steps)
        return values, RowState(state, steps, rows.episodes, rows.keys)

    def _step_and_restart(
        self, actions: Array, rows: RowState, mask: np.ndarray | None = None
    ) -> tuple[Sequence[Array], RowState]:
        """Steps all rows, and restarts those with an ended episode; with NumPy, those of `mask` if it is not None."""
        if not isinstance(rows.state, Tensor):
            reward, terminated, truncated, state, steps = self.move_rows(actions, rows.state, rows.steps)
            next_obs, done = self._obs(state), terminated | truncated
            obs, restarted = next_obs.copy(), done if mask is None else mask
            rows = self._restart_in_place(restarted, obs, RowState(state, steps, rows.episodes, rows.keys))
            return (next_obs, reward, terminated, truncated, done, obs), rows
        if self.can_sync_host():
            values, rows = self._step(actions, rows)
            done = values[2] | values[3]
            obs, rows = self.restart_rows(done, rows)
            return (*values, done, obs), rows
        *values, state, steps, episodes = self._maybe_compile(self._move_and_restart)(actions, *rows)
        return values, RowState(state, steps, episodes, rows.keys)

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

    def _move(self, actions: Array, state: Array, steps: Array, *_: Array) -> tuple[Array, ...]:
        reward, terminated, truncated, state, steps = self.move_rows(actions, state, steps)
        return self._obs(state), reward, terminated, truncated, state, steps

    def _start(self, keys: Array, episodes: Array, options: ResetOptions = _NO_OPTIONS) -> Array:
        if isinstance(keys, Tensor):
            return self.initial(uniform(keys, episodes, self.num_draws, self.dtype), options)
        return self.initial(uniform_numpy(keys, episodes, self.num_draws, self._numpy_dtype), options)

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

    def _restart_in_place(self, mask: Array, obs: Array, rows: RowState) -> RowState:
        """Starts an episode in the rows of `mask`: writes to `obs`, `rows.state` and `rows.steps`; returns the rows."""
        (row_index,) = mask.nonzero()
        if not len(row_index):
            return rows
        state, steps, episodes, keys = rows
        episodes: Any = episodes + mask
        new_state = self._starts.get(keys, episodes, row_index)
        obs[row_index] = self.observe(new_state).T
        state[:, row_index] = new_state
        steps[row_index] = 0
        return RowState(state, steps, episodes, keys)

    def _restart_index(self, row_index: Tensor, rows: RowState) -> RowState:
        """Starts an episode in the rows `row_index` `[m]`, on a CPU; returns all rows."""
        episodes = rows.episodes[row_index] + 1
        uniforms = uniform_numpy(rows.keys[:, row_index].numpy(), episodes.numpy(), self.num_draws, self._numpy_dtype)
        new_state = self.initial(torch.from_numpy(uniforms), _NO_OPTIONS)
        state, steps = rows.state.index_copy(1, row_index, new_state), rows.steps.index_fill(0, row_index, 0)
        return RowState(state, steps, rows.episodes.index_copy(0, row_index, episodes), rows.keys)

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

    # -- checks and conversions --------------------------------------------------------------------

    def _uses_numpy(self, *tensors: Tensor) -> bool:
        """Whether NumPy computes with these tensors: not if torch records or compiles what is computed."""
        if self.arrays != "numpy" or torch.compiler.is_compiling():
            return False
        records = torch.is_grad_enabled()
        return not any(type(value) is not Tensor or (records and value.requires_grad) for value in tensors)

    def _in_library(self, actions: Tensor, rows: RowState) -> tuple[Array, RowState]:
        """Returns tensors as arrays of the library that computes."""
        if self._uses_numpy(actions, rows.state):
            return actions.detach().numpy(), rows.to_numpy()
        return actions, rows

    def _inputs(self, actions: ArrayLike | Tensor) -> tuple[Array, RowState]:
        """Returns checked actions of all rows, and the rows, as arrays of the library that computes."""
        self._require_reset()
        if self._uses_numpy():
            return self._numpy_actions(actions), self._rows.to_numpy()
        tensor = self.as_actions(actions, self.num_envs)
        return tensor.detach() if tensor.requires_grad else tensor, self._rows.to_torch()

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
        array = on_host(actions) if isinstance(actions, Tensor) else np.asarray(actions)
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

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


Simulator = TypeVar("Simulator", bound=RowTaskSimulator)


def make_row_batch(
    make: Callable[..., Simulator],
    name: str,
    num_envs: int,
    *,
    device: str | torch.device | None = None,
    infos: bool = True,
    **kwargs: Any,
) -> Simulator:
    """Makes a simulator of a task by its name, as `vecrl.simulators.registry` needs it. Its steps have no infos.

    Args:
        make: called with `name`, `num_envs`, `device` and `kwargs`.
        name: of the task.
        num_envs: the number of rows.
        device: None is the CPU.
        infos: has no effect.
        kwargs: further arguments of `make`.
    """
    return make(name, num_envs, device=device or "cpu", **kwargs)


class _StartCache:
    """The start states of the next episodes of every row of a small batch, as NumPy arrays, computed in one call.

    The draws of a few rows take as long as those of hundreds, so a small batch computes those of several episodes.

    Args:
        start: computes the start states `[d, m]` of the episodes `[m]` of the streams `[2, m]`.
    """

    EPISODES = 16  # per row
    MAX_ROWS = 8192  # larger batches would need much memory, and save little time

    def __init__(self, start: Callable[[Array, Array], Array]):
        self._start = start
        self._keys: Array = None  # the streams that the states belong to
        self._first: Array = None  # `[n]`, the first episode of each row in the cache
        self._states: Array = None  # `[EPISODES * n, d]`

    def get(self, keys: Array, episodes: Array, row_index: Array) -> Array:
        """Returns the start states `[d, m]` of some rows.

        Args:
            keys: `[2, n]` of all rows. The cache holds for this array object, which must not be written to.
            episodes: `[n]` of all rows, which do not decrease as long as `keys` is the same object.
            row_index: `[m]`, the rows, at least one.
        """
        n = len(episodes)
        if n > self.MAX_ROWS:
            return self._start(keys[:, row_index], episodes[row_index])
        if keys is self._keys:
            index = (episodes - self._first)[row_index] * n + row_index
            with suppress(IndexError):  # a row has used all its episodes
                return self._states.take(index, 0).T
        self._keys, self._first = keys, episodes
        following = (episodes + np.arange(self.EPISODES, dtype=np.int32)[:, None]).ravel()
        self._states = self._start(np.tile(keys, self.EPISODES), following).T.copy()
        return self._states[row_index].T
