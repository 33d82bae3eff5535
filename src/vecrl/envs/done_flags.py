"""Derives missing done flags: "done" is the union of the others, "terminated" equals a lone "done".

This module knows TensorDicts and shapes; it must not know environments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..errors import SpaceError
from .keys import FLAGS, Key, Prefix, join_key


def fill_flags(tensordict: TensorDictBase, prefix: Prefix, with_truncated: bool, shape: Sequence[int]) -> None:
    """Adds the missing done flags at `prefix` in place, and reshapes the others to the same shape.

    Args:
        tensordict: the TensorDict to update.
        prefix: the prefix of the flags.
        with_truncated: whether to add "truncated".
        shape: the shape of a flag after the batch dimensions.

    Raises:
        SpaceError: if a flag has another number of elements.
    """
    size = torch.Size((*tensordict.batch_size, *shape))
    flags: dict[str, Tensor] = {}
    for name in FLAGS:
        flag = tensordict.get(join_key(prefix, name), None)
        if flag is not None:
            flags[name] = flag if flag.shape == size else _reshape_flag(flag, size, join_key(prefix, name))
    if "done" not in flags:
        end_flags = list(flags.values())
        flags["done"] = (
            torch.stack(end_flags).any(0)
            if end_flags
            else torch.zeros(size, dtype=torch.bool, device=tensordict.device)
        )
    if "terminated" not in flags:
        truncated = flags.get("truncated")
        flags["terminated"] = flags["done"].clone() if truncated is None else flags["done"] & ~truncated
    if "truncated" not in flags and with_truncated:
        flags["truncated"] = torch.zeros_like(flags["done"])
    for name, flag in flags.items():
        tensordict.set(join_key(prefix, name), flag)


def _reshape_flag(flag: Tensor, shape: torch.Size, key: Key) -> Tensor:
    if flag.numel() != shape.numel():
        raise SpaceError(
            f"Expected {key!r} of shape {tuple(shape)}, as done_spec says, got {tuple(flag.shape)}. Return one flag "
            "per environment."
        )
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


def reduce_to_rows(mask: Tensor, batch_size: Sequence[int], require_all: bool = False) -> Tensor:
    """Returns `[*batch_size]` bool: the rows in which any element of a mask is True, or all if `require_all`.

    The result may share the memory of the mask.
    """
    if mask.shape == (*batch_size, 1):  # reductions take longer
        return mask.squeeze(-1).bool()
    rows = mask.reshape(*batch_size, -1)
    return rows.all(-1) if require_all else rows.any(-1)


def rows_done(tensordict: TensorDictBase, prefixes: Sequence[Prefix], require_all: bool = False) -> Tensor:
    """Returns `[*batch]` bool: the rows in which any "done" flag at `prefixes` is True, or all if `require_all`."""
    flags = [tensordict.get(join_key(prefix, "done")) for prefix in prefixes]
    rows = [reduce_to_rows(flag, tensordict.batch_size, require_all) for flag in flags]
    if len(rows) == 1:
        return rows[0]
    per_prefix = torch.stack(rows)
    return per_prefix.all(0) if require_all else per_prefix.any(0)
