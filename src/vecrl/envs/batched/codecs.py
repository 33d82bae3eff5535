"""Converts between TensorDicts of a whole batch and the inputs and transitions of the engine's pool.

`TensorDictCodec` is for TensorDict environments: every entry has a path and is not changed. `GymCodec` is for gymnasium
environments that workers step without their specs: specs are applied here, to all rows at once. Both know transitions
and TensorDicts. They must not know pools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from ...engine.space_layout import Layout, Leaf
from ...engine.transition import Transition
from ...errors import SpaceError
from ...specs import Composite, TensorSpec
from ...specs.dtypes import cast_exactly, is_integral, numpy_dtype, torch_dtype
from ..entries.keys import FLAGS, OUTPUTS, Key, key_path, sorted_keys
from ..entries.records import Entries
from ..entries.row_masks import stack_lazily
from .autograd_graphs import Graphs
from .entry_layout import (
    NEXT,
    PICKLED,
    STEP,
    Path,
    Space,
    inputs_of,
    is_next,
    key_of,
    only_non_tensors,
    paths_of,
    plain_array,
)
from .metadata import EnvMetaData

Rows = np.ndarray | None
"""Indices of rows `[m]`; None for all rows."""
PickledRows = Sequence[Mapping[Key, Any] | None]


class TensorDictCodec:
    """The codec of TensorDict environments.

    Args:
        metas: the metadata of all n environments.
        outputs, inputs: spaces by path, as in `entry_layout`.
        reward_keys: the keys that a root does not have.
        graphs: passes tensors with an autograd graph, which the pool cannot; None to pass values only.

    Attributes:
        is_lazy: whether rows have different entries or shapes and are stacked lazily.
        has_entries: whether all entries are tensors without groups.
    """

    def __init__(
        self,
        metas: Sequence[EnvMetaData],
        outputs: Space,
        inputs: Space,
        reward_keys: Sequence[Key],
        graphs: Graphs | None = None,
    ):
        self._graphs = graphs
        boxes: Any = inputs
        self._inputs = [(path, key_of(path), torch.Size(boxes[path].shape)) for path in paths_of(inputs) if path]
        self._no_next = {
            path: np.zeros((len(metas), *shape), boxes[path].dtype) for path, _, shape in self._inputs if is_next(path)
        }
        self._dtypes = {path: torch_dtype(boxes[path].dtype) for path, _, _ in self._inputs}
        self._has_pickled_inputs = PICKLED in paths_of(inputs)
        has_pickled = PICKLED in paths_of(outputs)
        self.is_lazy = has_pickled and not only_non_tensors(metas)
        self._unpack = None if not has_pickled else set_heterogeneous_entries if self.is_lazy else set_object_entries
        self._input_keys_by_row = [[key_of(path) for path in inputs_of(meta)] for meta in metas]
        paths = [path for path in paths_of(outputs) if path]
        self._reward_keys = reward_key_set = set(reward_keys)
        sizes, self._classes = _nested_sizes(metas[0]), _nested_classes(metas[0])
        is_flat = all(len(path) == 1 for path in paths)
        self.has_entries = is_flat and not has_pickled and not self._has_pickled_inputs
        self._next_builder = _NestedBuilder(paths, sizes)
        self._root_builder = _NestedBuilder([path for path in paths if key_of(path) not in reward_key_set], sizes)

    def inputs(
        self,
        data: TensorDictBase,
        row_index: Rows = None,
        step_mask: Tensor | None = None,
        env_ids: np.ndarray | None = None,
    ) -> dict[Path, Any]:
        """Returns actions and states as inputs of the pool.

        Args:
            data: the TensorDict of all rows.
            row_index: the rows to return.
            step_mask: the mask of rows to step inside environments that are batches.
            env_ids: the environment of each row of `data`; by default row i is of environment i.

        Raises:
            SpaceError: an entry is missing, has a wrong shape, or has numbers that its dtype cannot hold.
        """
        tree: dict[Path, Any] = {}
        graphs: dict[Path, Tensor] = {}
        next_given = bool(self._no_next) and "next" in data.keys()  # noqa: SIM118 - a TensorDict is no dict
        for path, key, shape in self._inputs:
            if path == STEP:
                value = torch.ones(data.batch_size, dtype=torch.bool) if step_mask is None else step_mask
            elif path in self._no_next and (not next_given or path == NEXT):
                no_values = self._no_next[path] if row_index is None else self._no_next[path][: len(row_index)]
                tree[path] = np.ones_like(no_values) if next_given else no_values
                continue
            else:
                value = data.get(key, None)
                if value is None and path in self._no_next:  # not written by a policy: use the current value
                    key = key_of(path[1:])
                    value = data.get(key, None)
            if value is None or value.shape[1:] != shape:
                raise _input_error(value, shape, key, data)
            if value.requires_grad:
                graphs[path] = value
            if value.dtype != self._dtypes[path]:
                value = self._cast(value, self._dtypes[path], key)
            array = plain_array(value)
            tree[path] = array if row_index is None else array[row_index]
        if self._graphs is not None:
            self._graphs.take_inputs(graphs, data)
        if self._has_pickled_inputs:
            parts = data.unbind(0)
            row_ids = range(len(parts)) if row_index is None else row_index.tolist()
            tree[PICKLED] = [self._pickle_row(parts[i], i if env_ids is None else int(env_ids[i])) for i in row_ids]
        return tree

    def _cast(self, value: Tensor, dtype: torch.dtype, key: Key) -> Tensor:
        """Casts whole numbers to integers and flags. Tensors with a graph are passed by `Graphs`, with their dtype."""
        value = cast_exactly(value if self._graphs is not None else value.detach(), dtype, key)
        return value.detach().to(dtype) if is_integral(dtype) else value

    def _pickle_row(self, data: TensorDictBase, row: int) -> dict[Key, Any]:
        shared_keys = {key for _, key, _ in self._inputs}
        keys = [key for key in self._input_keys_by_row[row] if key not in shared_keys]
        data = data if self._graphs is not None else data.detach()
        return {key: value.to("cpu") for key in keys if (value := data.get(key, None)) is not None}

    def next_tensordict(self, transition: Transition) -> TensorDictBase:
        """Returns the "next" TensorDict of a transition, with final observations."""
        data = self._to_tensordict(
            transition.next_obs, self._next_builder, transition.ids, transition.final_rows.tolist()
        )
        for row in transition.failed:
            self._mark_failed(data[row], bool(transition.truncated[row]))
        return data

    def _mark_failed(self, row: TensorDictBase, truncated: bool) -> None:
        """Sets the reward 0 and the flags from the engine in the row of a failed environment."""
        entries: Any = row.items(include_nested=True, leaves_only=True)
        for key, value in entries:
            name = key if isinstance(key, str) else key[-1]
            if name in FLAGS:
                value.fill_(truncated and name != "terminated")
            elif key in self._reward_keys:
                value.zero_()

    def root_tensordict(self, transition: Transition) -> TensorDictBase:
        """Returns the root TensorDict of the next step."""
        return self._to_tensordict(transition.obs, self._root_builder, transition.ids)

    def next_entries(self, transition: Transition) -> dict[str, Any]:
        """Returns the entries of `next_tensordict`, if `has_entries`."""
        if transition.failed:
            return dict(self.next_tensordict(transition).items())
        leaves = self._leaves(transition.next_obs, self._next_builder, transition.ids, transition.final_rows.tolist())
        return {path[0]: value for path, value in leaves.items()}

    def root_entries(self, transition: Transition) -> dict[str, Tensor]:
        """Returns the entries of `root_tensordict`, if `has_entries`."""
        leaves = self._leaves(transition.obs, self._root_builder, transition.ids)
        return {path[0]: value for path, value in leaves.items()}

    def _leaves(
        self, values: Mapping[Path, Any], tree: _NestedBuilder, ids: np.ndarray, final: Sequence[int] = ()
    ) -> dict[Path, Tensor]:
        leaves = {path: torch.from_numpy(values[path]) for path in tree.paths}
        if self._graphs is not None:
            self._graphs.restore(leaves, ids, final)
        return leaves

    def _to_tensordict(
        self, values: Mapping[Path, Any], tree: _NestedBuilder, ids: np.ndarray, final: Sequence[int] = ()
    ) -> TensorDictBase:
        data = tree.build(self._leaves(values, tree, ids, final), len(ids))
        if self._unpack:
            data = self._unpack(data, values[PICKLED])
        for key, data_cls in self._classes:
            data.set(key, data_cls.from_tensordict(data.get(key)))
        return data


class GymCodec:
    """The codec of gymnasium environments.

    Args:
        meta: the metadata of one environment; all are equal.
        keys: the keys of the leaves of observations.
        outputs: the observation space of the gymnasium environments.

    Attributes:
        layout: the layout of observations.
        flag_names: the names of the done flags.
    """

    is_lazy = False
    has_entries = True  # if no observation is in a group, which `record_steps` checks

    def __init__(self, meta: EnvMetaData, keys: Sequence[Key], outputs: Space):
        self.layout = Layout(outputs)
        observation = meta.full("observation")
        specs: list[TensorSpec] = [observation[key].to("cpu") for key in keys]
        self._leaves = [
            (key_path(key), spec, _same_memory_layout(spec, leaf))
            for key, spec, leaf in zip(keys, specs, self.layout.leaves, strict=True)
        ]
        [self._action_key] = meta.full("action").keys(True, True)
        reward_keys: Any = meta.full("reward").keys(True, True)
        [self._reward_key] = reward_keys
        self._action_spec: TensorSpec = meta.full("action")[self._action_key]
        self._reward_dtype = numpy_dtype(meta.full("reward")[self._reward_key].dtype)
        self.flag_names = [name for name in FLAGS if name in meta.full("done")]

    def inputs(
        self, data: TensorDictBase, row_ids: Rows = None, step_mask: Tensor | None = None, env_ids: Rows = None
    ) -> np.ndarray:
        """Returns actions in the form that gymnasium environments take."""
        actions: Any = data.get(self._action_key, None)
        if actions is None or actions.shape[1:] != self._action_spec.shape:
            raise _input_error(actions, self._action_spec.shape, self._action_key, data)
        return self.actions(actions if row_ids is None else actions[torch.from_numpy(row_ids)])

    def actions(self, actions: Tensor) -> np.ndarray:
        """Returns actions of any batch size in the form that gymnasium environments take."""
        if actions.shape[-self._action_spec.ndim or actions.ndim :] != self._action_spec.shape:
            raise SpaceError(
                f"Expected values of shape {tuple(self._action_spec.shape)} at {self._action_key!r}, got shape "
                f"{tuple(actions.shape)} for all steps and environments."
            )
        return self._action_spec.to_numpy(actions)

    def next_tensordict(self, transition: Transition) -> TensorDict:
        """Returns the "next" TensorDict of a transition, with final observations."""
        return TensorDict(self.next_entries(transition), [len(transition.ids)])

    def root_tensordict(self, transition: Transition) -> TensorDict:
        """Returns the root TensorDict of the next step."""
        return TensorDict(self.root_entries(transition), [len(transition.ids)])

    def next_entries(self, transition: Transition) -> dict[str, Any]:
        """Returns the entries of `next_tensordict`."""
        obs = self.layout.split(transition.next_obs)
        return self.step_entries(obs, transition.reward, transition.terminated, transition.truncated)

    def root_entries(self, transition: Transition) -> dict[str, Any]:
        """Returns the entries of `root_tensordict`."""
        num_rows = len(transition.ids)
        return self.obs_entries(self.layout.split(transition.obs), num_rows) | {
            name: torch.zeros(num_rows, 1, dtype=torch.bool) for name in self.flag_names
        }

    def step_entries(
        self, obs: Sequence[Any], reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> dict[str, Any]:
        """Returns the entries of the result of a step of n rows; groups are dicts.

        Args:
            obs: an array `[n, ...]` for each leaf of the observations.
            reward: `[n]` float64.
            terminated, truncated: `[n]` bool.
        """
        entries = self.obs_entries(obs, len(reward))
        entries[self._reward_key] = torch.from_numpy(reward[:, None].astype(self._reward_dtype))
        for name, flag in zip(FLAGS, (terminated | truncated, terminated, truncated), strict=True):
            if name in self.flag_names:
                entries[name] = torch.from_numpy(flag[:, None])
        return entries

    def obs_entries(self, obs: Sequence[Any], num_rows: int) -> dict[str, Any]:
        """Returns the entries of observations: an array `[n, ...]` for each leaf; groups are dicts."""
        entries: dict[str, Any] = {}
        for (path, spec, is_plain), leaf in zip(self._leaves, obs, strict=True):
            branch = entries
            for name in path[:-1]:
                branch = branch.setdefault(name, {})
            branch[path[-1]] = torch.from_numpy(leaf) if is_plain else spec.expand(num_rows, *spec.shape).encode(leaf)
        return entries


class _NestedBuilder:
    """Builds nested TensorDicts from entries by path.

    Args:
        paths: the paths of all entries.
        sizes: the batch sizes of nested TensorDicts in one row.
    """

    def __init__(self, paths: Sequence[Path], sizes: Mapping[Path, torch.Size]):
        self.paths = list(paths)
        self._sizes = sizes
        self._children: dict[Path, dict[str, Path | None]] = {(): {}}
        for path in self.paths:
            for depth in range(len(path)):
                is_last = depth == len(path) - 1
                self._children.setdefault(path[:depth], {})[path[depth]] = path if is_last else None

    def build(self, leaves: Mapping[Path, Tensor], num_rows: int, prefix: Path = ()) -> TensorDict:
        """Returns the TensorDict of the leaves under `prefix`."""
        values: dict[str, Any] = {}
        for name, path in self._children[prefix].items():
            values[name] = self.build(leaves, num_rows, (*prefix, name)) if path is None else leaves[path]
        return TensorDict(values, [num_rows, *self._sizes[prefix]])


def _nested_sizes(meta: EnvMetaData) -> dict[Path, torch.Size]:
    """Returns the batch sizes of nested TensorDicts in the specs; the longest one if specs differ."""
    sizes: dict[Path, torch.Size] = {(): meta.batch_size}

    def visit(spec: Composite, prefix: Path) -> None:
        sizes[prefix] = max(sizes.get(prefix, torch.Size()), spec.shape, key=len)
        for name, sub_spec in spec.items():
            if isinstance(sub_spec, Composite):
                visit(sub_spec, (*prefix, str(name)))

    for name in OUTPUTS:
        visit(meta.full(name), ())
    return sizes


def _nested_classes(meta: EnvMetaData) -> list[tuple[Key, Any]]:
    """Returns the keys and classes of nested entries that are no TensorDicts, the innermost first.

    Entries that also hold rewards or done flags, which are no fields of a class, are TensorDicts.
    """
    nested: list[tuple[Key, TensorSpec]] = []
    for name in OUTPUTS:
        nested += [(k, spec) for k, spec in meta.full(name).items(include_nested=True) if isinstance(spec, Composite)]
    keys = [key for key, _ in nested]
    classes = [(key, getattr(spec, "data_cls", None)) for key, spec in nested if keys.count(key) == 1]
    found = [(key, data_cls) for key, data_cls in classes if data_cls not in (None, TensorDict)]
    return sorted(found, key=lambda item: -len(key_path(item[0])))


def set_object_entries(data: TensorDict, pickled_rows: PickledRows) -> TensorDict:
    """Sets the pickled objects of all rows, which have the same keys, in `data`, and returns it."""
    for key in pickled_rows[0] or {}:
        data.set(key, torch.stack([(pickled or {})[key] for pickled in pickled_rows], 0))
    return data


def set_heterogeneous_entries(data: TensorDict, pickled_rows: PickledRows) -> LazyStackedTensorDict:
    """Returns a lazy stack of the rows of `data`, each with its pickled entries.

    >>> rows = set_heterogeneous_entries(TensorDict({}, [2]), [{"x": torch.zeros(1)}, {"x": torch.zeros(2)}])
    >>> [row["x"].shape[0] for row in rows.unbind(0)]
    [1, 2]
    """
    rows = data.unbind(0)
    for row, pickled in zip(rows, pickled_rows, strict=True):
        for key, value in (pickled or {}).items():
            row.set(key, value)
    return stack_lazily(rows)


def _same_memory_layout(spec: TensorSpec, leaf: Leaf) -> bool:
    """Returns whether an array of the engine is a value of the spec without conversion."""
    return spec.shape == leaf.shape and torch.from_numpy(np.empty(0, leaf.dtype)).dtype == spec.dtype


def _input_error(value: Tensor | None, shape: torch.Size, key: Key, data: TensorDictBase | Entries) -> SpaceError:
    """Returns the error for an input that is missing, or in which not every row has the shape `shape`."""
    if value is None:
        keys = sorted(data) if isinstance(data, dict) else sorted_keys(data)
        return SpaceError(f"Expected {key!r} among the inputs of a step, got {keys}. Add this entry.")
    return SpaceError(
        f"Expected shape {(len(value), *shape)} at {key!r} (environments first), got {tuple(value.shape)}."
    )
