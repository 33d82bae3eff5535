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
from .flags import anything
from .owner import Key, joined, split

Prefix = tuple[str, ...]


class Masks:
    """Who is meant, place by place.

    Args:
        found: the masks, by place.
        prefixes: the places of done flags, those at the root first.

    Attributes:
        found: the masks that count, by place; those that one above overrides are left out.
    """

    def __init__(self, found: Mapping[Prefix, Tensor], prefixes: Sequence[Prefix]):
        self._prefixes = prefixes
        self.found = {place: mask for place, mask in found.items() if not _overridden(place, found)}

    @classmethod
    def read(cls, td: TensorDictBase, name: str, prefixes: Sequence[Prefix]) -> Masks:
        """Those named `name` ("_reset" or "_step") in `td`.

        Raises:
            SpaceError: a mask without done flags beside it, or one of another shape than what it is about.
        """
        found: dict[Prefix, Tensor] = {}
        for prefix in _places(td, name):
            key = joined(prefix, name)
            if prefix not in prefixes:
                places = [joined(p, "done") for p in prefixes]
                raise SpaceError(f"{key!r} has no done flag beside it; done flags are at {places}.")
            found[prefix] = _checked(td.get(key), key, td, prefix)
        return cls(found, prefixes)

    def __bool__(self) -> bool:
        return bool(self.found)

    def of(self, key: Key) -> Tensor | None:
        """The mask that a leaf is under; None where the whole of it is meant."""
        places = split(key)[0]
        for length in range(len(places), -1, -1):
            if places[:length] in self.found:
                return self.found[places[:length]]
        return None

    @property
    def nobody(self) -> bool:
        """Whether nobody at all is meant."""
        covered = all(self.of(joined(prefix, "done")) is not None for prefix in self._prefixes)
        return covered and not any(bool(mask.any()) for mask in self.found.values())

    @property
    def everybody(self) -> bool:
        """Whether it takes no more than a glance at a single flag to see that everybody is meant."""
        masks = list(self.found.values())
        return len(masks) == 1 and masks[0].numel() == 1 and masks[0].device.type == "cpu" and bool(masks[0])

    def merge(self, new: TensorDictBase, old: TensorDictBase | None) -> TensorDictBase:
        """`new` where it is meant, `old` elsewhere, zeros where that has no such entry; in `new`, which is returned.

        Of a lazy stack, whose entries may have no common shape, a new one is returned.
        """
        if isinstance(new, LazyStackedTensorDict):
            return self._merge_rows(new, old)
        for key in list(new.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf)):
            mask = self.of(key)
            if mask is None:
                mask = self._of_everybody(split(key)[0], new)
            if mask is not None:
                before = None if old is None else old.get(key, None)
                new.set(key, _choose(mask, new.get(key), before, key))
        return new

    def _of_everybody(self, place: Prefix, td: TensorDictBase) -> Tensor | None:
        """The rows of which everybody is meant, for a place without done flags beside or above it; None otherwise."""
        above = [place[:length] for length in range(len(place), -1, -1)]
        if any(other in self._prefixes for other in above):
            return None
        common = next(other for other in above if any(p[: len(other)] == other for p in self._prefixes))
        dims = (td.get(common) if common else td).batch_dims
        below = [self.of(joined(p, "done")) for p in self._prefixes if p[: len(common)] == common]
        rows = [mask.reshape(*mask.shape[:dims], -1).all(-1) for mask in below if mask is not None]
        return torch.stack(rows).all(0) if rows else None

    def _merge_rows(self, new: LazyStackedTensorDict, old: TensorDictBase | None) -> TensorDictBase:
        dim = new.stack_dim
        parts = new.unbind(dim)
        olds = [None] * len(parts) if old is None else old.unbind(dim)
        rows: list[Any] = []
        for i, (part, before) in enumerate(zip(parts, olds, strict=True)):
            masks = Masks({place: mask.select(dim, i) for place, mask in self.found.items()}, self._prefixes)
            rows.append(masks.merge(part, before))
        return LazyStackedTensorDict.lazy_stack(rows, dim)


def _places(td: TensorDictBase, name: str) -> list[Prefix]:
    """Where there are leaves of this name."""
    if type(td) is TensorDict and all(isinstance(value, Tensor) for value in td.values()):  # with no more than the root
        return [()] if name in td.keys() else []  # noqa: SIM118 - a TensorDict is no dict
    found = map(split, td.keys(include_nested=True, leaves_only=True))
    return [prefix for prefix, last in found if last == name]


def overlaid(base: TensorDictBase, new: TensorDictBase) -> TensorDictBase:
    """`base`, updated with `new` in place; a lazy stack instead, where `new` is one and `base` is not."""
    if not isinstance(new, LazyStackedTensorDict):
        return base.update(new)
    dim = new.stack_dim
    rows: list[Any] = [before.update(part) for before, part in zip(base.unbind(dim), new.unbind(dim), strict=True)]
    there = isinstance(base, LazyStackedTensorDict) and base.stack_dim == dim
    return base if there else LazyStackedTensorDict.lazy_stack(rows, dim)


def without(td: TensorDictBase, keys: Sequence[Key]) -> TensorDictBase:
    """`td` less what it has of `keys`, in place."""
    if keys != ["_reset"]:
        return td.exclude(*keys, inplace=True)
    if "_reset" in td.keys():  # noqa: SIM118 - a TensorDict is no dict
        del td["_reset"]
    return td


def filled(
    td: TensorDictBase, keys: Sequence[Key], still: Callable[[TensorDictBase], TensorDictBase], but: Sequence[Key]
) -> TensorDictBase:
    """`td` in which all `keys` are: those that it lacks, and what goes with them, are as `still` has them of it.

    Args:
        td: updated in place.
        keys: what is to be there.
        still: gives all entries of an environment that stands still, those of `td` where it has any.
        but: entries that are left out.
    """
    there = set(td.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf))
    return td if there.issuperset(keys) else overlaid(td, still(td).exclude(*but))


def _overridden(place: Prefix, found: Mapping[Prefix, Tensor]) -> bool:
    return any(other != place and place[: len(other)] == other for other in found)


def is_leaf(kind: type) -> bool:
    """For `keys` of TensorDicts: objects are leaves too."""
    return issubclass(kind, NonTensorData | NonTensorStack) or not is_tensor_collection(kind)


def _checked(mask: Any, key: Key, td: TensorDictBase, prefix: Prefix) -> Tensor:
    place = td.get(prefix) if prefix else td
    shape = place.batch_size
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise SpaceError(f"Expected {key!r} to be a bool tensor, but {mask!r} came.")
    done = td.get(joined(prefix, "done"), None)
    if mask.shape[: len(shape)] != shape or not _beside(mask, done):
        whole, came = tuple(shape if done is None else done.shape), tuple(mask.shape)
        raise SpaceError(f"Expected {key!r} to have the shape {whole} of the done flags beside it, but {came} came.")
    return mask


def _beside(mask: Tensor, done: Tensor | None) -> bool:
    """Whether a mask fits done flags: with or without their last dimensions, or one more of size 1."""
    return done is None or mask.shape == (*done.shape, 1)[: mask.ndim]


def _choose(mask: Tensor, new: Any, old: Any, key: Key) -> Any:
    if not isinstance(new, Tensor):
        return _choose_object(mask, new, old)
    if old is not None and old.shape != new.shape:  # of a dynamic size
        if bool(mask.all()):
            return new
        if not bool(mask.any()):
            return old
        raise SpaceError(
            f"Expected rows of one shape at {key!r}, but those that begin anew have {tuple(new.shape)} and the others "
            f"{tuple(old.shape)}: no tensor holds both. Make environments of their own of them, in a batch."
        )
    wide = aligned(mask, new)
    if old is None:
        return torch.where(wide, new, torch.zeros((), dtype=new.dtype, device=new.device))
    return torch.where(wide, new, old)


def _choose_object(mask: Tensor, new: Any, old: Any) -> Any:
    if old is None or bool(mask.all()):
        return new
    if not bool(mask.any()):
        return old
    flat = mask.reshape(*new.batch_size, -1).any(-1)
    rows = [n if m else o for m, n, o in zip(flat, new.unbind(0), old.unbind(0), strict=True)]
    return torch.stack(rows, 0)


def check_begun(first: TensorDictBase, masks: Masks | None, places: Sequence[tuple[tuple[str, ...], Key]]) -> None:
    """Raise a `SpaceError` where a row that began anew is done already.

    Args:
        first: what the reset gave.
        masks: of the rows that are meant; None for all.
        places: of each "done" flag, its place and its key.
    """
    for _, key in places:
        done = first.get(key)
        if not anything(done):
            continue
        mask = None if masks is None else masks.of(key)
        if mask is None or anything(done & aligned(mask, done)):
            raise SpaceError(
                f"Expected no row to be done after its reset, but {key!r} is {done.tolist()}. "
                "Begin an episode that can go on, or give allow_done_after_reset=True."
            )


def aligned(mask: Tensor, value: Tensor) -> Tensor:
    """The mask as one that broadcasts with `value`; in dimensions that `value` does not share, any one is enough."""
    while mask.shape != value.shape[: mask.ndim]:
        mask = mask.any(-1)
    return mask[(..., *[None] * (value.ndim - mask.ndim))]
