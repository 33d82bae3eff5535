"""`NativeState`: the rows of a batch as arrays. This module knows no tasks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NativeState(NamedTuple):
    """The full state of a batch of environments, as tensors on one device (within simulators also as NumPy arrays).

    Attributes:
        state: `[d, n]`, the state of the task.
        steps: `[n]` int32, the steps since the start of the episode.
        episodes: `[n]` int32, the number of earlier episodes since the row was seeded.
        keys: `[2, n]` int32, computed from the seed.
    """

    state: Tensor
    steps: Tensor
    episodes: Tensor
    keys: Tensor

    def to_numpy(self) -> NativeState:
        """Returns the rows as NumPy arrays that share their memory, without gradients."""
        return NativeState(*(value.detach().numpy() for value in self))  # pyright: ignore[reportArgumentType]

    def to_torch(self) -> NativeState:
        """Returns rows of NumPy arrays as tensors that share their memory; rows of tensors unchanged."""
        if isinstance(self.state, Tensor):
            return self
        return NativeState(*(torch.from_numpy(value) for value in self))


def env_first(value: Tensor) -> Tensor:
    """Transposes `[d, n]` to `[n, d]`, and back; returns `[n]` unchanged."""
    return value if value.ndim == 1 else value.t()
