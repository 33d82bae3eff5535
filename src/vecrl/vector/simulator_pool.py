"""`SimulatorPool`: the interface of a `Pool` over one batched simulator, to step subsets of its rows by id.

Environments with ids, SB3's and the workers of `RolloutWorkers` use it like a `Pool`. NumPy arrays share memory with
the simulator's tensors; they are copied only if the tensors are on another device, or if a subset of the rows is
selected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.env_access import InvokeKind
from ..engine.env_index import EnvIndex, Ids
from ..engine.infos import Info, Infos
from ..engine.simulator import BatchSimulator, BatchStep, ResetKeywords, ResetOptions, SupportsStepAndReset
from ..engine.space_layout import Layout, Tree
from ..engine.transition import Transition
from ..engine.trees import map_tree
from ..errors import ClosedError, PendingError, SpaceError
from .checked_simulator import CheckedSimulator


class SimulatorPool:
    """The part of the `Pool` interface that other dialects use, over one `BatchSimulator`. No command stays pending.

    Args:
        simulator: the simulator. If it has `step_where(mask, actions)`, subsets of rows are stepped with that; else all
            rows are stepped, and the state of the others is restored.
    """

    excluded_from_state = ("_checked",)  # it has no state besides the simulator's
    in_process = False  # infos are made from tensors, so that no environment changes them
    num_workers = 1

    def __init__(self, simulator: BatchSimulator):
        self.simulator = simulator
        self._checked = CheckedSimulator(simulator)
        self.num_envs = simulator.num_envs
        self.obs_layout, self.action_layout = Layout(simulator.observation_space), Layout(simulator.action_space)
        self.pending = np.empty(0, np.int64)
        self.closed = False
        self._all_ids = np.arange(self.num_envs)
        self._env_index = EnvIndex([self.num_envs])
        self._was_reset = False
        self._is_fused = isinstance(simulator, SupportsStepAndReset)
        self._takes_arrays = self._checked.gives_arrays
        self._pending_step: tuple[np.ndarray, BatchStep, Tree | None] | None = None  # with observations after resets

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: ResetOptions | None = None,
        ids: Ids | None = None,
    ) -> Transition:
        """Resets the rows in `ids` (None: all), like `Pool.reset`."""
        checked_ids = self._check(ids)
        reset_options = _options(options)
        all_seeds = seeds
        if ids is not None and seeds is not None:
            seeds_by_id = dict(zip(checked_ids.tolist(), seeds, strict=True))
            all_seeds = [seeds_by_id.get(i) for i in range(self.num_envs)]
        if ids is None or not self._was_reset:  # the first reset must reset all rows
            obs = self._checked.reset(all_seeds, reset_options or None)
        else:
            obs = self._checked.reset_rows(self._mask(checked_ids), all_seeds, reset_options)
        self._was_reset = True
        no_flags = np.zeros((2, len(checked_ids)), bool)
        return self._transition(
            checked_ids, obs, np.zeros(len(checked_ids)), no_flags[0], no_flags[1], Infos(), was_reset=True
        )

    def step(self, actions: Tree, *, reset_done: bool = False) -> Transition:
        """Steps all rows and returns the results, like `Pool.step`."""
        self.step_async(actions, reset_done=reset_done)
        return self.wait()

    def step_async(self, actions: Tree, *, reset_done: bool = False) -> None:
        """Steps all rows and stores the results for `wait`, like `Pool.step_async`."""
        self._check(None)
        tensors, obs = self._tensors(actions, self.num_envs), None
        if not reset_done:
            step = self._checked.step(tensors)
        elif self._takes_arrays:
            step, _, obs = self._checked.step_and_reset_arrays(tensors)
        elif self._is_fused:
            step, _, obs = self._checked.step_and_reset(tensors)
        else:
            step = self._checked.step(tensors)
            obs = self._checked.reset_where(torch.logical_or(step.terminated, step.truncated))
        self._pending_step = self._all_ids, step, obs

    def send(self, ids: Ids, actions: Tree) -> None:
        """Steps the rows in `ids` and stores the results for `recv`, like `Pool.send`."""
        checked_ids = self._check(ids)
        rows = torch.from_numpy(checked_ids)

        def all_rows(row_actions: Tensor) -> Tensor:
            actions = row_actions.new_zeros(self.num_envs, *row_actions.shape[1:])
            actions[rows] = row_actions
            return actions

        all_actions = map_tree(all_rows, self._tensors(actions, len(checked_ids)))
        self._pending_step = checked_ids, self._checked.step_where(self._mask(checked_ids), all_actions), None

    def wait(self) -> Transition:
        """Returns the results of the last step, like `Pool.wait`."""
        if self._pending_step is None:
            raise PendingError("Expected a pending step, got none. Call step_async first.")
        (ids, step, obs_after_resets), self._pending_step = self._pending_step, None
        rows = slice(None) if ids is self._all_ids else ids
        reward, terminated, truncated = (_array(x)[rows] for x in (step.reward, step.terminated, step.truncated))
        columns = {key: _array(value) for key, value in step.info.items()}
        dicts: list[tuple[int, Info]] = []
        if columns:
            dicts += [(i, {key: column[i] for key, column in columns.items()}) for i in ids.tolist()]
        reward = reward.astype(np.float64, copy=False)
        transition = self._transition(ids, step.next_obs, reward, terminated, truncated, Infos(dicts=dicts))
        if obs_after_resets is not None:
            _add_resets(transition, map_tree(_array, obs_after_resets))
        return transition

    recv = wait

    def invoke(
        self, kind: InvokeKind, name: str, values: Sequence[object] | None = None, ids: Ids | None = None
    ) -> list[Any]:
        """Gets or sets an attribute of the simulator, which all rows share, or renders rows."""
        checked_ids = self._check(ids).tolist()
        if kind == "call" and name == "render":
            return [self.simulator.render(i) for i in checked_ids]
        if kind == "is_wrapped":
            return [False] * len(checked_ids)
        if kind == "set":
            for value in values or ():
                setattr(self.simulator, name, value)
            return [None] * len(checked_ids)
        if kind != "get":
            raise NotImplementedError(f"Expected get, set or render for a batched simulator, got a call of {name!r}.")
        fallbacks = {"reward_range": (-np.inf, np.inf), "spec": None}
        attribute = (
            fallbacks[name]
            if name in fallbacks and not hasattr(self.simulator, name)
            else getattr(self.simulator, name)
        )
        return [attribute] * len(checked_ids)

    def drain(self, timeout: float | None = None) -> None:
        """Drops the results of a step that were not collected, like `Pool.drain`."""
        self._pending_step = None

    def close(self, timeout: float | None = None) -> None:
        """Closes the simulator; later calls have no effect."""
        if not self.closed:
            self.closed = True
            self.simulator.close()

    # -- private methods ---------------------------------------------------------------------------

    def _check(self, ids: Ids | None) -> np.ndarray:
        if self.closed:
            raise ClosedError("This object is closed. Make a new one.")
        return self._all_ids if ids is None else self._env_index.check(ids).copy()

    def _mask(self, ids: np.ndarray) -> Tensor:
        mask = torch.zeros(self.num_envs, dtype=torch.bool)
        mask[torch.from_numpy(ids)] = True
        return mask.to(self.simulator.device)

    def _tensors(self, actions: Tree, count: int) -> Tree:
        """Converts actions of `count` rows to tensors, nested as the action space is."""
        if not self.action_layout.flat and not isinstance(actions, dict | tuple):  # one dict or tuple per row
            actions = self.action_layout.build(list(map(np.stack, self.action_layout.columns(list(actions)))))
        arrays = zip(self.action_layout.batch(actions, count), self.action_layout.leaves, strict=True)
        device = self.simulator.device
        return self.action_layout.build(
            [torch.from_numpy(np.array(array, leaf.dtype)).to(device) for array, leaf in arrays]
        )

    def _transition(
        self,
        ids: np.ndarray,
        obs: Tree,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: Infos,
        was_reset: bool = False,
    ) -> Transition:
        rows = map_tree(_array if ids is self._all_ids else lambda leaf: _array(leaf)[ids], obs)
        done = (terminated | truncated).nonzero()[0]
        flags = np.full(len(ids), was_reset)
        transition = Transition(ids, self.obs_layout, rows, reward, terminated, truncated, flags)
        transition.infos, transition.final_infos, transition.done_rows = infos, Infos(), done
        return transition


def _options(options: ResetOptions | None) -> dict[str, Any]:
    """Returns the options among the keywords of a reset; a batched simulator takes no other keywords."""
    keywords = dict(options or {})
    if isinstance(options, ResetKeywords):
        reset_options = keywords.pop("options", None)
        if keywords:
            raise SpaceError(
                f"Expected no keywords except seed and options for a batched simulator, got {list(keywords)}."
            )
        return dict(reset_options or {})
    return keywords


def _add_resets(transition: Transition, obs: Tree) -> None:
    """Changes the transition of a step after the rows with an ended episode were reset; `obs` are of all rows."""
    rows = transition.final_rows = transition.done_rows
    if len(rows):
        transition.final_obs = map_tree(lambda leaf: leaf[rows], transition.obs)
        transition.was_reset[rows] = True
        ended = set(rows.tolist())
        infos, transition.infos = transition.infos.dicts, Infos()
        for env_id, info in infos:
            (transition.final_infos if env_id in ended else transition.infos).dicts.append((env_id, info))
    transition.obs = obs


def _array(tensor: Tensor | float) -> np.ndarray:
    """Converts a tensor to a NumPy array, which shares the memory of a CPU tensor."""
    return tensor.numpy(force=True) if isinstance(tensor, Tensor) else np.asarray(tensor)


class EpisodePool(SimulatorPool):
    """A `SimulatorPool` that also knows the returns and the lengths of episodes. All rows are stepped together.

    Args:
        make: makes the simulator.
    """

    def __init__(self, make: Callable[[], BatchSimulator]):
        simulator = make()
        try:
            super().__init__(simulator)
        except BaseException:
            simulator.close()
            raise
        self._start_episodes()

    def _start_episodes(self) -> None:
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: ResetOptions | None = None,
        ids: Ids | None = None,
    ) -> Transition:
        """Resets all rows, like `Pool.reset`."""
        assert ids is None
        self._start_episodes()
        return super().reset(seeds, options)

    def wait(self) -> Transition:
        """Returns the results of the last step, like `Pool.wait`."""
        transition = super().wait()
        returns, lengths = self._returns + transition.reward, self._lengths + 1
        if len(rows := transition.done_rows):
            transition.episode_stats = returns.copy(), lengths.copy()
            returns[rows], lengths[rows] = 0.0, 0
        self._returns, self._lengths = returns, lengths
        return transition
