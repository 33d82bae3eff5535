"""`RowStateTransform`: the base of transforms that keep a value of each row between steps.

It keeps them in buffers, because later transforms may change entries of the TensorDict. It must not know what the
values are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ..row_masks import broadcast_mask
from .base import Transform


class RowStateTransform(Transform):
    """Keeps tensors `[*batch, ...]` between steps, which are part of its state. A clone shares them."""

    preserves_done = True

    def clone(self) -> Self:
        """Returns a copy without a container that shares the buffers, also those that are created later."""
        cloned = super().clone()
        cloned.__dict__["_buffers"] = self.__dict__["_buffers"]
        return cloned

    def _store(self, name: str, value: Tensor, mask: Tensor | None) -> Tensor:
        """Stores the rows of `mask` of a value for the next step. Returns a copy, which the caller may change."""
        previous = self._buffers.get(name)
        if mask is not None and previous is not None and previous.shape == value.shape:
            value = torch.where(broadcast_mask(mask, value), value, previous)
        self._buffers[name] = value.detach()
        return value.clone()

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._buffers.clear()
        for name, value in state_dict.items():
            if name.startswith(prefix) and "." not in name.removeprefix(prefix):
                self._buffers[name.removeprefix(prefix)] = torch.empty_like(value)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
