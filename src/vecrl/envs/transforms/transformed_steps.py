"""`TransformedSteps`: the steps of an environment over records, with a transform of its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from ..entries.records import Record, RecordSteps, merge_rows
from ..entries.row_masks import any_true
from .base import Transform


class TransformedSteps:
    """Steps an environment over records and transforms the results, as `TransformedEnv` does with TensorDicts.

    Args:
        base: the steps of the environment.
        transform: a transform with `_takes_records`.
    """

    def __init__(self, base: RecordSteps, transform: Transform):
        self._base, self._transform = base, transform

    def step(self, root: Record, reset_done: bool) -> tuple[Record, Record | None]:
        """Steps all rows, see `RecordSteps`."""
        transform: Any = self._transform
        base_root = transform.inv(root) if transform._has_inverse else root
        base_next, first = self._base.step(base_root, reset_done and transform.preserves_done)
        base_done = base_next["done"]
        next_record = transform._step(root, base_next)
        if first is None:
            return next_record, None
        done = next_record["done"]
        if done is not base_done and any_true(only_here := done & ~base_done):  # rows that only the transform ended
            reset_root = Record({**root, **next_record, **first}, root.batch_size)
            first |= merge_rows(only_here, self._base.reset(only_here, reset_root), first)
        return next_record, self._transform_reset(done, first, {**root, **next_record})

    def reset(self, mask: Tensor, root: Record) -> Record:
        """Resets rows, see `RecordSteps`."""
        return self._transform_reset(mask, self._base.reset(mask, root), root)

    def _transform_reset(self, mask: Tensor, first: Record, root: Mapping[str, Any]) -> Record:
        """Returns the transformed entries of `first` in the rows of the mask, and those of the root in the others."""
        root = Record({**root, "_reset": mask}, first.batch_size)
        return merge_rows(mask, cast(Any, self._transform._reset)(root, first), root)
