"""Masks of partial resets and steps: who is meant, and what the others keep.

A mask lies beside the done flags that it is paired with, at the root or in a group. One at the root overrides those in
groups; where there is none at a place nor above it, the whole of that place is meant. What lies beside no done flags
and below none is meant where everybody below is. Afterwards the rows that were not meant hold what they held before, or
zeros where they held nothing. Knows TensorDicts, not environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_tensor_collection,
)
from torch import Tensor

from ..errors import SpaceError
from .done_flags import any_true
from .spec_container import Key, join_key, split_key

Prefix = tuple[str, ...]


class RowMasks:
    """Who is meant, place by place.

    Args:
        masks: the masks, by place.
        prefixes: the places of done flags, those at the root first.

    Attributes:
        masks: the masks that count, by place; those that one above overrides are left out.
    """

    def __init__(self, masks: Mapping[Prefix, Tensor], prefixes: Sequence[Prefix]):
        self._prefixes = prefixes
        self.masks = {prefix: mask for prefix, mask in masks.items() if not _is_overridden(prefix, masks)}

    @classmethod
    def from_tensordict(cls, td: TensorDictBase, name: str, prefixes: Sequence[Prefix]) -> RowMasks:
        """Those named `name` ("_reset" or "_step") in `td`.

        Raises:
            SpaceError: a mask without done flags beside it, or one of another shape than what it is about.
        """
        masks: dict[Prefix, Tensor] = {}
        for prefix in _find_prefixes(td, name):
            key = join_key(prefix, name)
            if prefix not in prefixes:
                done_keys = [join_key(p, "done") for p in prefixes]
                raise SpaceError(f"{key!r} has no done flag beside it; done flags are at {done_keys}.")
            masks[prefix] = _validate_mask(td.get(key), key, td, prefix)
        return cls(masks, prefixes)

    def __bool__(self) -> bool:
        return bool(self.masks)

    def for_key(self, key: Key) -> Tensor | None:
        """The mask that a leaf is under; None where the whole of it is meant."""
        prefix_parts = split_key(key)[0]
        for length in range(len(prefix_parts), -1, -1):
            if prefix_parts[:length] in self.masks:
                return self.masks[prefix_parts[:length]]
        return None

    @property
    def none_selected(self) -> bool:
        """Whether nobody at all is meant."""
        covered = all(self.for_key(join_key(prefix, "done")) is not None for prefix in self._prefixes)
        return covered and not any(bool(mask.any()) for mask in self.masks.values())

    @property
    def single_true(self) -> bool:
        """Whether it takes no more than a glance at a single flag to see that everybody is meant."""
        masks = list(self.masks.values())
        return len(masks) == 1 and masks[0].numel() == 1 and masks[0].device.type == "cpu" and bool(masks[0])

    def select(self, new: TensorDictBase, old: TensorDictBase | None) -> TensorDictBase:
        """`new` where it is meant, `old` elsewhere, zeros where that has no such entry; in `new`, which is returned.

        Of a lazy stack, whose entries may have no common shape, a new one is returned.
        """
        if isinstance(new, LazyStackedTensorDict):
            return self._merge_rows(new, old)
        for key in list(new.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf)):
            mask = self.for_key(key)
            if mask is None:
                mask = self._mask_for_shared_entry(split_key(key)[0], new)
            if mask is not None:
                old_value = None if old is None else old.get(key, None)
                new.set(key, _select_value(mask, new.get(key), old_value, key))
        return new

    def _mask_for_shared_entry(self, prefix: Prefix, td: TensorDictBase) -> Tensor | None:
        """The rows of which everybody is meant, for a place without done flags beside or above it; None otherwise."""
        ancestors = [prefix[:length] for length in range(len(prefix), -1, -1)]
        if any(ancestor in self._prefixes for ancestor in ancestors):
            return None
        common = next(ancestor for ancestor in ancestors if any(p[: len(ancestor)] == ancestor for p in self._prefixes))
        dims = (td.get(common) if common else td).batch_dims
        masks_below = [self.for_key(join_key(p, "done")) for p in self._prefixes if p[: len(common)] == common]
        row_masks = [mask.reshape(*mask.shape[:dims], -1).all(-1) for mask in masks_below if mask is not None]
        return torch.stack(row_masks).all(0) if row_masks else None

    def _merge_rows(self, new: LazyStackedTensorDict, old: TensorDictBase | None) -> TensorDictBase:
        dim = new.stack_dim
        parts = new.unbind(dim)
        old_rows = [None] * len(parts) if old is None else old.unbind(dim)
        merged_rows: list[Any] = []
        for i, (part, old_row) in enumerate(zip(parts, old_rows, strict=True)):
            masks = RowMasks({prefix: mask.select(dim, i) for prefix, mask in self.masks.items()}, self._prefixes)
            merged_rows.append(masks.select(part, old_row))
        return LazyStackedTensorDict.lazy_stack(merged_rows, dim)


def _find_prefixes(td: TensorDictBase, name: str) -> list[Prefix]:
    """Where there are leaves of this name."""
    if type(td) is TensorDict and all(isinstance(value, Tensor) for value in td.values()):  # with no more than the root
        return [()] if name in td.keys() else []  # noqa: SIM118 - a TensorDict is no dict
    masks = map(split_key, td.keys(include_nested=True, leaves_only=True))
    return [prefix for prefix, name_part in masks if name_part == name]


def merge_into(base: TensorDictBase, new: TensorDictBase) -> TensorDictBase:
    """`base`, updated with `new` in place; a lazy stack instead, where `new` is one and `base` is not."""
    if not isinstance(new, LazyStackedTensorDict):
        return base.update(new)
    dim = new.stack_dim
    row_masks: list[Any] = [
        base_row.update(new_row) for base_row, new_row in zip(base.unbind(dim), new.unbind(dim), strict=True)
    ]
    same_layout = isinstance(base, LazyStackedTensorDict) and base.stack_dim == dim
    return base if same_layout else LazyStackedTensorDict.lazy_stack(row_masks, dim)


def drop_keys(td: TensorDictBase, keys: Sequence[Key]) -> TensorDictBase:
    """`td` less what it has of `keys`, in place."""
    if keys != ["_reset"]:
        return td.exclude(*keys, inplace=True)
    if "_reset" in td.keys():  # noqa: SIM118 - a TensorDict is no dict
        del td["_reset"]
    return td


def fill_missing(
    td: TensorDictBase,
    keys: Sequence[Key],
    noop_step: Callable[[TensorDictBase], TensorDictBase],
    excluded_keys: Sequence[Key],
) -> TensorDictBase:
    """`td` in which all `keys` are: those that it lacks, and what goes with them, are as `noop_step` has them of it.

    Args:
        td: updated in place.
        keys: what is to be there.
        noop_step: gives all entries of an environment that stands still, those of `td` where it has any.
        excluded_keys: entries that are left out.
    """
    present_keys = set(td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf))
    return td if present_keys.issuperset(keys) else merge_into(td, noop_step(td).exclude(*excluded_keys))


def _is_overridden(prefix: Prefix, masks: Mapping[Prefix, Tensor]) -> bool:
    return any(ancestor != prefix and prefix[: len(ancestor)] == ancestor for ancestor in masks)


def is_leaf(cls: type) -> bool:
    """For `keys` of TensorDicts: objects are leaves too."""
    return issubclass(cls, NonTensorData | NonTensorStack) or not is_tensor_collection(cls)


def _validate_mask(mask: Any, key: Key, td: TensorDictBase, prefix: Prefix) -> Tensor:
    sub_td = td.get(prefix) if prefix else td
    shape = sub_td.batch_size
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise SpaceError(f"Expected {key!r} to be a bool tensor, but {mask!r} came.")
    done = td.get(join_key(prefix, "done"), None)
    if mask.shape[: len(shape)] != shape or not _has_done_shape(mask, done):
        expected, actual = tuple(shape if done is None else done.shape), tuple(mask.shape)
        raise SpaceError(
            f"Expected {key!r} to have the shape {expected} of the done flags beside it, but {actual} came."
        )
    return mask


def _has_done_shape(mask: Tensor, done: Tensor | None) -> bool:
    """Whether a mask fits done flags: with or without their last dimensions, or one more of size 1."""
    return done is None or mask.shape == (*done.shape, 1)[: mask.ndim]


def _select_value(mask: Tensor, new: Any, old: Any, key: Key) -> Any:
    if not isinstance(new, Tensor):
        return _select_object(mask, new, old)
    if old is not None and old.shape != new.shape:  # of a dynamic size
        if bool(mask.all()):
            return new
        if not bool(mask.any()):
            return old
        raise SpaceError(
            f"Expected rows of one shape at {key!r}, but those that begin anew have {tuple(new.shape)} and the others "
            f"{tuple(old.shape)}: no tensor holds both. Make environments of their own of them, in a batch."
        )
    broadcast = broadcast_mask(mask, new)
    if old is None:
        return torch.where(broadcast, new, torch.zeros((), dtype=new.dtype, device=new.device))
    return torch.where(broadcast, new, old)


def _select_object(mask: Tensor, new: Any, old: Any) -> Any:
    if old is None or bool(mask.all()):
        return new
    if not bool(mask.any()):
        return old
    flat = mask.reshape(*new.batch_size, -1).any(-1)
    row_masks = [
        new_row if selected else old_row
        for selected, new_row, old_row in zip(flat, new.unbind(0), old.unbind(0), strict=True)
    ]
    return torch.stack(row_masks, 0)


def check_not_done(
    reset_td: TensorDictBase, masks: RowMasks | None, prefix_parts: Sequence[tuple[tuple[str, ...], Key]]
) -> None:
    """Raise a `SpaceError` where a row that began anew is done already.

    Args:
        reset_td: what the reset gave.
        masks: of the rows that are meant; None for all.
        places: of each "done" flag, its place and its key.
    """
    for _, key in prefix_parts:
        done = reset_td.get(key)
        if not any_true(done):
            continue
        mask = None if masks is None else masks.for_key(key)
        if mask is None or any_true(done & broadcast_mask(mask, done)):
            raise SpaceError(
                f"Expected no row to be done after its reset, but {key!r} is {done.tolist()}. "
                "Begin an episode that can go on, or give allow_done_after_reset=True."
            )


def broadcast_mask(mask: Tensor, value: Tensor) -> Tensor:
    """The mask as one that broadcasts with `value`; in dimensions that `value` does not share, any one is enough."""
    while mask.shape != value.shape[: mask.ndim]:
        mask = mask.any(-1)
    return mask[(..., *[None] * (value.ndim - mask.ndim))]
