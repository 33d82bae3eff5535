"""What `spec.space` shows: bounds or counts, as TorchRL's users read them. Plain records, made when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousBox:
    """The bounds of a numeric spec, inclusive.

    Attributes:
        low, high: tensors of the spec's shape (size 1 where that is dynamic).
    """

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield self.low
        yield self.high


@dataclass(frozen=True, slots=True)
class CategoricalBox:
    """A choice of one among `n`; -1 where that is not known."""

    n: int


@dataclass(frozen=True, slots=True)
class BoxList:
    """Several choices side by side."""

    boxes: tuple[CategoricalBox, ...]

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[CategoricalBox]:
        return iter(self.boxes)

    def __getitem__(self, index: int) -> CategoricalBox:
        return self.boxes[index]
