"""The records that `spec.space` returns: bounds or counts, under TorchRL's names. They know no specs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ..errors import SpaceError


@dataclass(slots=True, eq=False)
class ContinuousBox:
    """The bounds of a numeric spec, inclusive. Those of a `Bounded` may be written to or set, which changes the spec.

    Attributes:
        low, high: tensors of the spec's shape (dynamic dimensions have size 1).
    """

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield self.low
        yield self.high


class FixedBox(ContinuousBox):
    """The limits of a spec without bounds of its own, which cannot be set."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise SpaceError(f"Expected a Bounded spec for a new {name!r}, got an Unbounded. Make a Bounded.")
        ContinuousBox.__setattr__(self, name, value)


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
