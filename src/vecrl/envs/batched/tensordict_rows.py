"""Steps TensorDict environments one after another, each from its root TensorDict, and writes the results into rows.

This module knows the paths of entries and the engine's rows. It must not know workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import NonTensorData, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from ...engine.simulator import RowBuffers, StepNotes
from ...engine.space_layout import Layout
from ...errors import SpaceError
from ...simulators.gymnasium import ENV_EXCEPTIONS
from ..base import EnvBase
from ..spec_container import Key
from .autograd_graphs import Graphs
from .entry_layout import PICKLED, STEP, Path, key_of, outputs_of, paths_of
from .metadata import EnvMetaData

Options = Mapping[str, Any]
"""Options of a reset: "kwargs", keyword arguments for `reset`, and "data", TensorDicts with masks and states by
environment."""


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
        outputs: spaces.Space[Any],
        inputs: spaces.Space[Any],
        graphs: Graphs | None = None,
    ):
        self._envs = envs
        self._start = start
        self._graphs = graphs
        self._all_rows = range(len(envs))
        self.roots: list[TensorDictBase] = [TensorDict({}, env.batch_size, device=env.device) for env in envs]
        layout, paths = Layout(outputs), paths_of(outputs)
        self._pickled_leaf = layout.opaque[0] if layout.opaque else None
        self._writers = [
            EntryWriter(index, path, torch.Size(leaf.shape), leaf.dtype)
            for index, (path, leaf) in enumerate(zip(paths, layout.leaves, strict=True))
            if leaf.dtype is not None
        ]
        entry_formats = [outputs_of(EnvMetaData.metadata_from_env(env, fake=False)) for env in envs]
        self._pickled_keys = [[key_of(path) for path in formats if path not in paths] for formats in entry_formats]
        self._inputs = [(path, key_of(path) if path else path) for path in paths_of(inputs)]

    def reset(
        self, rows: Sequence[int] | None, seeds: Sequence[int | None] | None, options: Options | None, out: RowBuffers
    ) -> StepNotes:
        """Resets the environments of `rows` and writes their observations into `out`, as `Simulator.reset` does."""
        notes = StepNotes()
        kwargs, data_by_row = {}, {}
        if options:
            kwargs, data_by_row = options["kwargs"], options["data"]
        for position, row in enumerate(self._all_rows if rows is None else rows):
            try:
                if seeds is not None and seeds[position] is not None:
                    self._envs[row].set_seed(seeds[position])
                root = self._reset_env(row, data_by_row.get(self._start + row), kwargs)
                self._write(row, root, out, notes, optional_keys=self._envs[row].reward_keys)
                self.roots[row] = root
            except ENV_EXCEPTIONS as error:
                self._record_failure(row, error, notes)
        return notes

    def _reset_env(self, row: int, reset_data: TensorDictBase | None, kwargs: Mapping[str, Any]) -> TensorDictBase:
        env = self._envs[row]
        if reset_data is None:
            return env.reset(**kwargs)
        if any(reset_data.get(key, None) is not None for key in env.reset_keys):  # a partial reset keeps other entries
            reset_data = self.roots[row].copy().update(reset_data)
        return env.reset(reset_data, **kwargs)

    def step(self, rows: Sequence[int] | None, actions: Sequence[Any], out: RowBuffers, reset_done: bool) -> StepNotes:
        """Steps the environments of `rows` and writes the results into `out`, as `Simulator.step` does."""
        notes = StepNotes()
        for row, action in zip(self._all_rows if rows is None else rows, actions, strict=True):
            try:
                self._step(row, action, out, reset_done, notes)
            except ENV_EXCEPTIONS as error:
                self._record_failure(row, error, notes)
        return notes

    def _step(self, row: int, action: Mapping[Path, Any], out: RowBuffers, reset_done: bool, notes: StepNotes) -> None:
        env = self._envs[row]
        data = self._with_inputs(row, action)
        if reset_done:
            result, root = env.step_and_maybe_reset(data)
        else:
            result = env.step(data)
            root = env.step_mdp(result)
        next_td = result.get("next")
        is_done = env.any_done(next_td)
        if is_done and reset_done:
            self._write(row, next_td, out, notes, final=True)
            self._write(row, root, out, notes, optional_keys=env.reward_keys)
        else:
            self._write(row, next_td, out, notes)
        self.roots[row] = root
        if is_done:
            out.terminated[row] = True
            notes.done_rows.append(row)

    def _with_inputs(self, row: int, action: Mapping[Path, Any]) -> TensorDictBase:
        data, graphs = self.roots[row], self._graphs
        for path in () if graphs is None else graphs.detached_paths:
            if (value := data.get(key_of(path), None)) is not None:
                data.set(key_of(path), value.detach())
        for path, key in self._inputs:
            value = action[path]
            if path == PICKLED:
                for entry_key, entry in value.items():
                    data.set(entry_key, entry)
            elif path == STEP:
                if not value.all():
                    data.set("_step", torch.from_numpy(value))
            else:
                tensor = torch.from_numpy(np.asarray(value))
                if graphs is not None and path in graphs.inputs:
                    tensor = graphs.inputs[path][self._start + row].to(tensor)
                data.set(key, tensor)
        return data

    def _record_failure(self, row: int, error: BaseException, notes: StepNotes) -> None:
        env = self._envs[row]
        self.roots[row] = TensorDict({}, env.batch_size, device=env.device)
        if self._graphs is not None:
            self._graphs.obs.pop(self._start + row, None)
        notes.failures.append((row, error))

    def _write(
        self,
        row: int,
        data: TensorDictBase,
        out: RowBuffers,
        notes: StepNotes,
        *,
        final: bool = False,
        optional_keys: Sequence[Key] = (),
    ) -> None:
        """Writes the entries of an environment into its row; those of `optional_keys` may be missing."""
        leaves, graphs = out.final_obs if final else out.obs, self._graphs
        graph_tensors: dict[Path, Tensor] = {}
        for writer in self._writers:
            value = data.get(writer.key, None)
            if value is not None:
                if type(value) is Tensor and value.shape == writer.shape and value.dtype == writer.tensor_dtype:
                    array = value.detach().cpu().numpy()
                else:
                    array = writer.convert(value)
                leaves[writer.index][row] = array
                if graphs is not None and value.requires_grad:
                    graph_tensors[writer.path] = value
            elif writer.key not in optional_keys:
                raise SpaceError(f"Expected {writer.key!r}, as in the specs, got only {_sorted_keys(data)}.")
        if graphs is not None:
            graphs.store_outputs(self._start + row, graph_tensors, final)
        if self._pickled_leaf is not None:
            pickled = {
                key: self._copy_value(value)
                for key in self._pickled_keys[row]
                if (value := data.get(key, None)) is not None
            }
            objects = notes.final_objects if final else notes.objects
            objects.setdefault(self._pickled_leaf, []).append((row, pickled))

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

    __slots__ = ("dtype", "index", "key", "path", "shape", "tensor_dtype")

    def __init__(self, index: int, path: Path, shape: torch.Size, dtype: Any):
        self.index, self.path, self.key, self.shape, self.dtype = index, path, key_of(path), shape, dtype
        self.tensor_dtype = torch.from_numpy(np.empty(0, dtype)).dtype

    def convert(self, value: Any) -> np.ndarray:
        """Returns a tensor as an array for the leaf, after checks of its shape and dtype.

        Raises:
            SpaceError: the value is no tensor of the shape, or its dtype cannot be cast.
        """
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


def _sorted_keys(data: TensorDictBase) -> list[str]:
    return sorted(map(str, data.keys(include_nested=True, leaves_only=True)))
