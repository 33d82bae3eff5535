"""Derives missing done flags: "done" is the union of the others, "terminated" equals a lone "done".

This module knows TensorDicts and shapes; it must not know environments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..errors import SpaceError
from .spec_container import FLAGS, Key, join_key


def fill_flags(
    tensordict: TensorDictBase, prefix: tuple[str, ...], with_truncated: bool, shape: Sequence[int]
) -> TensorDictBase:
    """Adds the missing done flags at `prefix`, reshapes the others to the same shape, and returns the TensorDict.

    Args:
        tensordict: the TensorDict to update in place.
        prefix: the prefix of the flags.
        with_truncated: whether to add "truncated".
        shape: the shape of a flag after the batch dimensions.

    Raises:
        SpaceError: if a flag has another number of elements.
    """
    size = (*tensordict.batch_size, *shape)
    if not any(name in tensordict.keys() for name in FLAGS) and not prefix:  # noqa: SIM118 - fast path, as most resets return no flags
        for name in FLAGS if with_truncated else FLAGS[:2]:
            tensordict.set(name, torch.zeros(size, dtype=torch.bool, device=tensordict.device))
        return tensordict
    zero = torch.zeros(size, dtype=torch.bool, device=tensordict.device)
    present = {name: tensordict.get(join_key(prefix, name), None) for name in FLAGS}
    flags = {
        name: _reshape_flag(value, zero.shape, join_key(prefix, name))
        for name, value in present.items()
        if value is not None
    }
    end_flags = [flags[name] for name in FLAGS[1:] if name in flags]
    if "done" not in flags:
        flags["done"] = torch.stack(end_flags).any(0) if end_flags else zero
    if "terminated" not in flags:
        truncated = flags.get("truncated")
        flags["terminated"] = flags["done"].clone() if truncated is None else flags["done"] & ~truncated
    if "truncated" not in flags and with_truncated:
        flags["truncated"] = zero.clone()
    for name, value in flags.items():
        tensordict.set(join_key(prefix, name), value)
    return tensordict


def _reshape_flag(flag: Tensor, shape: torch.Size, key: Key) -> Tensor:
    if flag.numel() != shape.numel():
        raise SpaceError(f"Expected {key!r} of shape {tuple(shape)}, as done_spec says, got {tuple(flag.shape)}.")
    return flag.reshape(shape)


def has_all_flags(tensordict: TensorDictBase, flags: Sequence[tuple[Key, Sequence[int]]]) -> bool:
    """Returns whether all `flags` are present with their shapes after the batch dimensions (any shape if it has -1)."""
    dims = tensordict.batch_dims
    for key, shape in flags:
        flag = tensordict.get(key, None)
        if flag is None or (flag.shape[dims:] != shape and -1 not in shape):
            return False
    return True


def any_true(mask: Tensor) -> bool:
    """Returns whether any element of a mask is True; avoids the reduction for a single element, the common case."""
    return bool(mask) if mask.numel() == 1 else bool(mask.any())


def rows_done(tensordict: TensorDictBase, prefixes: Sequence[tuple[str, ...]], require_all: bool = False) -> Tensor:
    """Returns `[*batch]` bool: the rows in which any "done" flag at `prefixes` is True, or all if `require_all`."""
    flags = [tensordict.get(join_key(prefix, "done")).reshape(*tensordict.batch_size, -1) for prefix in prefixes]
    per_prefix = torch.stack([flag.all(-1) if require_all else flag.any(-1) for flag in flags])
    return per_prefix.all(0) if require_all else per_prefix.any(0)
