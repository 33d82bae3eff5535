"""The records that `spec.space` returns: bounds or counts, under TorchRL's names. They know no specs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousBox:
    """The bounds of a numeric spec, inclusive.

    Attributes:
        low, high: tensors of the spec's shape (dynamic dimensions have size 1).
    """

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield self.low
        yield self.high


@dataclass(frozen=True, slots=True)
class CategoricalBox:
    """The number of options, `n`; -1 if it is unknown."""

    n: int


@dataclass(frozen=True, slots=True)
class BoxList:
    """The numbers of options of several choices."""

    boxes: tuple[CategoricalBox, ...]

    def __len__(self) -> int:
        return len(self.boxes)

    def __iter__(self) -> Iterator[CategoricalBox]:
        return iter(self.boxes)

    def __getitem__(self, index: int) -> CategoricalBox:
        return self.boxes[index]
