"""Copies of the entries that an environment could still write into.

An environment may return its own buffers and update them in place in its next step, or return views of them. What
`EnvBase` hands out belongs to the caller, so such entries are copied. Entries to which nothing else refers are not: to
count references is cheaper than to copy large tensors. Knows TensorDicts and memory, not environments.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

_owners: Any = torch._C._storage_Use_Count  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def owned(data: TensorDictBase, given: TensorDictBase | None, arrays_are_new: bool = False) -> TensorDictBase:
    """Returns `data` with copies of the entries that something else refers to.

    Args:
        data: what a `_step` or a `_reset` returned; it is updated in place where nothing else refers to it.
        given: what that method was given: entries that it only passed on are not copied.
        arrays_are_new: tensors over the memory of arrays need no copy.
    """
    if type(data) is not TensorDict or getrefcount(data) > _FREE_DATA or data.is_locked:
        return data.clone()
    return _own_entries(data, given, arrays_are_new)


def _own_entries(data: TensorDict, given: Any, arrays_are_new: bool) -> TensorDict:
    shared: dict[str, Any] = {}
    value: Any
    for name, value in data.items():
        if not isinstance(value, Tensor):
            before = None if given is None else given.get(name, None)
            if getrefcount(value) > _FREE or not _is_owned(value, before, arrays_are_new):
                shared[name] = value
            continue
        if getrefcount(value) <= _FREE:
            try:
                memory = value.untyped_storage()
            except (RuntimeError, NotImplementedError):  # such as a tensor within torch.vmap, which has none
                shared[name] = value
                continue
            owners = _owners(memory._cdata)  # `memory`, `value` and, where that is a view, what it is a view of
            if owners > 2 and value._is_view() and getrefcount(value._base) <= _FREE_BASE:
                owners -= 1
            if owners <= 2 and (arrays_are_new or memory.resizable()):
                continue
        shared[name] = value
    for name, value in shared.items():
        if not is_non_tensor(value) and (given is None or given.get(name, None) is not value):
            data.set(name, value.clone())
    return data


def _is_owned(value: Any, given: Any, arrays_are_new: bool) -> bool:
    """Whether a nested TensorDict needs no copy, after those of entries within it."""
    if type(value) is not TensorDict or value.is_locked:
        return False
    _own_entries(value, given, arrays_are_new)
    return True


def _references(data: TensorDictBase) -> int:
    return getrefcount(data)


def _references_of_entry(data: TensorDictBase) -> int:
    [count] = [getrefcount(value) for _, value in data.items()]  # as `_own_entries` does
    return count


def _free_references() -> tuple[int, int, int]:
    """Returns how many references there are to data, an entry and the base of a view that nothing else refers to."""
    data = TensorDict({"entry": torch.zeros(1)})
    view = torch.zeros(1)[:]
    return _references(data), _references_of_entry(data), getrefcount(view._base)


_FREE_DATA, _FREE, _FREE_BASE = _free_references()
