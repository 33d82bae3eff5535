"""`TransformedSteps`: the steps of an environment over records, with a transform of its results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..entries.records import Record, RecordSteps
from ..entries.row_masks import any_true, broadcast_mask
from .base import Transform


class TransformedSteps:
    """Steps an environment over records and transforms the results, as `TransformedEnv` does with TensorDicts.

    Args:
        base: the steps of the environment.
        transform: a transform with `_takes_records` that does not change inputs.
    """

    def __init__(self, base: RecordSteps, transform: Transform):
        self._base, self._transform = base, transform

    def step(self, root: Record, reset_done: bool) -> tuple[Record, Record | None]:
        """Steps all rows, see `RecordSteps`."""
        transform: Any = self._transform
        base_next, first = self._base.step(root, reset_done and transform.preserves_done)
        base_done = base_next["done"]
        next_record = transform._step(root, base_next)
        if first is None:
            return next_record, None
        done = next_record["done"]
        if done is not base_done and any_true(only_here := done & ~base_done):  # rows that only the transform ended
            first = Record({**first, **self._base.reset(only_here, first)}, root.batch_size, root.device)
        return next_record, self._transform_reset(done, first, Record({**root, **next_record}, root.batch_size))

    def reset(self, mask: Tensor, root: Record) -> Record:
        """Resets rows, see `RecordSteps`."""
        return self._transform_reset(mask, self._base.reset(mask, root), root.copy())

    def _transform_reset(self, mask: Tensor, first: Record, root: Record) -> Record:
        """Returns the transformed entries `first` in the rows of the mask, and those of `root` in the others."""
        transform: Any = self._transform
        root["_reset"] = mask
        first = transform._reset(root, first)
        for key, value in first.items():
            if (previous := root.get(key)) is not None:
                rows = mask if value.ndim == mask.ndim else broadcast_mask(mask, value)
                first[key] = torch.where(rows, value, previous)
        return first
