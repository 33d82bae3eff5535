"""`TransformedSteps`: the steps of an environment over records, with a transform of its results."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ..entries.records import Entries, Record, RecordSteps, merge_rows
from ..entries.row_masks import any_true
from .base import Transform


class TransformedSteps:
    """Steps an environment over records and transforms the results, as `TransformedEnv` does with TensorDicts.

    Args:
        base: the steps of the environment.
        transform: a transform with `_takes_records`.
        batch_size, device: of the records that the transform gets.
    """

    def __init__(self, base: RecordSteps, transform: Transform, batch_size: torch.Size, device: torch.device | None):
        self._base, self._transform = base, transform
        self._has_inverse = transform._has_inverse
        self._batch_size, self._device = batch_size, device

    def step(self, root: Entries, reset_done: bool) -> tuple[Entries, Entries | None]:
        """Steps all rows, see `RecordSteps`."""
        transform: Any = self._transform
        root = self._record(root)
        base_root = transform.inv(root) if self._has_inverse else root
        base_next, first = self._base.step(base_root, reset_done and transform.preserves_done)
        base_done = base_next["done"]
        next_record = transform._step(root, self._record(base_next))
        if first is None:
            return next_record, None
        done = next_record["done"]
        if done is not base_done and any_true(only_here := done & ~base_done):  # rows that only the transform ended
            reset_root = {**root, **next_record, **first}
            first |= merge_rows(only_here, self._base.reset(only_here, reset_root), first)
        return next_record, self._transform_reset(done, first, {**root, **next_record})

    def reset(self, mask: Tensor, root: Entries) -> Entries:
        """Resets rows, see `RecordSteps`."""
        return self._transform_reset(mask, self._base.reset(mask, root), root)

    def _transform_reset(self, mask: Tensor, first: Entries, root: Entries) -> Entries:
        """Returns the transformed entries of `first` in the rows of the mask, and those of the root in the others."""
        root = self._record({**root, "_reset": mask})
        return merge_rows(mask, cast(Any, self._transform._reset)(root, self._record(first)), root)

    def _record(self, entries: Entries) -> Record:
        return Record(entries, self._batch_size, self._device)
