"""Between TensorDicts of a whole batch and what the engine's pool takes and gives.

`PathCodec` is for environments that are stepped as such: every entry has a path, and comes as it is. `BareCodec` is for
gymnasium environments that are stepped without their specs, which are applied here, to all rows at once. Both know
transitions and TensorDicts, not pools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from ...engine.layout import Layout, Leaf
from ...engine.transitions import Transition
from ...errors import SpaceError
from ...specs import Composite, TensorSpec
from ..owner import FLAGS, OUTPUTS, Key
from .graphs import Graphs
from .metadata import EnvMetaData
from .playing import Play
from .wiring import NEXT, PARCEL, STEP, Path, inputs_of, key_of, only_objects, paths_of

Rows = np.ndarray | None
"""Which rows are meant, `[m]`; None for all."""


class PathCodec:
    """See the module.

    Args:
        metas: of all n environments.
        outputs, inputs: spaces by path, see `wiring`.
        reward_keys: what a root has not.
        graphs: where tensors with a graph pass, which the pool cannot hand on; None where values alone do.

    Attributes:
        lazy: whether rows differ, so that they are stacked lazily.
    """

    def __init__(
        self,
        metas: Sequence[EnvMetaData],
        outputs: spaces.Space[Any],
        inputs: spaces.Space[Any],
        reward_keys: Sequence[Key],
        graphs: Graphs | None = None,
    ):
        self._graphs = graphs
        self._inputs = [(path, key_of(path)) for path in paths_of(inputs) if path]
        boxes: Any = inputs
        self._shapes = {path: torch.Size(boxes[path].shape) for path, _ in self._inputs}
        self._odd_inputs = PARCEL in paths_of(inputs)
        odd = PARCEL in paths_of(outputs)
        self.lazy = odd and not only_objects(metas)
        self._unpack: Any = None if not odd else with_parcels if self.lazy else with_objects
        self._by_row = [[key_of(path) for path in inputs_of(meta)] for meta in metas]
        paths = [path for path in paths_of(outputs) if path]
        self._rewards = rewards = set(reward_keys)
        sizes = _nested_sizes(metas[0])
        self._following = _Tree(paths, sizes)
        self._root = _Tree([path for path in paths if key_of(path) not in rewards], sizes)

    def inputs(self, data: TensorDictBase, rows: Rows = None, mask: Tensor | None = None) -> dict[Path, Any]:
        """Actions and states, as the pool takes them.

        Args:
            data: of all rows.
            rows: whose are wanted.
            mask: who is to step, in environments that are batches themselves.
        """
        tree: dict[Path, Any] = {}
        graphs: dict[Path, Tensor] = {}
        for path, key in self._inputs:
            value = data.get(key, None) if path != STEP else _whole(data) if mask is None else mask
            if value is None and path[:1] == NEXT:  # no policy wrote it, so it stays what it is
                key = key_of(path[1:])
                value = data.get(key, None)
            tensor = _fitting(value, self._shapes[path], key, data)
            if tensor.requires_grad:
                graphs[path] = tensor
            array = tensor.detach().cpu().numpy()
            tree[path] = array if rows is None else array[rows]
        if self._graphs is not None:
            self._graphs.take(graphs, data)
        if self._odd_inputs:
            parts = data.unbind(0)
            which = range(len(parts)) if rows is None else rows.tolist()
            tree[PARCEL] = [self._parcel(parts[i], i) for i in which]
        return tree

    def _parcel(self, data: TensorDictBase, row: int) -> dict[Key, Any]:
        there = {key for _, key in self._inputs}
        keys = [key for key in self._by_row[row] if key not in there]
        data = data if self._graphs is not None else data.detach()
        return {key: value.to("cpu") for key in keys if (value := data.get(key, None)) is not None}

    def following(self, transition: Transition) -> TensorDictBase:
        """What followed, final observations included."""
        data = self._packed(transition.next_obs, self._following, transition.ids, transition.ended.tolist())
        for row in transition.failed:
            self._given_up(data[row], bool(transition.truncated[row]))
        return data

    def _given_up(self, row: TensorDictBase, ends: bool) -> None:
        """Write into the row of an environment that failed what the engine says of it: no reward, and its end."""
        entries: Any = row.items(include_nested=True, leaves_only=True)
        for key, value in entries:
            name = key if isinstance(key, str) else key[-1]
            if name in FLAGS:
                value.fill_(ends and name != "terminated")
            elif key in self._rewards:
                value.zero_()

    def root(self, transition: Transition) -> TensorDictBase:
        """What to act on next."""
        return self._packed(transition.obs, self._root, transition.ids)

    def _packed(
        self, values: Mapping[Path, Any], tree: _Tree, ids: np.ndarray, final: Sequence[int] = ()
    ) -> TensorDictBase:
        leaves = {path: torch.from_numpy(values[path]) for path in tree.paths}
        if self._graphs is not None:
            self._graphs.restore(leaves, ids, final)
        data = tree.build(leaves, len(ids))
        return self._unpack(data, values[PARCEL]) if self._unpack else data


class BareCodec:
    """See the module.

    Args:
        meta: of one environment, like all others.
        keys: where the leaves of observations lie.
        outputs: the observation space of the gymnasium environments.

    Attributes:
        layout: of their observations.
    """

    lazy = False

    def __init__(self, meta: EnvMetaData, keys: Sequence[Key], outputs: spaces.Space[Any]):
        self.layout = Layout(outputs)
        observation = meta.full("observation")
        specs: list[TensorSpec] = [observation[key].to("cpu") for key in keys]
        self._leaves = [
            (key[0] if len(key) == 1 else key, spec, _lies_alike(spec, leaf))
            for key, spec, leaf in zip(keys, specs, self.layout.leaves, strict=True)
        ]
        [self._action_key] = meta.full("action").keys(True, True)
        [self._reward_key] = meta.full("reward").keys(True, True)
        self._action_spec: TensorSpec = meta.full("action")[self._action_key]
        self._reward_dtype: Any = meta.full("reward")[self._reward_key].dtype
        self._flags = [name for name in FLAGS if name in meta.full("done")]

    def inputs(self, data: TensorDictBase, rows: Rows = None, mask: Tensor | None = None) -> np.ndarray:
        """Actions as gymnasium's environments take them."""
        actions = _fitting(data.get(self._action_key, None), self._action_spec.shape, self._action_key, data)
        return self.actions(actions if rows is None else actions[torch.from_numpy(rows)])

    def actions(self, actions: Tensor) -> np.ndarray:
        """Actions of any batch as gymnasium's environments take them."""
        if actions.shape[-self._action_spec.ndim or actions.ndim :] != self._action_spec.shape:
            raise SpaceError(
                f"Expected values of shape {tuple(self._action_spec.shape)} at {self._action_key!r}, but those of all "
                f"steps and environments have {tuple(actions.shape)}."
            )
        return self._action_spec.to_numpy(actions)

    def played(self, play: Play, actions: Tensor) -> TensorDict:
        """A whole rollout, `[n, T]`, with time in front in memory; `actions` are `[T, n, ...]`."""
        steps, n = play.reward.shape
        ends = play.terminated | play.truncated, play.terminated, play.truncated
        flags = [torch.from_numpy(flag[..., None]) for flag in ends]
        reward = torch.from_numpy(play.reward[..., None]).to(self._reward_dtype)
        following = self._filled(play.next_obs, flags, [steps, n], {self._reward_key: reward})
        nothing = [torch.zeros(steps, n, 1, dtype=torch.bool) for _ in FLAGS]
        root = self._filled(play.obs, nothing, [steps, n], {self._action_key: actions[:steps]})
        turned: Any = root.set("next", following).apply(lambda leaf: leaf.transpose(0, 1), batch_size=[n, steps])
        turned.names = [None, "time"]
        return turned

    def following(self, transition: Transition) -> TensorDict:
        """What followed, final observations included."""
        t = transition
        flags = [torch.from_numpy(flag[:, None]) for flag in (t.terminated | t.truncated, t.terminated, t.truncated)]
        reward = torch.from_numpy(t.reward[:, None]).to(self._reward_dtype)
        return self._packed(t.next_obs, flags, len(t.ids), {self._reward_key: reward})

    def root(self, transition: Transition) -> TensorDict:
        """What to act on next."""
        rows = len(transition.ids)
        flags = [torch.zeros(rows, 1, dtype=torch.bool) for _ in FLAGS]
        return self._packed(transition.obs, flags, rows, {})

    def _packed(self, obs: Any, flags: Sequence[Tensor], rows: int, values: dict[Any, Any]) -> TensorDict:
        return self._filled(self.layout.split(obs), flags, [rows], values)

    def _filled(
        self, obs: Sequence[Any], flags: Sequence[Tensor], size: list[int], values: dict[Any, Any]
    ) -> TensorDict:
        """All in one go: to put entries into a TensorDict one by one takes longer than to make it."""
        nested: list[tuple[Key, Tensor]] = []
        for (key, spec, plain), leaf in zip(self._leaves, obs, strict=True):
            value = torch.from_numpy(leaf) if plain else spec.expand(*size, *spec.shape).encode(leaf)
            if isinstance(key, str):
                values[key] = value
            else:
                nested.append((key, value))
        values |= {name: flag for name, flag in zip(FLAGS, flags, strict=True) if name in self._flags}
        data = TensorDict(values, size)
        for key, value in nested:
            data.set(key, value)
        return data


class _Tree:
    """Entries by path as nested TensorDicts.

    Args:
        paths: of all entries.
        sizes: batch sizes of the nested ones, those of one row.
    """

    def __init__(self, paths: Sequence[Path], sizes: Mapping[Path, torch.Size]):
        self.paths = list(paths)
        self._sizes = sizes
        self._below: dict[Path, dict[str, Path | None]] = {(): {}}
        for path in self.paths:
            for depth in range(len(path)):
                last = depth == len(path) - 1
                self._below.setdefault(path[:depth], {})[path[depth]] = path if last else None

    def build(self, leaves: Mapping[Path, Tensor], rows: int, place: Path = ()) -> TensorDict:
        """The TensorDict of the leaves below `place`."""
        values: dict[str, Any] = {
            name: self.build(leaves, rows, (*place, name)) if path is None else leaves[path]
            for name, path in self._below[place].items()
        }
        return TensorDict(values, [rows, *self._sizes[place]])


def _nested_sizes(meta: EnvMetaData) -> dict[Path, torch.Size]:
    """The batch sizes of nested TensorDicts, as the specs have them; the longest where these differ."""
    sizes: dict[Path, torch.Size] = {(): meta.batch_size}

    def look(spec: Composite, place: Path) -> None:
        sizes[place] = max(sizes.get(place, torch.Size()), spec.shape, key=len)
        for name, below in spec.items():
            if isinstance(below, Composite):
                look(below, (*place, str(name)))

    for name in OUTPUTS:
        look(meta.full(name), ())
    return sizes


def with_objects(data: TensorDict, parcels: Sequence[Mapping[Key, Any] | None]) -> TensorDict:
    """`data` with the objects that rows brought beside it, which are the same ones in each."""
    for key in parcels[0] or {}:
        data.set(key, torch.stack([(parcel or {})[key] for parcel in parcels], 0))
    return data


def with_parcels(data: TensorDict, parcels: Sequence[Mapping[Key, Any] | None]) -> LazyStackedTensorDict:
    """A lazy stack of the rows of `data`, each with what it brought beside.

    >>> rows = with_parcels(TensorDict({}, [2]), [{"x": torch.zeros(1)}, {"x": torch.zeros(2)}])
    >>> [row["x"].shape[0] for row in rows.unbind(0)]
    [1, 2]
    """
    rows: list[Any] = []
    for row, parcel in zip(data.unbind(0), parcels, strict=True):
        for key, value in (parcel or {}).items():
            row.set(key, value)
        rows.append(row)
    return LazyStackedTensorDict.lazy_stack(rows, 0)


def _lies_alike(spec: TensorSpec, leaf: Leaf) -> bool:
    """Whether an array of the engine is a value of the spec as it is."""
    return spec.shape == leaf.shape and torch.from_numpy(np.empty(0, leaf.dtype)).dtype == spec.dtype


def _fitting(value: Any, shape: torch.Size, key: Key, data: TensorDictBase) -> Tensor:
    """The tensor at `key`, of which every row is to have the shape `shape`."""
    if value is None:
        raise SpaceError(f"Expected {key!r} among what is to be stepped, but there are {_keys(data)}.")
    if value.shape[1:] != shape:
        raise SpaceError(
            f"Expected shape {(len(value), *shape)} at {key!r} (environments first), but {tuple(value.shape)} came."
        )
    return value


def _whole(data: TensorDictBase) -> Tensor:
    return torch.ones(data.batch_size, dtype=torch.bool)


def _keys(data: TensorDictBase) -> list[str]:
    return sorted(map(str, data.keys(include_nested=True, leaves_only=True)))
