"""Stores the info dicts of environments at low cost.

If the infos of all rows have the same keys, with numbers of the same types (as in most simulators), they are sent as
one structured array. All other infos are sent as dicts. In both cases they are merged into gymnasium's form (arrays
with masks) only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

Info = Mapping[str, Any]
InfoDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InfoBatch:
    """The infos of all rows of one worker, from environment `start` on, as one structured array."""

    start: int
    data: np.ndarray


class InfoPacker:
    """Converts lists of infos with equal keys and types to structured arrays. Keeps the dtype for the next call."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._types: tuple[type, ...] = ()
        self._dtype: np.dtype[np.void] | None = None

    def pack(self, infos: Sequence[tuple[int, Info]]) -> np.ndarray | None:
        """Returns an array with one structured row per info; None if their keys or types differ, or if a value is not a
        number that a NumPy dtype can hold."""
        rows: list[tuple[float, ...]] = []
        for _, info in infos:
            if not isinstance(info, dict):
                return None
            values = (*info.values(),)
            unchanged = (*map(type, values),) == self._types and (*info,) == self._keys
            if not unchanged and (rows or not self._set_layout(tuple(info), values)):
                return None
            rows.append(values)
        try:
            return np.array(rows, self._dtype)
        except OverflowError:
            return None

    def _set_layout(self, keys: tuple[str, ...], values: tuple[float, ...]) -> bool:
        if not keys or not all(_is_number(v) for v in values) or not all(type(k) is str for k in keys):
            return False
        self._keys, self._types = keys, tuple(map(type, values))
        try:
            self._dtype = np.dtype([(key, np.dtype(kind)) for key, kind in zip(keys, self._types, strict=True)])
        except (TypeError, ValueError):  # a name that NumPy does not accept
            self._keys, self._types = (), ()
            return False
        return True


def _is_number(value: object) -> TypeGuard[int | float | bool]:
    return isinstance(value, int | float | bool | np.number | np.bool_) and type(value).__module__ in {
        "builtins",
        "numpy",
    }


class Infos:
    """The infos of one transition.

    Attributes:
        batches: the infos that are structured arrays.
        dicts: `(env_id, info)` of the other environments with a non-empty info.
    """

    __slots__ = ("batches", "dicts")

    def __init__(self, batches: list[InfoBatch] | None = None, dicts: list[tuple[int, Info]] | None = None):
        self.batches = batches or []
        self.dicts = dicts or []

    def __bool__(self) -> bool:
        return bool(self.batches or self.dicts)

    def extend(self, other: Infos) -> None:
        """Appends the infos of `other`."""
        self.batches += other.batches
        self.dicts += other.dicts

    def items(self) -> Iterator[tuple[int, Info]]:
        """Yields `(env_id, info)` of every environment with a non-empty info. Numbers of batches are NumPy scalars."""
        yield from self._unpacked()
        yield from self.dicts

    def _unpacked(self) -> Iterator[tuple[int, InfoDict]]:
        """Yields `(env_id, info)` of the batches, as new dicts."""
        for batch in self.batches:
            names = batch.data.dtype.names or ()
            for offset, row in enumerate(batch.data):
                yield batch.start + offset, dict(zip(names, row, strict=True))

    def dicts_of(self, ids: Sequence[int], shared: bool) -> list[InfoDict]:
        """Returns a new dict for each of `ids`; an empty one where there is no info.

        Args:
            ids: the environments.
            shared: whether environments may change their dicts later, as those of this process do.
        """
        dicts = dict(self._unpacked())
        copy: Callable[[Info], Any] = copy_nested if shared else dict
        dicts.update((env_id, copy(info)) for env_id, info in self.dicts)
        return [dicts.get(i, {}) for i in ids]

    def merge(self, num_envs: int) -> InfoDict:
        """Returns gymnasium's form: an array of n values per key, and under `_key` the mask of environments with it."""
        if not self:
            return {}
        columns = self.columns(num_envs)
        if columns is None:
            return merge(self.items(), num_envs)
        all_rows = ~np.zeros(num_envs, bool)  # faster than `ones`
        return columns | {"_" + key: all_rows.copy() for key in columns}

    def columns(self, num_envs: int) -> dict[str, np.ndarray] | None:
        """Returns an array of n values per key if all n infos have the same keys and numeric types, otherwise None."""
        if not self.batches or self.dicts or not self._covers(num_envs):
            return None
        data = self.batches[0].data
        if len(self.batches) > 1:
            data = np.frombuffer(b"".join([batch.data.tobytes() for batch in self.batches]), data.dtype)
        return {key: data[key].copy() for key in data.dtype.names or ()}

    def _covers(self, num_envs: int) -> bool:
        if len(self.batches) == 1:
            return len(self.batches[0].data) == num_envs
        dtype = self.batches[0].data.dtype
        self.batches.sort(key=lambda batch: batch.start)
        return (
            all(batch.data.dtype == dtype for batch in self.batches)
            and sum(len(b.data) for b in self.batches) == num_envs
        )


NO_INFOS = Infos()
"""The infos of a transition without any. It is shared, so nothing can be added to it."""
NO_INFOS.batches = NO_INFOS.dicts = ()  # pyright: ignore[reportAttributeAccessIssue]


def merge(infos: Iterator[tuple[int, Info]], num_envs: int) -> InfoDict:
    """Merges dicts key by key: numbers and arrays into arrays, dicts into dicts, anything else into object arrays.

    >>> merge(iter([(1, {"x": 2.0})]), 2)
    {'x': array([0., 2.]), '_x': array([False,  True])}
    """
    merged: InfoDict = {}
    for env_id, info in infos:
        _add(merged, env_id, info, num_envs)
    return merged


def _add(merged: InfoDict, env_id: int, info: Info, num_envs: int) -> None:
    for key, value in info.items():
        mask = merged.get(f"_{key}")
        if mask is None:
            mask = np.zeros(num_envs, bool)
        if isinstance(value, Mapping) and isinstance(merged.get(key, {}), dict):
            _add(merged.setdefault(key, {}), env_id, value, num_envs)  # pyright: ignore[reportUnknownArgumentType]
        else:
            _store(merged, key, env_id, value, mask)
        mask[env_id] = True
        merged[f"_{key}"] = mask


def _store(merged: InfoDict, key: str, env_id: int, value: Any, mask: np.ndarray) -> None:
    column: Any = merged.get(key)
    if column is None:
        column = merged[key] = _column(value, len(mask))
    if isinstance(column, np.ndarray) and column.dtype != object:
        kind = np.asarray(value).dtype
        if kind == column.dtype or np.can_cast(kind, column.dtype, "safe"):
            pass
        elif kind.kind in "biuf" and column.dtype.kind in "biuf":  # a dtype that holds both without rounding
            column = merged[key] = column.astype(np.result_type(kind, column.dtype))
        else:
            column = merged[key] = _objects(column, mask)
        if np.shape(value) != column.shape[1:]:
            column = merged[key] = _objects(column, mask)
    elif isinstance(column, dict):
        column = merged[key] = _objects(column, mask)  # pyright: ignore[reportUnknownArgumentType]
    column[env_id] = copy_nested(value) if column.dtype == object else value


_ATOMS = frozenset({int, float, bool, str, type(None), np.float64, np.float32, np.int64, np.int32, np.bool_})


def copy_nested(value: Any) -> Any:
    """Copies nested dicts, lists and arrays, which environments may change later; other values are not copied."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: item if type(item) in _ATOMS else copy_nested(item) for key, item in value.items()}
    return [copy_nested(item) for item in value] if type(value) is list else value


def _column(value: object, num_envs: int) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), value.dtype)
    if type(value) in (int, float, bool) or isinstance(value, np.number | np.bool_):
        return np.zeros(num_envs, type(value))
    return np.full(num_envs, None, object)


def _objects(column: Any, mask: np.ndarray) -> np.ndarray:
    """Converts a column that cannot hold the next value to an array of objects."""
    objects = np.full(len(mask), None, object)
    for row in np.flatnonzero(mask):
        if isinstance(column, dict):
            names: list[str] = [k for k in column if f"_{k}" in column and column[f"_{k}"][row]]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            objects[row] = {name: column[name][row] for name in names}
        else:
            objects[row] = column[row]
    return objects
