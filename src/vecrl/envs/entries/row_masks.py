"""Done flags, and masks of partial resets and steps: masks select rows, and all other rows keep their entries.

A mask is beside the done flags that it belongs to, at the root or in a group; its prefix is the path of that place. A
mask at the root overrides those in groups. Without a mask at a prefix or above it, all rows there are selected. Entries
without done flags beside or above them are selected in the rows that are selected in all groups below. Rows that are
not selected keep their old entries, or get zeros if they had none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
)
from torch import Tensor

from ...errors import SpaceError
from ...specs.shape_ops import has_shape
from .keys import FLAGS, Key, Prefix, is_overridden, join_key, split_key


class RowMasks:
    """The selected rows by prefix.

    Args:
        masks: the masks by prefix.
        prefixes: the prefixes of done flags, the root first.

    Attributes:
        masks: the masks by prefix, without those that a mask above overrides.
    """

    def __init__(self, masks: Mapping[Prefix, Tensor], prefixes: Sequence[Prefix]):
        self._prefixes = prefixes
        self.masks = masks
        if len(masks) > 1:
            self.masks = {prefix: mask for prefix, mask in masks.items() if not is_overridden(prefix, masks)}

    @classmethod
    def from_tensordict(
        cls, td: TensorDictBase, name: str, prefixes: Sequence[Prefix], shapes: Mapping[Prefix, Sequence[int]] = {}
    ) -> RowMasks:
        """Reads the masks named `name` ("_reset" or "_step") from `td`.

        Args:
            td: the TensorDict.
            name: the name of the masks.
            prefixes: the prefixes of done flags.
            shapes: the shapes of done flags after the batch size, by prefix, for those that `td` does not have.

        Raises:
            SpaceError: if a mask has no done flags beside it, is not bool, or has another shape than the flags.
        """
        masks: dict[Prefix, Tensor] = {}
        for prefix in _find_prefixes(td, name):
            key = join_key(prefix, name)
            if prefix not in prefixes:
                done_keys = [join_key(p, "done") for p in prefixes]
                raise SpaceError(f"Expected a mask beside one of the done flags {done_keys}, got {key!r}.")
            masks[prefix] = _validate_mask(td.get(key), key, td, prefix, shapes.get(prefix))
        return cls(masks, prefixes)

    def __bool__(self) -> bool:
        return bool(self.masks)

    def for_key(self, key: Key) -> Tensor | None:
        """Returns the mask of a leaf; None if all of its rows are selected."""
        prefix_parts = split_key(key)[0]
        for length in range(len(prefix_parts), -1, -1):
            if prefix_parts[:length] in self.masks:
                return self.masks[prefix_parts[:length]]
        return None

    @property
    def none_selected(self) -> bool:
        """Whether no row is selected."""
        if any(map(any_true, self.masks.values())):
            return False
        return all(self.for_key(join_key(prefix, "done")) is not None for prefix in self._prefixes)

    @property
    def single_true(self) -> bool:
        """Whether the only mask is a single True on the CPU: a fast check that all rows are selected."""
        if len(self.masks) != 1:
            return False
        [mask] = self.masks.values()
        return mask.numel() == 1 and mask.device.type == "cpu" and bool(mask)

    def select(self, new: TensorDictBase, old: TensorDictBase | None) -> TensorDictBase:
        """Merges two TensorDicts: `new` in the selected rows, `old` (or zeros if it lacks the entry) in the others.

        Updates `new` in place and returns it. For a lazy stack, in which shapes may differ, returns a new one.
        """
        return self._select_in(new, old, ())

    def _select_in(self, new: Any, old: Any, place: Prefix) -> Any:
        """Merges as `select` does; `place` is the path of `new` in the root."""
        if isinstance(new, LazyStackedTensorDict):
            return self._select_per_row(new, old, place)
        for key, new_value in list(_leaves_and_stacks(new, ())):
            prefix, name = split_key(key)
            path, old_value = (*place, *prefix, name), None if old is None else old.get(key, None)
            if is_tensor_collection(new_value) and not is_non_tensor(new_value):
                new.set(key, self._select_per_row(new_value, old_value, path))
                continue
            mask = self.for_key(path)
            if mask is None and not place:
                mask = self._mask_for_shared_entry(prefix, new)
            if mask is not None:
                new.set(key, _select_value(mask, new_value, old_value, key))
        return new

    def _mask_for_shared_entry(self, prefix: Prefix, td: TensorDictBase) -> Tensor | None:
        """Returns the mask of entries without done flags beside or above them; None for all other entries.

        It selects the rows that are selected in all groups below.
        """
        ancestors = [prefix[:length] for length in range(len(prefix), -1, -1)]
        if any(ancestor in self._prefixes for ancestor in ancestors):
            return None
        common = next(ancestor for ancestor in ancestors if any(p[: len(ancestor)] == ancestor for p in self._prefixes))
        dims = (td.get(common) if common else td).batch_dims
        masks_below = [self.for_key(join_key(p, "done")) for p in self._prefixes if p[: len(common)] == common]
        row_masks = [reduce_to_rows(mask, mask.shape[:dims], True) for mask in masks_below if mask is not None]
        return torch.stack(row_masks).all(0) if row_masks else None

    def _select_per_row(self, new: LazyStackedTensorDict, old: Any, place: Prefix) -> TensorDictBase:
        dim = new.stack_dim
        old_rows = [None] * len(new.tensordicts) if old is None else old.unbind(dim)
        merged_rows: list[TensorDictBase] = []
        for i, (new_row, old_row) in enumerate(zip(new.unbind(dim), old_rows, strict=True)):
            row_masks = {
                prefix: mask.select(dim, i) if prefix[: len(place)] == place else mask
                for prefix, mask in self.masks.items()
            }
            merged_rows.append(RowMasks(row_masks, self._prefixes)._select_in(new_row, old_row, place))
        return stack_lazily(merged_rows, dim)


def _find_prefixes(td: TensorDictBase, name: str) -> list[Prefix]:
    """Returns the prefixes at which there are leaves of this name."""
    if isinstance(td, dict):  # a `Record`
        return [()] if name in td else []
    if type(td) is TensorDict:
        for value in td.values():
            if not isinstance(value, Tensor):
                break
        else:  # no nested TensorDicts
            return [()] if name in td.keys() else []  # noqa: SIM118 - a TensorDict is no dict
    split_keys = map(split_key, td.keys(include_nested=True, leaves_only=True))
    return [prefix for prefix, leaf_name in split_keys if leaf_name == name]


def stack_lazily(rows: Sequence[TensorDictBase], dim: int = 0) -> LazyStackedTensorDict:
    """Returns a lazy stack of TensorDicts, which may have different shapes and keys."""
    stack: Any = LazyStackedTensorDict.lazy_stack(list(rows), dim)  # typed for tensors only
    return stack


def merge_into(base: TensorDictBase, new: TensorDictBase) -> TensorDictBase:
    """Updates `base` in place with `new` and returns it; returns a new lazy stack if `new` is one and `base` is not."""
    if not isinstance(new, LazyStackedTensorDict):
        return base.update(new)
    dim = new.stack_dim
    merged_rows = [
        base_row.update(new_row) for base_row, new_row in zip(base.unbind(dim), new.unbind(dim), strict=True)
    ]
    same_layout = isinstance(base, LazyStackedTensorDict) and base.stack_dim == dim
    return base if same_layout else stack_lazily(merged_rows, dim)


def drop_keys(td: TensorDictBase, keys: Sequence[Key]) -> TensorDictBase:
    """Deletes `keys` from `td` in place, if they are present, and returns it."""
    if type(td) is not TensorDict or any(type(key) is tuple for key in keys):
        return td.exclude(*keys, inplace=True)
    present_keys = td.keys()
    for key in keys:
        if key in present_keys:
            del td[key]
    return td


def fill_missing(
    td: TensorDictBase,
    keys: Sequence[Key],
    noop_step: Callable[[TensorDictBase], TensorDictBase],
    excluded_keys: Sequence[Key],
) -> TensorDictBase:
    """Adds the result of `noop_step` to `td` if any of `keys` is missing, and returns `td`.

    Args:
        td: updated in place.
        keys: the required keys.
        noop_step: returns all outputs of a step in which no row moves; entries of `td` are kept.
        excluded_keys: keys that are not added.
    """
    present_keys = set(td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf))
    return td if present_keys.issuperset(keys) else merge_into(td, noop_step(td).exclude(*excluded_keys))


def is_leaf(cls: type) -> bool:
    """Returns whether values of a class are leaves, for `keys` of TensorDicts; objects are leaves too."""
    return issubclass(cls, NonTensorData | NonTensorStack) or not is_tensor_collection(cls)


def _leaves_and_stacks(td: Any, prefix: Prefix) -> Iterator[tuple[Key, Any]]:
    """Yields the keys and values of the leaves of a TensorDict, and of lazy stacks in it instead of their leaves."""
    for name, value in td.items():
        is_stack = isinstance(value, LazyStackedTensorDict)
        if isinstance(value, Tensor) or is_stack or is_non_tensor(value) or not is_tensor_collection(value):
            yield join_key(prefix, name), value
        else:
            yield from _leaves_and_stacks(value, (*prefix, name))


def _validate_mask(
    mask: object, key: Key, td: TensorDictBase, prefix: Prefix, done_shape: Sequence[int] | None
) -> Tensor:
    sub_td = td.get(prefix) if prefix else td
    shape = sub_td.batch_size
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise SpaceError(f"Expected {key!r} to be a bool tensor, got {mask!r}.")
    done = td.get(join_key(prefix, "done"), None)
    if done is not None:
        done_shape = done.shape
    elif done_shape is not None:
        done_shape = (*td.batch_size, *done_shape)
    if mask.shape[: len(shape)] != shape or not _has_done_shape(mask, done_shape):
        expected, actual = tuple(shape if done_shape is None else done_shape), tuple(mask.shape)
        raise SpaceError(f"Expected {key!r} to have the shape {expected} of the done flags beside it, got {actual}.")
    return mask


def _has_done_shape(mask: Tensor, shape: Sequence[int] | None) -> bool:
    """Returns whether a mask has the shape of done flags, or fewer trailing dimensions, or one more of size 1."""
    return shape is None or has_shape(mask.shape, (*shape, 1)[: mask.ndim])


def _select_value(mask: Tensor, new: Any, old: Any, key: Key) -> Any:
    if not isinstance(new, Tensor):
        return _select_object(mask, new, old)
    if old is not None and old.shape != new.shape:  # of a dynamic size
        if bool(mask.all()):
            return new
        if not bool(mask.any()):
            return old
        raise SpaceError(
            f"Expected rows of equal shapes at {key!r}, got {tuple(new.shape)} in rows that are reset and "
            f"{tuple(old.shape)} in the others. Put single environments into a SerialEnv or a ParallelEnv instead."
        )
    broadcast = broadcast_mask(mask, new)
    if broadcast.device != new.device:  # of an entry that a transform has moved
        broadcast = broadcast.to(new.device)
    if old is None:
        return torch.where(broadcast, new, torch.zeros((), dtype=new.dtype, device=new.device))
    return torch.where(broadcast, new, old)


def _select_object(mask: Tensor, new: Any, old: Any) -> Any:
    if old is None or bool(mask.all()):
        return new
    if not bool(mask.any()):
        return old
    selected_rows = reduce_to_rows(mask, new.batch_size)
    rows = zip(selected_rows, new.unbind(0), old.unbind(0), strict=True)
    return torch.stack([new_row if selected else old_row for selected, new_row, old_row in rows], 0)


def check_not_done(reset_td: TensorDictBase, masks: RowMasks | None, done_keys: Iterable[Key]) -> None:
    """Raises a `SpaceError` if a row is done after its reset.

    Args:
        reset_td: the result of the reset.
        masks: the masks of the rows that were reset; None for all rows.
        done_keys: the keys of the "done" flags.
    """
    for key in done_keys:
        done = reset_td.get(key)
        if not any_true(done):
            continue
        mask = None if masks is None else masks.for_key(key)
        if mask is None or any_true(done & broadcast_mask(mask, done)):
            raise SpaceError(
                f"Expected no row to be done after its reset, got {done.tolist()} at {key!r}. "
                "Return an initial state that is not done, or set allow_done_after_reset=True."
            )


def broadcast_mask(mask: Tensor, value: Tensor) -> Tensor:
    """Reshapes a mask so that it broadcasts with `value`, with a union over dimensions that `value` does not share."""
    while mask.shape != value.shape[: mask.ndim]:
        mask = mask.any(-1)
    return mask[(..., *[None] * (value.ndim - mask.ndim))]


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
