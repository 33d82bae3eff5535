"""`StackedRows`: steps the transformed environments of one worker, with one call of their transforms for all rows.

A chain of transforms costs about as much for one row as for many. This is for environments that are each a
`TransformedEnv` around one gymnasium environment, with transforms of equal settings that treat each row independently.
Only a step of all rows is done together: each environment does resets, partial steps and states itself. This module
must not know workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ...engine.simulator import RowBuffers, StepNotes
from ...engine.space_layout import Layout, LazyRows
from ...simulators.gymnasium import ENV_EXCEPTIONS, GymnasiumSimulator
from ...specs import TensorSpec
from ..base import EnvBase, UnwrappedGymEnv, upper_modules
from ..entries.row_masks import rows_done
from .autograd_graphs import Graphs
from .codecs import GymCodec
from .entry_layout import NEXT, Path, Space, paths_of, plain_array
from .metadata import EnvMetaData
from .tensordict_rows import Options, RowData, TensorDictRows

_COMPARABLE = (bool, int, float, complex, str, bytes, set, torch.dtype, torch.device, torch.Size, type, TensorSpec)


def gymnasium_envs_under(envs: Sequence[EnvBase]) -> list[UnwrappedGymEnv] | None:
    """Returns the gymnasium environments under the transforms of several environments.

    Returns None if there is one environment only, one is of another kind, or its transform needs more than a row.
    """
    transformed_env = upper_modules["TransformedEnv"]
    found: list[UnwrappedGymEnv] = []
    for env in envs:
        if type(env) is not transformed_env or not env.transform.rows_are_independent:
            return None
        unwrapped = env.base_env._unwrapped_gym()
        if unwrapped is None or env.device not in (None, torch.device("cpu")):
            return None
        found.append(unwrapped)
    return found if len(found) > 1 else None


class StackedRows(TensorDictRows):
    """Gives the results of `TensorDictRows`; a step of all rows calls the transforms once.

    As soon as the settings of the transforms differ, each environment transforms its own row.

    Args:
        envs, start, outputs, inputs, graphs: as in `TensorDictRows`.
        simulator: steps the gymnasium environments under the transforms.
        keys: the keys of the leaves of their observations.

    Attributes:
        simulator: the argument.
    """

    def __init__(
        self,
        envs: Sequence[EnvBase],
        start: int,
        outputs: Space,
        inputs: Space,
        graphs: Graphs | None,
        simulator: GymnasiumSimulator,
        keys: Sequence[Any],
    ):
        super().__init__(envs, start, outputs, inputs, graphs)
        self.simulator = simulator
        self._input_paths = paths_of(inputs)
        self._first_env: Any = envs[0]  # its transform is applied to all rows
        self._layout = Layout(simulator.observation_space)
        base_meta = EnvMetaData.metadata_from_env(self._first_env.base_env, fake=False)
        self._codec = GymCodec(base_meta, keys, simulator.observation_space)
        self._root: TensorDictBase | None = None  # `[k]`: if it is not None, it replaces `roots`, which is outdated
        self._settings = SettingsComparison(envs)

    def settings_changed(self) -> None:
        self._settings = SettingsComparison(self._envs)

    def root_by_row(self) -> RowData:
        """Returns `roots`, which may be changed; the root of all rows is split first."""
        if self._root is not None:
            self.roots, self._root = dict(enumerate(self._root.unbind(0))), None
        return self.roots

    def reset(
        self, rows: Sequence[int] | None, seeds: Sequence[int | None] | None, options: Options | None, out: RowBuffers
    ) -> StepNotes:
        """Resets each of the environments, as `TensorDictRows.reset`."""
        self.root_by_row()
        return super().reset(rows, seeds, options, out)

    def step(self, rows: Sequence[int] | None, actions: Sequence[Any], out: RowBuffers, reset_done: bool) -> StepNotes:
        """Steps environments, as `TensorDictRows.step`; all of them together if possible."""
        root = None if rows is not None or self._first_env.is_closed else self._stacked_root(actions)
        gym_actions = None if root is None else self._gym_actions(root)
        if root is not None and gym_actions is not None:
            return self._step_all(root, gym_actions, out, reset_done)
        self.root_by_row()
        return super().step(rows, actions, out, reset_done)

    # -- a step of all rows

    def _stacked_root(self, actions: Sequence[Any]) -> TensorDictBase | None:
        """Returns the root `[k]` with the inputs of a step; None if rows must be stepped by themselves."""
        if not isinstance(actions, LazyRows):
            return None
        has_graphs = self._graphs is not None and bool(self._graphs.inputs or self._graphs.obs)
        values: dict[Path, Any] = dict(zip(self._input_paths, actions.leaves, strict=True))
        writes_next = self._has_next_inputs and values[NEXT].any()
        if has_graphs or writes_next or not self._settings.are_equal():
            return None
        root: Any = self._root
        if root is None:
            roots: Any = list(self.roots.values())
            keys = {frozenset(root.keys(True, True)) for root in roots}
            if len(keys) > 1 or not all(type(root) is TensorDict for root in roots):
                return None
            root = torch.stack(roots)
        for path, key in self._inputs:
            root.set(key, torch.from_numpy(values[path]))
        return root

    def _gym_actions(self, root: TensorDictBase) -> Sequence[Any] | None:
        """Returns the actions of the gymnasium environments; None if they do not fit, which an environment reports."""
        try:
            base_td = self._first_env.transform.inv(root) if self._first_env._has_inverse else root
            return list(self._codec.inputs(base_td))
        except ENV_EXCEPTIONS:
            return None

    def _step_all(
        self, root: TensorDictBase, gym_actions: Sequence[Any], out: RowBuffers, reset_done: bool
    ) -> StepNotes:
        count = len(self._envs)
        buffers = RowBuffers(
            self._layout.empty(count), [], np.zeros(count), np.zeros((3, count), np.bool_), np.empty(0), np.empty(0)
        )
        failures = self.simulator.step(None, gym_actions, buffers, False).failures
        if failures:
            return self._finish_by_row(root, buffers, failures, out, reset_done)
        try:
            next_td = self._first_env._transform_step(root, self._base_next(buffers))
        except ENV_EXCEPTIONS:  # perhaps of one row only
            return self._finish_by_row(root, buffers, failures, out, reset_done)
        self._root = self._first_env.step_mdp(root.set("next", next_td))
        done_rows = rows_done(next_td, self._first_env.outer_done_prefixes).nonzero()[:, 0].tolist()
        notes = StepNotes()
        if not self._write_all(next_td, out):
            self._write(dict(enumerate(next_td.unbind(0))), out, notes)
        self._finish(notes, {row: next_td[row] for row in done_rows}, out, reset_done)
        return notes

    def _base_next(self, buffers: RowBuffers) -> TensorDict:
        entries = self._codec.step_entries(buffers.obs, buffers.reward, buffers.terminated, buffers.truncated)
        return TensorDict(entries, [len(self._envs)])

    def _write_all(self, next_td: TensorDictBase, out: RowBuffers) -> bool:
        """Writes the entries of all rows and returns True, or returns False if some need what `_write` does."""
        values = [next_td.get(writer.key, None) for writer in self._writers]
        for writer, value in zip(self._writers, values, strict=True):
            if value is None or value.shape[1:] != writer.shape or value.dtype != writer.tensor_dtype:
                return False
            if value.requires_grad and self._graphs is not None:
                return False
        for writer, value in zip(self._writers, values, strict=True):
            out.obs[writer.index][:] = plain_array(value)
        return True

    def _finish(self, notes: StepNotes, done: RowData, out: RowBuffers, reset_done: bool) -> None:
        """Writes the final results of the rows that are `done`, and resets them if `reset_done`."""
        if not done:
            return
        if reset_done:
            self._write(done, out, notes, final=True)
            new_roots = self._reset_done(done, notes)
            self._write(new_roots, out, notes, is_root=True)
            self._set_roots(new_roots)
            done = {row: next_td for row, next_td in done.items() if row in new_roots}
        notes.done_rows = list(done)
        out.terminated[notes.done_rows] = True

    def _reset_done(self, done: RowData, notes: StepNotes) -> RowData:
        new_roots = RowData()
        for row in done:
            root = self.roots[row] if self._root is None else self._root[row]
            try:
                new_roots[row] = self._envs[row].maybe_reset(root)
            except ENV_EXCEPTIONS as error:
                self._record_failure(row, error, notes)
        return new_roots

    def _set_roots(self, roots: RowData) -> None:
        """Replaces the roots of rows."""
        stacked = self._root
        names = None if stacked is None else set(stacked.keys(True, True))
        for row, root in roots.items():
            if stacked is None or set(root.keys(True, True)) != names:
                self.root_by_row()[row] = root
                continue
            entries: Any = root.items(True, True)
            for key, value in entries:
                stacked.get(key)[row] = value

    def _record_failure(self, row: int, error: BaseException, notes: StepNotes) -> None:
        self.root_by_row()
        super()._record_failure(row, error, notes)

    def _finish_by_row(
        self,
        root: TensorDictBase,
        buffers: RowBuffers,
        failures: Sequence[tuple[int, BaseException]],
        out: RowBuffers,
        reset_done: bool,
    ) -> StepNotes:
        """Completes a step in which some rows failed: each environment transforms its own row."""
        notes, results, done = StepNotes(), RowData(), RowData()
        self._root = root.exclude("next")
        roots = self.root_by_row()
        for row, error in failures:
            self._record_failure(row, error, notes)
        failed_rows = {row for row, _ in failures}
        base_rows = self._base_next(buffers).unbind(0)
        for row in self._all_rows:
            if row in failed_rows:
                continue
            env: Any = self._envs[row]
            try:
                next_td = env._transform_step(roots[row], base_rows[row])
                self.roots[row] = env.step_mdp(roots[row].set("next", next_td))
                is_done = env.any_done(next_td)
            except ENV_EXCEPTIONS as error:
                self._record_failure(row, error, notes)
                continue
            results[row] = next_td
            if is_done:
                done[row] = next_td
        self._write(results, out, notes)
        self._finish(notes, {row: next_td for row, next_td in done.items() if row in results}, out, reset_done)
        return notes


class SettingsComparison:
    """Tells whether the transforms of environments have equal settings. Compares them again only after a change."""

    def __init__(self, envs: Sequence[Any]):
        self._envs = envs
        self._parts: list[Any] = []
        self._tensors: list[Tensor] = []
        self._num_changes = -1
        self._num_changes_of_process = -1
        self._are_equal = False

    def are_equal(self) -> bool:
        """Returns whether the settings are equal now."""
        if self._num_changes_of_process == self._count_changes_of_process():  # faster than the count for each part
            return self._are_equal
        if self._num_changes != self._count_changes():
            first, *others = (env.transform for env in self._envs)
            self._parts = [part for env in self._envs for part in env.transform.modules()]
            tensors = [tensor for part in self._parts for tensor in (*part.parameters(), *part.buffers())]
            self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]
            independent = all(env.transform.rows_are_independent for env in self._envs)
            same_tensors = len(self._tensors) == len(tensors)  # changes of others cannot be counted
            self._are_equal = independent and same_tensors and all(equal_settings(first, other) for other in others)
            self._num_changes = self._count_changes()
        self._num_changes_of_process = self._count_changes_of_process()
        return self._are_equal

    def _count_changes_of_process(self) -> int:
        return self._envs[0].transform.total_changes + sum(tensor._version for tensor in self._tensors)

    def _count_changes(self) -> int:
        num_changes = sum(getattr(part, "num_changes", 0) for part in self._parts)
        return num_changes + sum(tensor._version for tensor in self._tensors)


def equal_settings(a: Any, b: Any) -> bool:
    """Returns whether two transforms, or two values in them, are known to be equal.

    >>> from vecrl.envs.transforms import RewardScaling, StepCounter
    >>> equal_settings(StepCounter(5), StepCounter(5)), equal_settings(RewardScaling(0.0, 1.0), RewardScaling(0.0, 2.0))
    (True, False)
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
    if isinstance(a, nn.Module):
        return equal_settings(_settings(a), _settings(b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal_settings(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal_settings, a, b))
    return isinstance(a, _COMPARABLE) and bool(a == b)


def _settings(module: nn.Module) -> dict[str, Any]:
    excluded: Sequence[str] = getattr(module, "excluded_from_state", ())
    return {name: value for name, value in vars(module).items() if name not in excluded}
