"""What all native tasks share: the batch, its seeds and counters, resets without a look at the data, rendering.

A task is a handful of pure functions over a state `[d, n]`, one row of memory a quantity, which is what vector units
and GPUs like; everything else is here. Nothing in `step`, `reset_where` or `step_and_reset` waits for a device, and
nothing here knows of auto-reset modes or dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from ...engine.simulator import BatchStep
from ...errors import PendingError, SpaceError
from .compile_utils import compile_static
from .counter_rng import keys_of, uniform, uniform_numpy

_NO_OPTIONS: Mapping[str, Any] = {}
_NO_LIMIT = 2**31 - 1


class NativeState(NamedTuple):
    """All that a batch of environments is, in tensors on one device.

    Attributes:
        state: `[d, n]`, the task's own.
        steps: `[n]` int32, since the episode began.
        episodes: `[n]` int32, how many began before this one since the row was seeded.
        keys: `[2, n]` int32, made of the seed.
    """

    state: Tensor
    steps: Tensor
    episodes: Tensor
    keys: Tensor


class NativeSimulator:
    """n environments of one task as tensors on one device; a `vecrl.engine.simulator.BatchSimulator`.

    Where a row's episodes start hangs on its own seed and on how many it began since, and on nothing else: not on
    the batch size, the other rows, the device or the dtype.

    Args:
        num_envs: n, at least 1.
        device: a torch device, as text or not.
        dtype: of states, observations and rewards, `torch.float32` or `torch.float64`.
        render_mode: "rgb_array" or None.
        max_episode_steps: truncates episodes of this length; None takes gymnasium's limit, -1 sets none.
        check_actions: look at every discrete action's value; by default where nothing has to wait for that: on a CPU,
            not compiled.
        compile: compile the step (and the reset within it) into one kernel on first use, which takes seconds and,
            on a CPU, a C++ compiler. It pays from the first few thousand steps on.

    Its attributes are those that `BatchSimulator` names, and `dtype` and `max_episode_steps`.

    Raises:
        ValueError: an argument out of its range.
    """

    id: ClassVar[str]
    episode_steps: ClassVar[int]
    fps: ClassVar[int]
    num_draws: ClassVar[int]
    observation_space: Any
    action_space: Any

    @staticmethod
    def initial(uniforms: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Start states `[d, n]` from `draws` in [0, 1), `[draws, n]`; `options` as gymnasium's task takes them."""
        raise NotImplementedError

    @staticmethod
    def advance(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next state `[d, n]`, the reward `[n]` and terminated `[n]`; `action` has the state's dtype."""
        raise NotImplementedError

    @staticmethod
    def observe(state: Tensor) -> Tensor:
        """The observations as `[k, n]`, which may be the state itself."""
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
        compile: bool = False,  # noqa: A002 -- the word that torch's users look for
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
        self._device = torch.empty(0, device=device).device  # with the index that "cuda" leaves out
        self.device = str(self._device)
        self._check_values = check_actions
        self.compile = compile
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._discrete = isinstance(self.action_space, Discrete)
        self._action_dtype = torch.int64 if self._discrete else dtype
        entropy = np.random.SeedSequence().generate_state(num_envs, np.uint64)
        self._keys = self._tensor(keys_of(entropy))
        self._episodes = torch.full((num_envs,), -1, dtype=torch.int32, device=self._device)
        self._rows: NativeState | None = None
        self._renderer: Any = None

    def reset(self, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None) -> Tensor:
        """Begin an episode in every row.

        Args:
            seeds: n of them, None or 0 <= seed < 2**64; None lets the row's own stream go on (a row that never had a
                seed takes one from the operating system).
            options: as gymnasium's task takes them ("low" and "high", or "x_init" and "y_init"), for these starts.

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
        """Begin an episode in the rows where the bool `mask` `[n]` holds; returns the observations of all rows."""
        obs, self._rows = self.restart_rows(mask, self._require_state())
        return obs

    def step(self, actions: Any) -> BatchStep:
        """Advance every row by one step.

        Args:
            actions: `[n]` integers or `[n, k]` numbers, a tensor or anything that makes one.

        Raises:
            SpaceError: actions of another shape or kind, or, with `check_actions`, out of range.
            PendingError: there was no `reset` yet.
        """
        rows = self._require_state()
        step, self._rows = self.step_rows(self._detached_actions(actions), rows)
        return step

    def step_and_reset(self, actions: Any) -> tuple[BatchStep, Tensor, Tensor]:
        """Step, then begin an episode in every row whose own is over: one compiled region with `compile`.

        Returns:
            The step, `done` `[n]` (either flag), and the observations to act on next `[n, k]`.
        """
        rows = self._require_state()
        step, done, obs, self._rows = self.step_and_restart_rows(self._detached_actions(actions), rows)
        return step, done, obs

    def render(self, row: int) -> np.ndarray | None:
        """A frame `[height, width, 3]` uint8 of one row by gymnasium's renderer; None without a render mode."""
        if self.render_mode is None:
            return None
        state = self._require_state().state[:, row].double().cpu().numpy()
        if self._renderer is None:
            self._renderer = gymnasium.make(self.id, render_mode="rgb_array", disable_env_checker=True).unwrapped
            self._renderer.reset()
        self._renderer.state = state
        return self._renderer.render()

    def get_state(self) -> dict[str, Tensor]:
        """The rows as tensors of leading size n: "state", "steps", "episodes", "keys"; copies. Before the first reset
        only the latter two."""
        rows = {"episodes": self._episodes, "keys": self._keys} if self._rows is None else self._rows._asdict()
        return {name: env_first(value).clone() for name, value in rows.items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `get_state` gave, of this simulator or of another of this task and size."""
        names = NativeState._fields if "state" in state else ("episodes", "keys")
        values_by_name = {name: torch.as_tensor(state[name], device=self._device) for name in names}
        if any(value.shape[:1] != (self.num_envs,) for value in values_by_name.values()):
            sizes = {name: tuple(value.shape) for name, value in values_by_name.items()}
            raise SpaceError(f"Expected a state of {self.num_envs} rows, but these sizes came: {sizes}.")
        values_by_name = {name: env_first(value).contiguous().clone() for name, value in values_by_name.items()}
        self._rows = None
        if "state" in values_by_name:
            values_by_name["state"] = values_by_name["state"].to(self.dtype)
            self._rows = NativeState(**values_by_name)
        else:
            self._episodes, self._keys = values_by_name["episodes"], values_by_name["keys"]

    def close(self) -> None:
        """Close the renderer; twice is harmless."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_envs}, device={self.device!r}, dtype={self.dtype})"

    # -- pure functions of tensors, called as they are or compiled ---------------------------------

    @property
    def rows(self) -> NativeState:
        """The rows themselves, not copies: for functions that fuse `step_and_restart` with something of their own."""
        return self._require_state()

    @rows.setter
    def rows(self, rows: NativeState) -> None:
        self._rows = rows

    def step_and_restart(self, actions: Tensor, rows: NativeState) -> tuple[BatchStep, Tensor, NativeState]:
        """What `step_and_reset` does, but as a function of `rows` that changes nothing and checks nothing.

        Returns:
            The step, the observations to act on next `[n, k]`, and the rows then.
        """
        values: Any = self._move_and_restart(actions, *rows)
        *step_values, _, obs, state, steps, episodes = values
        return BatchStep(*step_values), obs, NativeState(state, steps, episodes, rows.keys)

    def rows_obs(self, rows: NativeState) -> Tensor:
        """The observations `[n, k]` of `rows`."""
        return self._obs(rows.state)

    def start_rows(self, keys: Tensor, episodes: Tensor, options: Mapping[str, Any] | None = None) -> NativeState:
        """Any number of rows at the start of the `episodes` `[n]` of their streams `keys` `[2, n]`."""
        state = self._start(keys, episodes, options or _NO_OPTIONS)
        return NativeState(state, torch.zeros_like(episodes), episodes, keys)

    def step_rows(self, actions: Tensor, rows: NativeState) -> tuple[BatchStep, NativeState]:
        """`step` as a function of any number of `rows` (with `compile`: of always as many) and checked actions."""
        *values, state, steps = self._maybe_compile(self._move)(actions, *rows)
        return BatchStep(*values), NativeState(state, steps, rows.episodes, rows.keys)

    def restart_rows(self, mask: Tensor, rows: NativeState) -> tuple[Tensor, NativeState]:
        """`reset_where`, likewise."""
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
        """`step_and_reset`, likewise."""
        if self.can_sync_host():
            step, rows = self.step_rows(actions, rows)
            done = torch.logical_or(step.terminated, step.truncated)
            return step, done, *self.restart_rows(done, rows)
        *step_values, done, obs, state, steps, episodes = self._maybe_compile(self._move_and_restart)(actions, *rows)
        return BatchStep(*step_values), done, obs, NativeState(state, steps, episodes, rows.keys)

    def move_rows(self, actions: Tensor, state: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
        """Reward, terminated, truncated, and the next state and steps: a step without its observations."""
        state, reward, terminated = self.advance(state, actions.to(self.dtype))
        steps = steps + 1
        return reward, terminated, steps >= self._limit, state, steps

    def _start(self, keys: Tensor, episodes: Tensor, options: Mapping[str, Any] = _NO_OPTIONS) -> Tensor:
        return self.initial(uniform(keys, episodes, self.num_draws, self.dtype), options)

    def _obs(self, state: Tensor) -> Tensor:
        # Computed a quantity at a time, which is fast, and then turned into rows, in memory that is the caller's.
        return self.observe(state).t().clone(memory_format=torch.contiguous_format)

    def _move(self, actions: Tensor, state: Tensor, steps: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        *values, state, steps = self.move_rows(actions, state, steps)
        return self._obs(state), *values, state, steps

    def _restart_masked(
        self, mask: Tensor, state: Tensor, steps: Tensor, episodes: Tensor, keys: Tensor
    ) -> tuple[Tensor, ...]:
        # Starts for all rows, of which those of the mask are taken: so nobody has to wait for the mask's values.
        episodes = episodes + mask
        state = torch.where(mask, self._start(keys, episodes), state)
        return self._obs(state), state, torch.where(mask, 0, steps), episodes

    def _move_and_restart(
        self, actions: Tensor, state: Tensor, steps: Tensor, episodes: Tensor, keys: Tensor
    ) -> tuple[Tensor, ...]:
        *values, state, steps = self._move(actions, state, steps)
        done = values[2] | values[3]
        return *values, done, *self._restart_masked(done, state, steps, episodes, keys)

    # -- how they are called -----------------------------------------------------------------------

    def can_sync_host(self) -> bool:
        """Whether a mask's values are at hand: starting a few rows is then cheaper than starting all."""
        return self._device.type == "cpu" and not self.compile and not torch.compiler.is_compiling()

    def restart_selected_rows(self, row_index: Tensor, rows: NativeState) -> tuple[NativeState, Tensor]:
        """Rows of which those at indices `row_index` `[m]` begin an episode, and their start states `[d, m]`; on a
        CPU."""
        episodes = rows.episodes[row_index] + 1
        uniforms = uniform_numpy(rows.keys[:, row_index], episodes, self.num_draws, self.dtype)
        new_state = self.initial(uniforms, _NO_OPTIONS)
        state, steps = rows.state.index_copy(1, row_index, new_state), rows.steps.index_fill(0, row_index, 0)
        return NativeState(state, steps, rows.episodes.index_copy(0, row_index, episodes), rows.keys), new_state

    def _maybe_compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, or with `compile` one kernel that does the same, made on the first call."""
        if not self.compile:
            return function
        name = function.__name__
        if name not in self._compiled:
            self._compiled[name] = compile_static(function)
        return self._compiled[name]

    # -- checks and conversions --------------------------------------------------------------------

    def _require_state(self) -> NativeState:
        if self._rows is None:
            raise PendingError(f"No episode of {self.id} is under way; call reset first.")
        return self._rows

    def _detached_actions(self, actions: Any) -> Tensor:
        actions = self.as_actions(actions, self.num_envs)
        return actions.detach() if actions.requires_grad else actions

    def as_actions(self, actions: Any, count: int) -> Tensor:
        """The actions of `count` rows as a tensor of the simulator's device and dtype; errors as of `step`."""
        shape = (count, *self.action_space.shape)
        if not isinstance(actions, Tensor):
            actions = torch.from_numpy(np.array(actions))  # a copy: what is read-only cannot be shared
        if actions.shape != shape:
            raise SpaceError(
                f"Expected actions of shape {shape}, one row an environment of {self.id}, "
                f"but {tuple(actions.shape)} came."
            )
        if self._discrete and (actions.is_floating_point() or actions.is_complex()):
            raise SpaceError(f"{self.id} takes integers as actions, but {actions.dtype} came; convert them first.")
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
                f"Environments {invalid[:5]} of {self.id} were given the actions {values}; "
                f"expected 0 to {self.action_space.n - 1}."
            )

    def _reseed(self, seeds: Sequence[int | None], keys: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
        if len(seeds) != self.num_envs:
            raise ValueError(f"Expected {self.num_envs} seeds, one an environment, but {len(seeds)} came.")
        invalid = [seed for seed in seeds if seed is not None and not 0 <= seed < 2**64]
        if invalid:
            raise ValueError(f"Expected seeds of at least 0 and less than 2**64, but {invalid[0]!r} came.")
        is_seeded = self._tensor(np.array([seed is not None for seed in seeds]))
        new_keys = self._tensor(keys_of(np.array([seed or 0 for seed in seeds], np.uint64)))
        return torch.where(is_seeded, new_keys, keys), torch.where(is_seeded, 0, episodes)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def start_bounds(options: Mapping[str, Any], low: float, high: float) -> tuple[float, float]:
    """`options["low"]` and `options["high"]` where they are given; ValueError where the first is the greater."""
    low, high = option_number(options, "low", low), option_number(options, "high", high)
    if low > high:
        raise ValueError(f"Expected options['low'] to be at most options['high'], but {low} and {high} came.")
    return low, high


def option_number(options: Mapping[str, Any], name: str, default: float) -> float:
    """`options[name]` as a float, or `default`; ValueError where it is no number."""
    try:
        return float(options.get(name, default))
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected options[{name!r}] to be a number, but {options[name]!r} came.") from error


def env_first(value: Tensor) -> Tensor:
    """`[d, n]` as `[n, d]` and back; `[n]` as it is."""
    return value if value.ndim == 1 else value.t()


def _check_arguments(num_envs: int, dtype: torch.dtype, render_mode: str | None, limit: int) -> None:
    if num_envs < 1:
        raise ValueError(f"Expected num_envs of at least 1, but {num_envs!r} came.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"Expected dtype torch.float32 or torch.float64, but {dtype!r} came.")
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"Expected render_mode 'rgb_array' or None, but {render_mode!r} came.")
    if limit < 1 and limit != -1:
        raise ValueError(f"Expected max_episode_steps of at least 1, or -1 for no limit, but {limit!r} came.")
