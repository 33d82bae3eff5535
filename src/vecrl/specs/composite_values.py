"""Builds, checks, projects and encodes the TensorDicts of a `Composite`, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from ..errors import LockedError, SpaceError
from .shape_ops import as_size, concrete, shape_matches

if TYPE_CHECKING:
    from .base import TensorSpec
    from .composite import Composite


def key_path(key: Any) -> tuple[str, ...]:
    """Converts a key or a nested tuple of keys to a flat tuple of names."""
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple) and key:
        if all(isinstance(part, str) for part in key):  # pyright: ignore[reportUnknownVariableType]
            return key  # pyright: ignore[reportUnknownVariableType]
        return tuple(name for part in key for name in key_path(part))  # pyright: ignore[reportUnknownVariableType]
    raise SpaceError(f"Expected a key (a name, or a tuple of names), got {key!r}.")


def pack(spec: Composite, values: dict[str, Any], batch: torch.Size) -> Any:
    """Builds a TensorDict, or an instance of the Composite's `data_cls`, from values under keys."""
    names: Any = spec.names
    names = [None] * (len(batch) - len(names)) + names if any(names) else None
    td = TensorDict(values, batch_size=batch, device=spec.device, names=names)
    if spec.data_cls is None or spec.data_cls is TensorDict:
        return td
    return spec.data_cls.from_tensordict(td)  # pyright: ignore[reportAttributeAccessIssue]


def build(spec: Composite, shape: Any, value_of: Callable[[TensorSpec], Any]) -> Any:
    """Builds a value of the Composite from `value_of` of each entry, with the batch dimensions `shape` in front."""
    batch = torch.Size([*as_size(() if shape is None else shape), *concrete(spec.shape)])
    values = {name: value_of(entry) for name, entry in spec._entries().items() if entry is not None}
    return pack(spec, values, batch)


def extra_batch_shape(spec: Composite, val: Any) -> torch.Size:
    """Returns the batch dimensions of `val` in front of the Composite's own."""
    batch = val.batch_size
    if not shape_matches(batch, spec.shape):
        raise SpaceError(f"Expected a batch shape that ends with {tuple(spec.shape)}, got {tuple(batch)}.")
    return batch[: len(batch) - spec.ndim]


def has_entry(val: Any, name: str) -> bool:
    """Whether a mapping or TensorDict has an entry."""
    return name in val.keys()  # noqa: SIM118


def get_entry(val: Any, name: str) -> Any:
    """Returns an entry of a mapping or TensorDict; from a lazy stack of unequal tensors, a nested tensor."""
    if not is_tensor_collection(val):
        return val[name]
    try:
        return val.get(name)
    except RuntimeError:
        return val.get(name, as_nested_tensor=True)


def mismatch(spec: Composite, val: Any) -> str | None:
    """Returns why `val` is not in the spec, with the path of the entry; None if it is."""
    if not isinstance(val, Mapping) and not is_tensor_collection(val):
        return f"expected a TensorDict, got {type(val).__name__}"
    for name, entry in spec._entries().items():
        if entry is None:
            continue
        if not has_entry(val, name):
            return f"{name!r} is missing among {sorted(map(str, val.keys()))}"  # pyright: ignore[reportUnknownArgumentType]
        problem = entry.mismatch(get_entry(val, name))
        if problem is not None:
            return f"at {name!r}: {problem}"
    return None


def project(spec: Composite, val: Any) -> Any:
    """Projects the entries of `val` in place and returns it; a mapping is first copied to a TensorDict."""
    if not is_tensor_collection(val):
        val = TensorDict(dict(val), batch_size=concrete(spec.shape))
    for name, entry in spec._entries().items():
        if entry is None:
            continue
        if not has_entry(val, name):
            raise SpaceError(f"Expected {name!r} to project, got only {list(val.keys())}.")
        entry_value = get_entry(val, name)
        put(val, name, entry_value, entry.project(entry_value))
    return val


def put(val: Any, name: str, entry_value: Any, projected: Any) -> None:
    """Replaces the entry `entry_value` of `val` by `projected`; writes into its memory if `val` is locked."""
    if projected is entry_value:
        return
    if not val.is_locked:
        val.set(name, projected)
    elif isinstance(entry_value, Tensor) and (entry_value.shape, entry_value.dtype) == (
        projected.shape,
        projected.dtype,
    ):
        val.set_(name, projected)
    else:
        raise LockedError(
            f"Expected {name!r} of the locked TensorDict to be a tensor of the spec's dtype, got {entry_value!r:.80}. "
            "Unlock the TensorDict first."
        )


def encode(spec: Composite, val: Any, ignore_device: bool) -> Any:
    """Encodes the entries of `val`."""
    if is_tensor_collection(val):
        val = {name: get_entry(val, name) for name in val.keys()}  # noqa: SIM118
    if not isinstance(val, Mapping):
        raise SpaceError(f"Expected a mapping with keys of {list(spec.keys())}, got {val!r:.80}.")
    values: dict[str, Any] = {}
    for name, item in val.items():  # pyright: ignore[reportUnknownVariableType]
        if name not in spec._entries():
            raise KeyError(f"Expected keys of the spec, {list(spec.keys())}, got {name!r}.")
        entry = spec._entries()[name]  # pyright: ignore[reportUnknownArgumentType]
        try:
            values[name] = item if entry is None else entry.encode(item, ignore_device=ignore_device)
        except SpaceError as error:
            raise type(error)(f"At {name!r}: {error}") from error
    return pack(spec, values, concrete(spec.shape))


def to_numpy(spec: Composite, val: Any, safe: bool | None) -> dict[str, Any]:
    """Converts those entries of the spec that are in `val` to NumPy."""
    entries = {name: entry for name, entry in spec._entries().items() if entry is not None and has_entry(val, name)}
    return {name: entry.to_numpy(get_entry(val, name), safe) for name, entry in entries.items()}


def type_check(spec: Composite, value: Any, key: Any) -> None:
    """Raises a `SpaceError` unless the dtypes of the entries fit."""
    if isinstance(value, Tensor):
        spec.get(key).type_check(value, key)
        return
    names = None if key is None else {key_path(k)[0] for k in (key if isinstance(key, list) else [key])}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for name, entry in spec._entries().items():
        if entry is not None and has_entry(value, name) and (names is None or name in names):
            entry_value = get_entry(value, name)
            entry.type_check(entry_value, name) if isinstance(entry_value, Tensor) else entry.type_check(entry_value)


def enumerate_all(spec: Composite, use_mask: bool) -> Any:
    """Returns every combination of the entries' values; the last entry varies fastest."""
    columns = {name: entry.enumerate(use_mask) for name, entry in spec._entries().items() if entry is not None}
    counts = [column.shape[0] for column in columns.values()]
    values: dict[str, Any] = {}
    for position, (name, column) in enumerate(columns.items()):
        repeats_inner, repeats_outer = math.prod(counts[position + 1 :]), math.prod(counts[:position])
        row_order = torch.arange(counts[position]).repeat_interleave(repeats_inner).repeat(repeats_outer)
        values[name] = column[row_order.to(column.device)] if isinstance(column, Tensor) else column[row_order]
    return pack(spec, values, torch.Size([math.prod(counts), *concrete(spec.shape)]))
