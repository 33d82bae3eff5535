"""`BatchedVectorEnv`: a vector environment over a batched simulator, with NumPy arrays for gymnasium and with tensors.

The three auto-reset modes are computed with row masks, because reading which rows ended would make the host wait for
a device at every step. It is read on the CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.infos import Info, InfoDict
from ..engine.simulator import BatchSimulator, BatchStep, SupportsStepAndReset
from ..engine.space_layout import Layout, Tree
from ..engine.transition import AutoresetMode, GymStep
from ..engine.transition import autoreset_mode as _mode  # an argument below has its name
from ..engine.trees import is_nested, map_tree, named_leaves
from ..errors import ClosedError, PendingError, SpaceError
from ..simulators.array_library import namespace_of, on_host
from ..validation import normalize_device, parse_optional_count
from .arrays import convert_to_torch
from .base import BaseVectorEnv, Facts, seeds_of
from .checked_simulator import CheckedSimulator, select_rows
from .reset_masks import split_options

TensorStep = tuple[Tree, Tensor, Tensor, Tensor, InfoDict]


class BatchedVectorEnv(BaseVectorEnv):
    """gymnasium's vector interface over a `BatchSimulator` with tensors as arrays.

    Args:
        simulator: the simulator; `close` closes it too. If it has `step_and_reset` (as the native tasks do), one call
            of that makes a same-step transition.
        autoreset_mode: "same_step", "next_step" or "disabled", or gymnasium's `AutoresetMode`; see
            `vecrl.engine.transition` for the contents of each field in each mode.
        num_episodes: the number of episodes that each row runs after a `reset`. After that the row reports terminated
            and truncated, a reward of NaN and an observation of NaN (0 for integers), until the next `reset`.
        empty_info: whether infos are always `{}`.
        episode_stats: whether to record each episode's return and length on the device, in `info["episode"]`.

    `reset` and `step` return NumPy arrays, so that gymnasium's wrappers work. `tensor_reset` and `tensor_step` return
    tensors on the simulator's device instead; they make no copy and do not wait for the device. `TorchWrapper` uses
    them.

    A step returns observations `[n, ...]`, reward `[n]`, terminated and truncated `[n]` bool, and infos; later calls
    never overwrite them. Infos of `tensor_step` have whole batches at every step, with masks of their valid rows:
    `final_obs` with `_final_obs` in same-step mode, `episode` (`r`, `l`) with `_episode` if `episode_stats`, and
    those of the simulator, with "_" before their names, except in same-step mode without `num_episodes`. Masks may
    share memory. Infos of `step` have gymnasium's format: every entry has its mask, and `final_obs` (an object array
    with None in the other rows) and `final_info` are present if an episode ended. Rewards of `step` are float64. The
    simulator's infos are those of the step, before any reset.

    Observations and actions of Dict and Tuple spaces are nested dicts and tuples of arrays or tensors `[n, ...]`.

    Raises:
        SpaceError: a space is or contains another one than `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Dict`
            and `Tuple`.
        TypeError: the simulator lacks a method of `BatchSimulator`.
        ValueError: `num_episodes` is less than 1, or given in disabled mode.

    >>> from vecrl.simulators.native import make_native
    >>> env = BatchedVectorEnv(make_native("CartPole-v1", 2), autoreset_mode="same_step")
    >>> obs, info = env.reset(seed=3)
    >>> obs, reward, terminated, truncated, info = env.step(np.array([0, 1]))
    >>> obs.shape, reward, sorted(info)
    ((2, 4), array([1., 1.]), [])
    >>> obs, reward, terminated, truncated, info = env.tensor_step(torch.tensor([0, 1]))
    >>> obs.shape, reward, sorted(info)
    (torch.Size([2, 4]), tensor([1., 1.]), ['_final_obs', 'final_obs'])
    >>> env.close()
    """

    copy = True  # gymnasium's attribute: later calls never overwrite results
    excluded_from_state = ("_checked", "_takes_arrays")  # which belong to the simulator

    def __init__(
        self,
        simulator: BatchSimulator,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        num_episodes: int | None = None,
        empty_info: bool = False,
        episode_stats: bool = False,
    ):
        mode = _mode(autoreset_mode)
        num_episodes = parse_optional_count("num_episodes", num_episodes)
        if num_episodes is not None and mode is AutoresetMode.DISABLED:
            raise ValueError(
                "Expected an auto-reset mode with num_episodes, got disabled mode. "
                "Choose same-step or next-step mode, or omit num_episodes."
            )
        self._checked = CheckedSimulator(simulator)
        super().__init__(simulator.num_envs, simulator.observation_space, simulator.action_space)
        self.simulator = simulator
        self.autoreset_mode = mode
        self.num_episodes = num_episodes
        self.render_mode = simulator.render_mode
        self.metadata = simulator.metadata | {"autoreset_mode": self.autoreset_mode}
        self.device = torch.device(normalize_device(simulator.device))
        self._infos = not empty_info
        self._stats = episode_stats and self._infos
        # in same-step mode, each step is of all rows that are not finished
        self._masks_infos = mode is not AutoresetMode.SAME_STEP or num_episodes is not None
        self._is_fused = isinstance(simulator, SupportsStepAndReset)
        self._takes_arrays = num_episodes is None and not self._stats and self._checked.gives_arrays
        self._needs_reset = True
        self._nested_actions = Layout(simulator.action_space) if is_nested(simulator.action_space) else None
        # a mask, and by identity the sign that no row has to be looked at; never written
        self._no_rows = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._reset_counters()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Tree, InfoDict]:
        """Resets every row and returns the observations.

        Args:
            seed: None continues each row's random stream; an int seeds row i with seed + i; a sequence contains one
                seed per row.
            options: passed to the simulator. `options["reset_mask"]`, bool `[n]`, selects the rows to reset, also
                none; the observations of the other rows are returned unchanged.

        Returns:
            Observations, an array `[n, ...]`, and `{}`.
        """
        obs, info = self.tensor_reset(seed=seed, options=options)
        return _to_numpy(obs), info

    def tensor_reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Tree, InfoDict]:
        """Resets every row, like `reset`; the observations are a tensor on the simulator's device."""
        self._require_open()
        options, mask = split_options(options, self.num_envs)
        mask = None if mask is None else self._tensor(mask, "reset_mask")
        seeds = seeds_of(seed, self.num_envs)
        if mask is None or (self._needs_reset and bool(mask.all())):
            obs = self._checked.reset(seeds, options or None)
            self._reset_counters()
            self._needs_reset = False
            return obs, {}
        self._require_reset()
        obs = self._checked.reset_rows(mask, seeds, options)
        self._reset_counters(mask)
        return self._mask_finished(self._is_finished(), obs), {}

    def step(self, actions: Tree) -> GymStep:
        """Steps every row and returns the results.

        Args:
            actions: `[n, ...]`, a tensor on any device or anything that NumPy converts to an array.

        Returns:
            Observations `[n, ...]`; rewards `[n]` float64; terminated and truncated `[n]` bool; infos. All are arrays.

        Raises:
            SpaceError: the actions do not have the shape of n elements of the action space, or the simulator returned
                another shape, dtype or device than its spaces declare.
            WorkerError: the simulator raised an exception.
            PendingError: `reset` was not called yet.
            ClosedError: `close` was called.
        """
        results: Any = self._array_step(actions) if self._takes_arrays else self.tensor_step(actions)
        obs, reward, terminated, truncated, info = results
        flags = _to_numpy(terminated), _to_numpy(truncated)
        rewards = _to_numpy(reward).astype(np.float64, copy=False)
        return _to_numpy(obs), rewards, *flags, _numpy_info(info, self.num_envs)

    def tensor_step(self, actions: Tree) -> TensorStep:
        """Steps every row, like `step`; all results are tensors on the simulator's device. Does not wait for it."""
        if self._takes_arrays:
            return map_tree(_as_tensor, self._array_step(actions))
        actions = self._inputs(actions)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            return self._same_step(actions)
        return self._next_step(actions)

    def _array_step(self, actions: Tree) -> Any:
        """Steps every row of a simulator that takes and returns arrays; see `SupportsArrays`."""
        actions = self._array_inputs(actions)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            return self._fused_step(self._checked.step_and_reset_arrays, actions)
        return self._next_step(actions, as_arrays=True)

    def _same_step(self, actions: Tree) -> TensorStep:
        if self._is_fused and self.num_episodes is None:
            return self._fused_step(self._checked.step_and_reset, actions)
        finished = self._is_finished()
        step = self._checked.step(actions)
        done = self._count_down(torch.logical_or(step.terminated, step.truncated), finished)
        # A row that ended its last episode is not reset, so that `obs` is its final observation.
        obs = self._checked.reset_where(done & ~self._is_finished())
        return self._make_result(step, obs, done, self._no_rows, finished)

    def _fused_step(self, step_and_reset: Callable[[Tree], tuple[BatchStep, Any, Tree]], actions: Tree) -> Any:
        """Steps and resets all rows in one call; the results are of the library of that call."""
        step, done, obs = step_and_reset(actions)
        return obs, step.reward, step.terminated, step.truncated, self._info(step, done, self._no_rows)

    def _next_step(self, actions: Tree, *, as_arrays: bool = False) -> Any:
        """Steps in next-step or disabled mode; in disabled mode no row is ever marked for a reset."""
        finished = self._is_finished()
        reset_mask: Any = self._to_reset if self.num_episodes is None else self._to_reset & ~finished
        resets = reset_mask is not self._no_rows
        done: Any
        if as_arrays:
            reset_mask = reset_mask.numpy()
            step, done, obs = self._checked.step_and_reset_arrays(actions, reset_mask)
        else:
            step = self._checked.step(actions)
            done = torch.logical_or(step.terminated, step.truncated)
            obs = self._checked.reset_where(reset_mask) if resets else step.next_obs
        if resets:
            done = done & ~reset_mask
        done = self._count_down(done, finished)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            # On the CPU, reading a flag takes less time than a reset of no row. A compiled step cannot read it.
            can_read = self._no_rows.is_cpu and not torch.compiler.is_compiling()
            self._to_reset = self._no_rows if can_read and not done.any() else _as_tensor(done)
        return self._make_result(step, obs, done, reset_mask, finished, resets=resets)

    def _make_result(
        self, step: BatchStep, obs: Tree, done: Any, reset_mask: Any, finished: Tensor, *, resets: bool = False
    ) -> Any:
        info = self._info(step, done, reset_mask if self.num_episodes is None else reset_mask | finished)
        reward, terminated, truncated = step.reward, step.terminated, step.truncated
        if resets:
            stepped = ~reset_mask
            reward = namespace_of(reward).where(reset_mask, 0, reward)
            terminated, truncated = terminated & stepped, truncated & stepped
        if self.num_episodes is not None:
            reward = torch.where(finished, torch.nan, reward)
            terminated, truncated = terminated | finished, truncated | finished
        return self._mask_finished(finished, obs), reward, terminated, truncated, info

    def _info(self, step: BatchStep, done: Any, not_stepped: Any) -> InfoDict:
        """Returns the infos. Rows of `not_stepped`, which were reset or are finished, have none of a step."""
        if not self._infos:
            return {}
        info: InfoDict = dict(step.info)
        if self._masks_infos and info:
            stepped, masks = ~not_stepped, {f"_{key}" for key in info if not key.startswith("_")}
            info |= {mask: stepped & info[mask] if mask in info else stepped for mask in masks}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            info["final_obs"], info["_final_obs"] = step.next_obs, done
        if self._stats:
            returns = torch.where(not_stepped, self._returns, self._returns + step.reward)
            lengths = self._lengths + ~not_stepped
            # a copy, since the next step reads `done` and the caller may write to infos
            info["episode"], info["_episode"] = {"r": returns, "l": lengths}, done.clone()
            self._returns, self._lengths = torch.where(done, 0, returns), torch.where(done, 0, lengths)
        return info

    # -- counters, all on the device ---------------------------------------------------------------

    def _reset_counters(self, mask: Tensor | None = None) -> None:
        """Resets the counters of the rows in `mask` (None: all)."""
        if mask is None:
            n, device = self.num_envs, self.device
            self._to_reset = self._no_rows
            self._episodes_left = torch.full((n,), self.num_episodes or 1, dtype=torch.int32, device=device)
            self._returns = torch.zeros(n, dtype=torch.float64, device=device)
            self._lengths = torch.zeros(n, dtype=torch.int64, device=device)
            return
        if self._to_reset is not self._no_rows:
            self._to_reset = self._to_reset & ~mask
        self._episodes_left = torch.where(mask, self.num_episodes or 1, self._episodes_left)
        self._returns = torch.where(mask, 0, self._returns)
        self._lengths = torch.where(mask, 0, self._lengths)

    def _is_finished(self) -> Tensor:
        """Returns the mask of the rows that have run their `num_episodes`."""
        return self._no_rows if self.num_episodes is None else self._episodes_left == 0

    def _count_down(self, step_done: Tensor, finished: Tensor) -> Tensor:
        """Subtracts ended episodes from the episodes left; returns the mask of the rows with a counted episode."""
        if self.num_episodes is None:
            return step_done
        counted = step_done & ~finished
        self._episodes_left = self._episodes_left - counted.int()
        return counted

    def _mask_finished(self, finished: Tensor, obs: Tree) -> Tree:
        if self.num_episodes is None:
            return obs
        return map_tree(lambda leaf: select_rows(finished, torch.nan if leaf.is_floating_point() else 0, leaf), obs)

    # -- arguments ---------------------------------------------------------------------------------

    def _inputs(self, actions: Tree) -> Tree:
        """Returns the actions of a step as tensors, and checks that there can be one."""
        self._require_open()
        self._require_reset()
        layout = self._nested_actions
        if layout is None:
            return self._tensor(actions, "actions")
        leaves = named_leaves("actions", layout.space, actions)
        return layout.build([self._tensor(value, name) for name, _, value in leaves])

    def _array_inputs(self, actions: Tree) -> Tree:
        """Returns the actions of a step for a simulator that takes arrays: as tensors, if they are to be converted."""
        is_array = type(actions) is np.ndarray and actions.dtype.kind in "biuf"
        if not is_array or not self._checked.takes_array(actions):
            return self._inputs(actions)
        self._require_open()
        self._require_reset()
        self._check_rows(actions, "actions")
        return actions

    def _tensor(self, value: Any, name: str) -> Tensor:
        if not isinstance(value, Tensor):
            value = convert_to_torch(np.array(value))  # copied, because torch cannot share read-only arrays
        self._check_rows(value, name)
        return value if value.device == self.device else value.to(self.device)

    def _check_rows(self, value: Any, name: str) -> None:
        if value.ndim == 0 or value.shape[0] != self.num_envs:
            raise SpaceError(
                f"Expected {name} of leftmost size {self.num_envs}, one row per environment, "
                f"got shape {tuple(value.shape)}."
            )

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self} is closed. Make a new one.")

    def _require_reset(self) -> None:
        if self._needs_reset:
            raise PendingError("Expected a reset before this call. Call reset to reset all environments first.")

    def _state_facts(self) -> Facts:
        modes = {"autoreset_mode": self.autoreset_mode.value, "num_episodes": self.num_episodes}
        return super()._state_facts() | modes | {"empty_info": not self._infos, "episode_stats": self._stats}

    # -- the rest of gymnasium's interface ---------------------------------------------------------

    def render(self) -> tuple[Any, ...] | None:
        """Returns one frame `[height, width, 3]` uint8 per row, or None if there is no render mode."""
        self._require_open()
        return None if self.render_mode is None else tuple(map(self.simulator.render, range(self.num_envs)))

    def close_extras(self, **_: object) -> None:
        """Closes the simulator."""
        self.simulator.close()

    def __enter__(self) -> BatchedVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BatchedVectorEnv({self.simulator!r}, autoreset_mode={self.autoreset_mode.value!r})"


def _as_tensor(leaf: Tensor | np.ndarray) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else torch.from_numpy(leaf)  # in a fifth of the time of `as_tensor`


def _to_numpy(x: Tree) -> Any:
    if isinstance(x, np.ndarray):
        return x
    return on_host(x) if isinstance(x, Tensor) else map_tree(_to_numpy, x)


def _numpy_info(info: Info, num_envs: int) -> InfoDict:
    """Converts infos that are whole batches of tensors to the format of gymnasium's vector environments."""
    if not info:
        return {}
    result: InfoDict = {}
    all_rows: np.ndarray | None = None
    masks: dict[int, np.ndarray | None] = {}  # by the id of their tensor: most entries have one mask; None for no rows
    for key, value in info.items():
        if (mask_key := f"_{key}") in info:
            tensor = info[mask_key]
            if id(tensor) not in masks:
                array = _to_numpy(tensor)
                masks[id(tensor)] = array if array.any() else None
            if (mask := masks[id(tensor)]) is None:
                continue
        elif key.startswith("_"):
            continue
        else:
            mask = all_rows = ~np.zeros(num_envs, bool) if all_rows is None else all_rows  # faster than `ones`
        result[key], result[mask_key] = _numpy_entry(key, value, mask), mask.copy()
    if "final_obs" in result:
        step_info = {key: value for key, value in result.items() if key.removeprefix("_") != "final_obs"}
        result |= {"final_info": step_info, "_final_info": result["_final_obs"]}
    return result


def _numpy_entry(key: str, value: Any, mask: np.ndarray) -> Any:
    if key == "final_obs":
        arrays, rows = _to_numpy(value), np.full(len(mask), None, object)
        for row in np.flatnonzero(mask).tolist():
            rows[row] = arrays[row] if isinstance(arrays, np.ndarray) else map_tree(itemgetter(row), arrays)
        return rows
    if isinstance(value, np.ndarray):  # before the mappings, which take longer to rule out
        return value
    if isinstance(value, Tensor):
        return on_host(value)
    if isinstance(value, Mapping):
        return {name: _numpy_entry(name, leaf, mask) for name, leaf in value.items()}
    return np.asarray(value)
