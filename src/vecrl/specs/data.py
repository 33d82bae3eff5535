"""TensorDicts under a `Composite`: building, checking, projecting and encoding them, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from ..errors import LockedError, SpaceError
from .moves import as_size, concrete, fits

if TYPE_CHECKING:
    from .base import TensorSpec
    from .composite import Composite


def path(key: Any) -> tuple[str, ...]:
    """A key or a nested tuple of keys as a flat tuple of names."""
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple) and key:
        if all(isinstance(part, str) for part in key):  # pyright: ignore[reportUnknownVariableType]
            return key  # pyright: ignore[reportUnknownVariableType]
        return tuple(name for part in key for name in path(part))  # pyright: ignore[reportUnknownVariableType]
    raise SpaceError(f"Expected a key (a name, or a tuple of names), but {key!r} came.")


def pack(spec: Composite, values: dict[str, Any], batch: torch.Size) -> Any:
    """The values as what the Composite's `data_cls` is."""
    names: Any = spec.names
    names = [None] * (len(batch) - len(names)) + names if any(names) else None
    td = TensorDict(values, batch_size=batch, device=spec.device, names=names)
    if spec.data_cls is None or spec.data_cls is TensorDict:
        return td
    return spec.data_cls.from_tensordict(td)  # pyright: ignore[reportAttributeAccessIssue]


def build(spec: Composite, shape: Any, value_of: Callable[[TensorSpec], Any]) -> Any:
    """What `value_of` makes of every entry, of which a batch of `shape` stands in front."""
    batch = torch.Size([*as_size(() if shape is None else shape), *concrete(spec.shape)])
    values = {name: value_of(entry) for name, entry in spec._entries().items() if entry is not None}
    return pack(spec, values, batch)


def batch_before(spec: Composite, val: Any) -> torch.Size:
    """The dimensions of `val` in front of the Composite's own."""
    batch = val.batch_size
    if not fits(batch, spec.shape):
        raise SpaceError(f"Expected a batch shape that ends with {tuple(spec.shape)}, but {tuple(batch)} came.")
    return batch[: len(batch) - spec.ndim]


def has(val: Any, name: str) -> bool:
    """Whether a mapping or TensorDict has an entry."""
    return name in val.keys()  # noqa: SIM118


def fetch(val: Any, name: str) -> Any:
    """The entry of a mapping or TensorDict; of a lazy stack of unequal tensors, as a nested tensor."""
    if not is_tensor_collection(val):
        return val[name]
    try:
        return val.get(name)
    except RuntimeError:
        return val.get(name, as_nested_tensor=True)


def mismatch(spec: Composite, val: Any) -> str | None:
    """Why `val` is not in the spec, with the path of the entry; None if it is."""
    if not isinstance(val, Mapping) and not is_tensor_collection(val):
        return f"expected a TensorDict, but {type(val).__name__} came"
    for name, entry in spec._entries().items():
        if entry is None:
            continue
        if not has(val, name):
            return f"{name!r} is missing among {sorted(map(str, val.keys()))}"  # pyright: ignore[reportUnknownArgumentType]
        fault = entry.mismatch(fetch(val, name))
        if fault is not None:
            return f"at {name!r}: {fault}"
    return None


def project(spec: Composite, val: Any) -> Any:
    """Projects the entries of `val` in place and returns it; of a mapping, a TensorDict is made."""
    if not is_tensor_collection(val):
        val = TensorDict(dict(val), batch_size=concrete(spec.shape))
    for name, entry in spec._entries().items():
        if entry is None:
            continue
        if not has(val, name):
            raise SpaceError(f"Expected {name!r} to project, but there are only {list(val.keys())}.")
        found = fetch(val, name)
        put(val, name, found, entry.project(found))
    return val


def put(val: Any, name: str, found: Any, projected: Any) -> None:
    """Puts `projected` in the place of the entry `found`; into its memory where the TensorDict `val` is locked."""
    if projected is found:
        return
    if not val.is_locked:
        val.set(name, projected)
    elif isinstance(found, Tensor) and (found.shape, found.dtype) == (projected.shape, projected.dtype):
        val.set_(name, projected)
    else:
        raise LockedError(
            f"Expected {name!r} of the locked TensorDict to be a tensor of the spec's dtype, got {found!r:.80}. Unlock "
            "the TensorDict before."
        )


def encode(spec: Composite, val: Any, ignore_device: bool) -> Any:
    """The entries of `val` encoded."""
    if is_tensor_collection(val):
        val = {name: fetch(val, name) for name in val.keys()}  # noqa: SIM118
    if not isinstance(val, Mapping):
        raise SpaceError(f"Expected a mapping with keys of {list(spec.keys())}, but {val!r:.80} came.")
    values: dict[str, Any] = {}
    for name, item in val.items():  # pyright: ignore[reportUnknownVariableType]
        if name not in spec._entries():
            raise KeyError(f"{name!r} came, but the spec has only {list(spec.keys())}.")
        entry = spec._entries()[name]  # pyright: ignore[reportUnknownArgumentType]
        try:
            values[name] = item if entry is None else entry.encode(item, ignore_device=ignore_device)
        except SpaceError as error:
            raise type(error)(f"At {name!r}: {error}") from error
    return pack(spec, values, concrete(spec.shape))


def to_numpy(spec: Composite, val: Any, safe: bool | None) -> dict[str, Any]:
    """The entries that are in `val` as NumPy."""
    entries = {name: entry for name, entry in spec._entries().items() if entry is not None and has(val, name)}
    return {name: entry.to_numpy(fetch(val, name), safe) for name, entry in entries.items()}


def type_check(spec: Composite, value: Any, key: Any) -> None:
    """Raise unless the dtypes fit."""
    if isinstance(value, Tensor):
        spec.get(key).type_check(value, key)
        return
    names = None if key is None else {path(k)[0] for k in (key if isinstance(key, list) else [key])}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for name, entry in spec._entries().items():
        if entry is not None and has(value, name) and (names is None or name in names):
            found = fetch(value, name)
            entry.type_check(found, name) if isinstance(found, Tensor) else entry.type_check(found)


def enumerate_all(spec: Composite, use_mask: bool) -> Any:
    """Every combination of the entries' values, the last entry running fastest."""
    columns = {name: e.enumerate(use_mask) for name, e in spec._entries().items() if e is not None}
    counts = [column.shape[0] for column in columns.values()]
    values: dict[str, Any] = {}
    for place, (name, column) in enumerate(columns.items()):
        inner, outer = math.prod(counts[place + 1 :]), math.prod(counts[:place])
        order = torch.arange(counts[place]).repeat_interleave(inner).repeat(outer)
        values[name] = column[order.to(column.device)] if isinstance(column, Tensor) else column[order]
    return pack(spec, values, torch.Size([math.prod(counts), *concrete(spec.shape)]))
