"""Reward shaping for populations: what is added to a reward for staying alive. Knows numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AliveBonus:
    """A bonus for each step that grows with the age of the episode: none before `t0`, linear to `t1`, full from there.

    Attributes:
        t0: the step of an episode at which the bonus begins to grow.
        t1: the step from which it is full; with `t0 == t1` it is full at once.
        bonus: the full bonus.

    >>> bonus = AliveBonus(100, 200, 8.0)
    >>> tuple(bonus(t) for t in (0, 100, 150, 200, 500))
    (0.0, 0.0, 4.0, 8.0, 8.0)
    >>> import numpy as np
    >>> bonus(np.array([150, 300])).tolist()
    [4.0, 8.0]
    """

    t0: float
    t1: float
    bonus: float

    def __post_init__(self) -> None:
        if self.t1 < self.t0:
            raise ValueError(f"an alive bonus should have t0 <= t1, not t0={self.t0} and t1={self.t1}")

    @classmethod
    def from_schedule(cls, schedule: AliveBonus | Sequence[float] | None) -> AliveBonus:
        """From `(t0, t1, bonus)`, from `(t, bonus)` (full at once from t on), from None (no bonus), or itself.

        >>> AliveBonus.from_schedule((100, 8.0))
        AliveBonus(t0=100, t1=100, bonus=8.0)
        """
        if isinstance(schedule, AliveBonus):
            return schedule
        if schedule is None:
            return cls(0, 0, 0.0)
        if len(schedule) not in (2, 3):
            raise ValueError(f"an alive bonus should be (t0, t1, bonus) or (t, bonus), not {schedule!r}")
        return cls(schedule[0], schedule[-2], schedule[-1])

    def __call__(self, t: Any) -> Any:
        """The bonus at step `t` of the episode: a float for a number; like `t`, floating, for an array or a tensor."""
        if self.t0 == self.t1:
            fraction = (t >= self.t0) * 1.0
        else:
            fraction = (t - self.t0) / (self.t1 - self.t0)
            fraction = fraction.clip(0.0, 1.0) if hasattr(fraction, "clip") else min(max(fraction, 0.0), 1.0)
        return fraction * self.bonus


def alive_bonus(t: Any, schedule: AliveBonus | Sequence[float] | None) -> Any:
    """The bonus that `schedule` (see `AliveBonus.from_schedule`) gives at step `t`, a number, an array or a tensor of
    steps.

    >>> alive_bonus(150, (100, 200, 8.0))
    4.0
    """
    return AliveBonus.from_schedule(schedule)(t)
