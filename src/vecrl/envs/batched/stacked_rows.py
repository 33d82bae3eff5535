"""`StackedRows`: steps the transformed environments of one worker, with one call of their transforms for all rows.

A chain of transforms costs about as much for one row as for many. This is for environments that are each a
`TransformedEnv` around one gymnasium environment, with transforms of equal settings that treat each row independently.
Only a step of all rows, and the resets after it, are done together, over a record: each environment does other resets,
partial steps and states itself. This module must not know workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from ...engine.simulator import RowBuffers, StepNotes, raise_if_of_caller
from ...engine.space_layout import Layout, LazyRows
from ...simulators.gymnasium import GymnasiumSimulator
from ...specs import TensorSpec
from ...specs.dtypes import torch_dtype
from ..base import EnvBase, UnwrappedGymEnv, upper_modules
from ..entries.records import Entries, Record, next_root
from ..entries.row_masks import any_true, check_not_done
from .autograd_graphs import Graphs
from .codecs import GymCodec
from .entry_layout import NEXT, Path, Space, paths_of, plain_array
from .metadata import EnvMetaData
from .tensordict_rows import Options, RowData, TensorDictRows

Failures = list[tuple[int, BaseException]]
"""Rows, each with its exception."""
_version = attrgetter("_version")
_COMPARABLE = (bool, int, float, complex, str, bytes, set, torch.dtype, torch.device, torch.Size, type, TensorSpec)


def gymnasium_envs_under(envs: Sequence[EnvBase]) -> list[UnwrappedGymEnv] | None:
    """Returns the gymnasium environments under the transforms of several environments.

    Returns None if there is one environment only, one is of another kind, or its transform needs more than a row.
    """
    transformed_env = upper_modules["TransformedEnv"]
    found: list[UnwrappedGymEnv] = []
    for env in envs:
        if type(env) is not transformed_env or not _transforms_rows(env):
            return None
        unwrapped = env.base_env._unwrapped_gym()
        if unwrapped is None:
            return None
        found.append(unwrapped)
    return found if len(found) > 1 else None


def _transforms_rows(env: Any) -> bool:
    """Returns whether the transform of an environment can be applied to a record of several rows."""
    return env.transform.rows_are_independent and env.transform._accepts_records and env._record_keys is not None


class Prepared(NamedTuple):
    """Inputs of a step of all rows.

    Attributes:
        root: the root `[k]` with the inputs.
        gym_actions: the actions of the gymnasium environments, by row.
    """

    root: Entries
    gym_actions: Sequence[Any]


class StackedRows(TensorDictRows):
    """Gives the results of `TensorDictRows`; a step of all rows calls the transforms once.

    As soon as the settings of the transforms differ, each environment transforms its own row.

    Args:
        envs, start, outputs, inputs, graphs: as in `TensorDictRows`.
        simulator: steps the gymnasium environments under the transforms.
        keys: the keys of the leaves of their observations.

    Attributes:
        simulator: the argument.
        results: the results of the last step, and the next roots (None if no row was reset), of all rows; None if it
            wrote them into the buffers.
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
        self._size = torch.Size([len(envs)])
        self._layout = Layout(simulator.observation_space)
        base_meta = EnvMetaData.metadata_from_env(self._first_env.base_env, fake=False)
        self._codec = GymCodec(base_meta, keys, simulator.observation_space)
        self.results: tuple[Entries, Entries | None] | None = None
        boxes: Any = inputs
        self._input_formats = [
            (key, torch.Size((len(envs), *boxes[path].shape)), torch_dtype(boxes[path].dtype))
            for path, key in self._inputs
        ]
        self._root: Entries | None = None  # `[k]`: if it is not None, it replaces `roots`, which is outdated
        self.settings_changed()

    def settings_changed(self) -> None:
        self._settings = SettingsComparison(self._envs)
        self._base_envs: list[Any] = [env.base_env for env in self._envs]

    # -- steps over records, for a caller in the same thread

    def prepare(self, record: Entries) -> Prepared | None:
        """Returns the inputs for `step`, instead of actions; None if rows must be stepped by themselves.

        After `step` with them, `results` has the results, unless an environment failed or they do not fit the specs.
        """
        if self._pickled_leaf is not None or self._first_env.is_closed:
            return None
        inputs: Entries = {}
        for key, shape, dtype in self._input_formats:
            value = record.get(key)
            if value is None or value.shape != shape or value.dtype != dtype or value.requires_grad:
                return None
            inputs[key] = value
        root = self._root_with(inputs)
        gym_actions = None if root is None else self._gym_actions(root)
        return None if root is None or gym_actions is None else Prepared(root, gym_actions)

    def has_results(self) -> bool:
        """Whether the last step has results to pass on."""
        return self.results is not None

    def _copy_for_caller(self, entries: Entries) -> Entries:
        """Returns copies of the entries that the specs name. `_root` keeps the originals for the next step."""
        copies: Entries = {}
        for writer in self._writers:
            if (value := entries.get(writer.key)) is not None:
                value = value.detach() if value.requires_grad else value
                copies[writer.key] = value.clone(memory_format=torch.contiguous_format)
        return copies

    def root_by_row(self) -> RowData:
        """Returns `roots`, which may be changed; the root of all rows is split first."""
        if self._root is not None:
            self.roots, self._root = dict(enumerate(TensorDict(self._root, self._size).unbind(0))), None
        return self.roots

    def reset(
        self, rows: Sequence[int] | None, seeds: Sequence[int | None] | None, options: Options | None, out: RowBuffers
    ) -> StepNotes:
        """Resets each of the environments, as `TensorDictRows.reset`."""
        self.root_by_row()
        return super().reset(rows, seeds, options, out)

    def step(self, rows: Sequence[int] | None, actions: Sequence[Any], out: RowBuffers, reset_done: bool) -> StepNotes:
        """Steps environments, as `TensorDictRows.step`; all of them together if possible."""
        self.results = None
        if isinstance(actions, Prepared):
            return self._step_all(*actions, out, reset_done, True)
        root = None if rows is not None or self._first_env.is_closed else self._stacked_root(actions)
        gym_actions = None if root is None else self._gym_actions(root)
        if root is not None and gym_actions is not None:
            return self._step_all(root, gym_actions, out, reset_done)
        self.root_by_row()
        return super().step(rows, actions, out, reset_done)

    # -- a step of all rows

    def _stacked_root(self, actions: Sequence[Any]) -> Entries | None:
        """Returns the root `[k]` with the inputs of a step; None if rows must be stepped by themselves."""
        if not isinstance(actions, LazyRows):
            return None
        values: dict[Path, Any] = dict(zip(self._input_paths, actions.leaves, strict=True))
        if self._has_next_inputs and values[NEXT].any():
            return None
        return self._root_with({key: torch.from_numpy(values[path]) for path, key in self._inputs})

    def _root_with(self, inputs: Entries) -> Entries | None:
        """Returns the root `[k]` with these inputs; None if rows must be stepped by themselves."""
        has_graphs = self._graphs is not None and bool(self._graphs.inputs or self._graphs.obs)
        if has_graphs or not self._settings.are_equal():
            return None
        root = self._root
        if root is None:
            roots: Any = list(self.roots.values())
            keys = {frozenset(root.keys(True, True)) for root in roots}
            if len(keys) > 1 or not all(type(root) is TensorDict for root in roots):
                return None
            stacked: Any = torch.stack(roots)
            root = dict(stacked.items())
        return root | inputs

    def _gym_actions(self, root: Entries) -> Sequence[Any] | None:
        """Returns the actions of the gymnasium environments; None if they do not fit, which an environment reports."""
        try:
            transform = self._first_env.transform
            inputs: Any = transform.inv(Record(root, self._size)) if transform._has_inverse else root
            return list(self._codec.inputs(inputs))
        except BaseException as error:
            raise_if_of_caller(error)
            return None

    def _step_all(
        self, root: Entries, gym_actions: Sequence[Any], out: RowBuffers, reset_done: bool, pass_on: bool = False
    ) -> StepNotes:
        buffers = self._empty_buffers()
        failures = list(self.simulator.step(None, gym_actions, buffers, False).failures)
        entries = self._codec.step_entries(buffers.obs, buffers.reward, buffers.terminated, buffers.truncated)
        next_record = self._for_rows(self._first_env.transform._step, self._all_rows, failures, root, entries)
        self._root = root = next_root(self._first_env._record_keys, root, next_record)
        ok_rows: Sequence[int] = self._all_rows
        done = next_record["done"]
        done_rows: list[int] = done.reshape(-1).nonzero()[:, 0].tolist() if any_true(done) else []
        if failures:
            failed = {row for row, _ in failures}
            ok_rows = [row for row in ok_rows if row not in failed]
            done_rows = [row for row in done_rows if row not in failed]
        notes = StepNotes()
        notes.failures = failures
        if not self._fits(next_record) or any(env._seed is not None for env in self._base_envs):
            return self._finish_by_row(next_record, ok_rows, done_rows, notes, out, reset_done)
        ended_rows = done_rows if reset_done else []
        if ended_rows:
            self._reset_rows(ended_rows, root, notes)
            failed = {row for row, _ in notes.failures}
            done_rows = [row for row in done_rows if row not in failed]
        if pass_on and not notes.failures:
            self.results = self._copy_for_caller(next_record), self._copy_for_caller(root) if ended_rows else None
        else:
            self._write_record(next_record, out.obs, ok_rows)
            if ended_rows:
                self._write_record(next_record, out.final_obs, ended_rows)
                self._write_record(root, out.obs, done_rows)
        notes.done_rows = done_rows
        out.terminated[done_rows] = True
        for row, _ in failures:
            self._drop_root(row)
        return notes

    def _empty_buffers(self) -> RowBuffers:
        """Returns buffers for the results of the gymnasium environments."""
        count = len(self._envs)
        flags = np.zeros((3, count), np.bool_)
        return RowBuffers(self._layout.empty(count), [], np.zeros(count), flags, np.empty(0), np.empty(0))

    def _for_rows(
        self, hook: Callable[..., Entries], rows: Sequence[int], failures: Failures, *entries: Entries
    ) -> Entries:
        """Returns the result of a hook of the transform for entries of some rows; if it raises, of a call for each.

        Rows for which it raises are added to the failures; their entries are undefined.
        """
        try:
            return hook(*[Record(part, torch.Size([len(rows)])) for part in entries])
        except BaseException as error:
            raise_if_of_caller(error)
            results = list(self._row_by_row(hook, rows, failures, entries))
        example = next((result for result in results if result is not None), entries[-1])
        parts = [example if result is None else result for result in results]
        return {key: torch.cat([part[key][:1] for part in parts]) for key in example}

    def _row_by_row(
        self, hook: Callable[..., Entries], rows: Sequence[int], failures: Failures, entries: Sequence[Entries]
    ) -> Iterator[Entries | None]:
        failed, size = {row for row, _ in failures}, torch.Size([1])
        for position, row in enumerate(rows):
            index = slice(position, position + 1)
            parts = [Record({key: value[index] for key, value in part.items()}, size) for part in entries]
            try:
                yield None if row in failed else hook(*parts)
            except BaseException as error:
                raise_if_of_caller(error)
                failures.append((row, error))
                yield None

    def _reset_rows(self, rows: Sequence[int], root: Entries, notes: StepNotes) -> None:
        """Resets rows and sets their entries in the root."""
        buffers, index = self._empty_buffers(), list(rows)
        notes.failures.extend(self.simulator.reset(rows, None, None, buffers).failures)
        positions = torch.tensor(index)
        old = {key: value.index_select(0, positions) for key, value in root.items()}
        old["_reset"] = torch.ones(len(rows), 1, dtype=torch.bool)
        base_flags = {flag: torch.zeros(len(rows), 1, dtype=torch.bool) for flag in self._codec.flag_names}
        first = self._codec.obs_entries([leaf[index] for leaf in buffers.obs], len(rows)) | base_flags
        for key, value in self._for_rows(self._transform_reset, rows, notes.failures, first, old).items():
            if key in root:
                root[key] = root[key].index_copy(0, positions, value)

    def _transform_reset(self, first: Record, old: Record) -> Record:
        first = self._first_env.transform._reset(old, first)
        if not self._first_env._allow_done_after_reset:
            check_not_done(cast(Any, first), None, ["done"])
        return first

    def _fits(self, record: Entries) -> bool:
        """Returns whether the entries can be written into buffers as they are."""
        if self._pickled_leaf is not None:
            return False
        for writer in self._writers:
            value = record.get(writer.key)
            if value is None or value.shape[1:] != writer.shape or value.dtype != writer.tensor_dtype:
                return False
            if value.requires_grad and self._graphs is not None:
                return False
        return True

    def _write_record(self, record: Entries, leaves: Sequence[Any], rows: Sequence[int]) -> None:
        index: Any = slice(None) if len(rows) == len(self._envs) else rows
        for writer in self._writers:
            value = record.get(writer.key)
            if value is not None:  # a reward in a root
                leaves[writer.index][index] = plain_array(value)[index]

    def _drop_root(self, row: int) -> None:
        self.root_by_row()
        super()._drop_root(row)

    def _finish_by_row(
        self,
        next_record: Entries,
        ok_rows: Sequence[int],
        done_rows: Sequence[int],
        notes: StepNotes,
        out: RowBuffers,
        reset_done: bool,
    ) -> StepNotes:
        """Resets each row that is done, and writes the entries of the step."""
        next_td: Any = TensorDict(dict(next_record), self._size)
        roots = self.root_by_row()
        for row, _ in notes.failures:
            self._drop_root(row)
        results, finals, new_roots = RowData({row: next_td[row] for row in ok_rows}), RowData(), RowData()
        for row in done_rows if reset_done else ():
            result = results.pop(row)
            try:
                roots[row] = new_roots[row] = self._envs[row].maybe_reset(roots[row])
            except BaseException as error:
                raise_if_of_caller(error)
                self._record_failure(row, error, notes)
            else:
                finals[row] = result
        return self._write_step(results, finals, new_roots, done_rows, out, notes)


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
            independent = all(map(_transforms_rows, self._envs))
            same_tensors = len(self._tensors) == len(tensors)  # changes of others cannot be counted
            self._are_equal = independent and same_tensors and all(equal_settings(first, other) for other in others)
            self._num_changes = self._count_changes()
        self._num_changes_of_process = self._count_changes_of_process()
        return self._are_equal

    def _count_changes_of_process(self) -> int:
        return self._envs[0].transform.total_changes + sum(map(_version, self._tensors))

    def _count_changes(self) -> int:
        num_changes = sum(getattr(part, "num_changes", 0) for part in self._parts)
        return num_changes + sum(map(_version, self._tensors))


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
