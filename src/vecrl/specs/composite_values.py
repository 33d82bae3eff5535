"""Reads and writes entries of the values of a `Composite`: TensorDicts and mappings. This module knows no specs."""

from __future__ import annotations

from typing import Any, TypeGuard

from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from ..errors import LockedError


def is_tensordict(val: object) -> TypeGuard[TensorDictBase]:
    """Whether a value is a TensorDict or an instance of another class of tensordict."""
    return is_tensor_collection(val)


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


def put(val: TensorDictBase, name: str, entry_value: object, projected: Any) -> None:
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
