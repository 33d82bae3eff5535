"""Steps TensorDict environments one after another, each from its root TensorDict, and writes the results into rows.

This module knows the paths of entries and the engine's rows. It must not know workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from ...engine.simulator import RowBuffers, StepNotes, raise_if_of_caller
from ...engine.space_layout import Layout
from ...errors import SpaceError
from ..base import EnvBase
from ..entries.keys import join_key, sorted_keys
from .autograd_graphs import ByRow, Graphs
from .entry_layout import NEXT, PICKLED, STEP, Path, Space, is_next, key_of, outputs_of, paths_of
from .metadata import EnvMetaData

Options = Mapping[str, Any]
"""Options of a reset: "kwargs", keyword arguments for `reset`; "data", TensorDicts with masks, states and observations
by environment; and "masked", whether the caller gave masks. Those that select a whole environment are not in "data"."""
RowData = dict[int, TensorDictBase]
"""TensorDicts of environments by row."""


class TensorDictRows:
    """Steps and resets k environments, as `engine.simulator.Simulator` does.

    Args:
        envs: the environments.
        start: the index of the first environment in the pool.
        outputs, inputs: spaces by path, as in `entry_layout`.
        graphs: passes tensors with an autograd graph; None to pass values only.

    Attributes:
        roots: the root TensorDict of the next step of each environment.
    """

    def __init__(
        self,
        envs: Sequence[EnvBase],
        start: int,
        outputs: Space,
        inputs: Space,
        graphs: Graphs | None = None,
    ):
        self._envs = envs
        self._start = start
        self._graphs = graphs
        self._all_rows = range(len(envs))
        self.roots: RowData = {row: TensorDict({}, env.batch_size, device=env.device) for row, env in enumerate(envs)}
        layout, paths = Layout(outputs), paths_of(outputs)
        self._pickled_leaf = layout.opaque[0] if layout.opaque else None
        self._writers = [
            EntryWriter(index, path, torch.Size(leaf.shape), leaf.dtype)
            for index, (path, leaf) in enumerate(zip(paths, layout.leaves, strict=True))
            if leaf.dtype is not None
        ]
        entry_formats = [outputs_of(EnvMetaData.metadata_from_env(env, fake=False)) for env in envs]
        self._pickled_keys = [[key_of(path) for path in formats if path not in paths] for formats in entry_formats]
        input_paths = paths_of(inputs)
        self._has_pickled_inputs, self._has_mask = PICKLED in input_paths, STEP in input_paths
        paths = [path for path in input_paths if path not in (PICKLED, STEP, NEXT)]
        self._all_inputs = [(path, key_of(path)) for path in paths]
        self._inputs = [(path, key) for path, key in self._all_inputs if not is_next(path)]
        self._has_next_inputs = NEXT in input_paths

    def reset(
        self, rows: Sequence[int] | None, seeds: Sequence[int | None] | None, options: Options | None, out: RowBuffers
    ) -> StepNotes:
        """Resets the environments of `rows` and writes their observations into `out`, as `Simulator.reset` does."""
        notes = StepNotes()
        kwargs, data_by_row, is_masked = {}, {}, False
        if options:
            kwargs, data_by_row, is_masked = options["kwargs"], options["data"], options.get("masked", False)
        roots: RowData = {}
        for position, row in enumerate(self._all_rows if rows is None else rows):
            try:
                if seeds is not None and seeds[position] is not None:
                    self._envs[row]._seed_next_reset(seeds[position])
                self.roots[row] = roots[row] = self._reset_env(
                    row, data_by_row.get(self._start + row), is_masked, kwargs
                )
            except BaseException as error:
                raise_if_of_caller(error)
                self._record_failure(row, error, notes)
        self._write(roots, out, notes, is_root=True)
        return notes

    def settings_changed(self) -> None:
        """Tells that an attribute of an environment may have been changed."""

    def root_by_row(self) -> RowData:
        """Returns `roots`, which may be changed."""
        return self.roots

    def _reset_env(
        self, row: int, reset_data: TensorDictBase | None, is_masked: bool, kwargs: Options
    ) -> TensorDictBase:
        env = self._envs[row]
        if reset_data is None and not is_masked:
            return env.reset(**kwargs)
        if reset_data is None:
            reset_data = TensorDict({}, env.batch_size)
        reset_data = reset_data if env.device is None else reset_data.to(env.device)
        if any(reset_data.get(key, None) is not None for key in env.reset_keys):  # a partial reset keeps other entries
            reset_data = self.roots[row].copy().update(reset_data)
        elif is_masked:  # the environment may read the mask
            for prefix, done_key in env._done_keys_by_prefix.items():
                reset_data[join_key(prefix, "_reset")] = torch.ones_like(env.full_done_spec[done_key].zero())
        return env.reset(reset_data, **kwargs)

    def step(self, rows: Sequence[int] | None, actions: Sequence[Any], out: RowBuffers, reset_done: bool) -> StepNotes:
        """Steps the environments of `rows` and writes the results into `out`, as `Simulator.step` does."""
        notes, results, finals, new_roots = StepNotes(), RowData(), RowData(), RowData()
        done_rows: list[int] = []
        for row, action in zip(self._all_rows if rows is None else rows, actions, strict=True):
            env = self._envs[row]
            try:
                data = self._with_inputs(row, action)
                if reset_done:
                    stepped, root = env.step_and_maybe_reset(data)
                else:
                    stepped = env.step(data)
                    root = env.step_mdp(stepped)
                next_td = stepped.get("next")
                is_done = env.any_done(next_td)
            except BaseException as error:
                raise_if_of_caller(error)
                self._record_failure(row, error, notes)
                continue
            self.roots[row] = root
            if is_done:
                done_rows.append(row)
            if is_done and reset_done:
                finals[row], new_roots[row] = next_td, root
            else:
                results[row] = next_td
        return self._write_step(results, finals, new_roots, done_rows, out, notes)

    def _write_step(
        self,
        results: RowData,
        finals: RowData,
        new_roots: RowData,
        done_rows: Sequence[int],
        out: RowBuffers,
        notes: StepNotes,
    ) -> StepNotes:
        """Writes the entries of a step, and returns the notes with the rows that are done.

        Args:
            results: the results of rows that were not reset.
            finals, new_roots: the results of the rows that were reset, and their next roots.
            done_rows: the rows in which an episode ended.
            out, notes: as in `_write`.
        """
        self._write(results, out, notes)
        if finals:
            self._write(finals, out, notes, final=True)
            new_roots = {row: root for row, root in new_roots.items() if row in finals}
            self._write(new_roots, out, notes, is_root=True)
        if done_rows:
            notes.done_rows = [row for row in done_rows if row in results or row in new_roots]
            out.terminated[notes.done_rows] = True
        return notes

    def _with_inputs(self, row: int, action: Mapping[Path, Any]) -> TensorDictBase:
        data, graphs = self.roots[row], self._graphs
        for path in () if graphs is None else graphs.detached_paths:
            if (value := data.get(key_of(path), None)) is not None:
                data.set(key_of(path), value.detach())
        if self._has_pickled_inputs:
            for key, value in action[PICKLED].items():
                data.set(key, value)
        if self._has_mask and not action[STEP].all():
            data.set("_step", torch.from_numpy(action[STEP]))
        for path, key in self._all_inputs if self._has_next_inputs and action[NEXT] else self._inputs:
            tensor = torch.from_numpy(np.asarray(action[path]))
            if graphs is not None and path in graphs.inputs:
                given = graphs.inputs[path][self._start + row]  # integers would have no gradients
                tensor = given.to(tensor) if tensor.is_floating_point() else given.to(tensor.device)
            data[key] = tensor
        return data

    def _record_failure(self, row: int, error: BaseException, notes: StepNotes) -> None:
        self._drop_root(row)
        notes.failures.append((row, error))

    def _drop_root(self, row: int) -> None:
        env = self._envs[row]
        self.roots[row] = TensorDict({}, env.batch_size, device=env.device)
        if self._graphs is not None:
            self._graphs.obs.pop(self._start + row, None)

    def _write(
        self, data: RowData, out: RowBuffers, notes: StepNotes, *, final: bool = False, is_root: bool = False
    ) -> None:
        """Writes the entries of environments into their rows.

        If the entries of an environment do not fit, it is recorded as failed, and removed from `data`.

        Args:
            data: the TensorDict of each row.
            out: the buffers to write.
            notes: the notes to add failures and pickled entries to.
            final: whether these are final observations.
            is_root: whether rewards may be missing.
        """
        leaves = out.final_obs if final else out.obs
        rows = list(data) if len(data) < len(self._envs) else slice(None)
        graph_tensors: ByRow = {}
        for writer in self._writers:
            leaf = leaves[writer.index]
            if len(data) > 1:
                try:
                    values = torch.stack(list(map(writer.get, data.values())))
                except (LookupError, TypeError, RuntimeError):  # entries are missing, or differ in shape
                    values = None
                if (
                    values is not None
                    and values.shape[1:] == writer.shape
                    and values.dtype == writer.tensor_dtype
                    and (self._graphs is None or not values.requires_grad)
                ):
                    leaf[rows] = values.numpy(force=True)
                    continue
            for row, value in self._write_one_by_one(writer, data, leaf, notes, is_root).items():
                graph_tensors.setdefault(self._start + row, {})[writer.path] = value
        if self._graphs is not None:
            self._graphs.store_outputs(self._start, data, graph_tensors, final)
        if self._pickled_leaf is not None:
            objects = (notes.final_objects if final else notes.objects).setdefault(self._pickled_leaf, [])
            for row, row_td in data.items():
                values = ((key, row_td.get(key, None)) for key in self._pickled_keys[row])
                objects.append((row, {key: self._copy_value(value) for key, value in values if value is not None}))

    def _write_one_by_one(
        self, writer: EntryWriter, data: RowData, leaf: np.ndarray, notes: StepNotes, is_root: bool
    ) -> dict[int, Tensor]:
        """Writes an entry of each row as `_write` does, and returns the values that have an autograd graph, by row."""
        graph_tensors: dict[int, Tensor] = {}
        for row, row_td in list(data.items()):
            try:
                value = row_td.get(writer.key, None)
                if value is not None:
                    leaf[row] = writer.convert(value)
                    if self._graphs is not None and value.requires_grad:
                        graph_tensors[row] = value
                elif not (is_root and writer.key in self._envs[row].reward_keys):
                    found = sorted_keys(row_td)
                    raise SpaceError(f"Expected {writer.key!r}, as in the specs, got only {found}.")
            except BaseException as error:
                raise_if_of_caller(error)
                del data[row]
                self._record_failure(row, error, notes)
        return graph_tensors

    def _copy_value(self, value: Any) -> Any:
        """Returns a copy, because an environment may change its own value later."""
        if isinstance(value, Tensor):
            return value.detach().clone() if self._graphs is None else value.clone()
        if isinstance(value, NonTensorData):
            return NonTensorData(deepcopy(value.data), batch_size=value.batch_size)
        if is_non_tensor(value):
            return torch.stack([self._copy_value(part) for part in value.unbind(0)], 0)
        return value.clone()


class EntryWriter:
    """The leaf of the batch buffers for an entry, with its shape and dtype."""

    __slots__ = ("dtype", "get", "index", "key", "path", "shape", "tensor_dtype")

    def __init__(self, index: int, path: Path, shape: torch.Size, dtype: np.dtype[Any]):
        self.index, self.path, self.key, self.shape, self.dtype = index, path, key_of(path), shape, dtype
        self.get = itemgetter(self.key)
        self.tensor_dtype = torch.from_numpy(np.empty(0, dtype)).dtype

    def convert(self, value: object) -> np.ndarray:
        """Returns a tensor as an array for the leaf, after checks of its shape and dtype.

        Raises:
            SpaceError: the value is no tensor of the shape, or its dtype cannot be cast.
        """
        if type(value) is Tensor and value.shape == self.shape and value.dtype == self.tensor_dtype:
            return value.numpy(force=True)
        if not isinstance(value, Tensor) or value.shape != self.shape:
            actual = tuple(value.shape) if isinstance(value, Tensor) else repr(value)[:80]
            raise SpaceError(
                f"Expected shape {tuple(self.shape)} at {self.key!r}, as in the specs, got {actual}. "
                "Use check_env_specs(env) to find all differences. Give sizes that vary as -1 in the spec."
            )
        array = value.detach().cpu().numpy()
        if array.dtype != self.dtype and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise SpaceError(
                f"Expected {self.dtype} at {self.key!r}, as in the specs, got {array.dtype}, which does not cast "
                "safely. Correct the spec or the value."
            )
        return array
