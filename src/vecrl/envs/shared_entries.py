"""Copies the entries that an environment could still write into.

An environment may return its own buffers, or views of them, and update them in place in its next step. Results of
`EnvBase` must not change afterwards, so these entries are copied. Entries without other references are not copied,
since counting references is cheaper than copying large tensors. This module must not know environments.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

_owners: Any = torch._C._storage_Use_Count  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def copy_shared_entries(
    data: TensorDictBase, inputs: TensorDictBase | None, arrays_are_new: bool = False
) -> TensorDictBase:
    """Returns `data` with copies of the entries that something else refers to.

    Args:
        data: the result of `_step` or `_reset`; it is updated in place if nothing else refers to it.
        inputs: the input of that method: entries that it returned unchanged are not copied.
        arrays_are_new: whether tensors over the memory of arrays need no copy.
    """
    if type(data) is not TensorDict or getrefcount(data) > _FREE_DATA or data.is_locked:
        return data.clone()
    return _copy_entries(data, inputs, arrays_are_new)


def _copy_entries(data: TensorDict, inputs: TensorDictBase | None, arrays_are_new: bool) -> TensorDict:
    shared: dict[str, Any] = {}
    value: Any
    for name, value in data.items():
        if not isinstance(value, Tensor):
            before = None if inputs is None else inputs.get(name, None)
            if getrefcount(value) > _FREE or not _copy_nested(value, before, arrays_are_new):
                shared[name] = value
            continue
        if getrefcount(value) <= _FREE:
            try:
                memory = value.untyped_storage()
            except (RuntimeError, NotImplementedError):  # such as a tensor within torch.vmap, which has none
                shared[name] = value
                continue
            owners = _owners(memory._cdata)  # `memory`, `value` and, if `value` is a view, its base
            if owners > 2 and value._is_view() and getrefcount(value._base) <= _FREE_BASE:
                owners -= 1
            if owners <= 2 and (arrays_are_new or memory.resizable()):
                continue
        shared[name] = value
    for name, value in shared.items():
        if not is_non_tensor(value) and (inputs is None or inputs.get(name, None) is not value):
            data.set(name, value.clone())
    return data


def _copy_nested(value: object, inputs: Any, arrays_are_new: bool) -> bool:
    """Copies the shared entries of a nested TensorDict; returns whether it needs no copy itself."""
    if type(value) is not TensorDict or value.is_locked:
        return False
    _copy_entries(value, inputs, arrays_are_new)
    return True


def _references(data: TensorDictBase) -> int:
    return getrefcount(data)


def _references_of_entry(data: TensorDictBase) -> int:
    [count] = [getrefcount(value) for _, value in data.items()]  # as `_copy_entries` does
    return count


def _free_references() -> tuple[int, int, int]:
    """Returns the reference counts of a TensorDict, an entry and the base of a view without other references."""
    data = TensorDict({"entry": torch.zeros(1)})
    view = torch.zeros(1)[:]
    return _references(data), _references_of_entry(data), getrefcount(view._base)


_FREE_DATA, _FREE, _FREE_BASE = _free_references()
