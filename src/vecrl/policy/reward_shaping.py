"""Reward shaping for populations: a bonus for each step without termination. This module knows only numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AliveBonus:
    """A bonus per step: 0 before step `t0` of the episode, linear from `t0` to `t1`, and constant after `t1`.

    Attributes:
        t0: the step of an episode from which the bonus grows.
        t1: the step from which the bonus is constant; with `t0 == t1` it has no linear part.
        bonus: the constant bonus.

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
            raise ValueError(f"Expected an alive bonus with t0 <= t1, got t0={self.t0} and t1={self.t1}.")

    @classmethod
    def from_schedule(cls, schedule: AliveBonus | Sequence[float] | None) -> AliveBonus:
        """Makes a bonus from `(t0, t1, bonus)`, `(t, bonus)` (constant from t) or None (no bonus).

        An `AliveBonus` is returned unchanged.

        >>> AliveBonus.from_schedule((100, 8.0))
        AliveBonus(t0=100, t1=100, bonus=8.0)
        """
        if isinstance(schedule, AliveBonus):
            return schedule
        if schedule is None:
            return cls(0, 0, 0.0)
        if len(schedule) not in (2, 3):
            raise ValueError(f"Expected an alive bonus (t0, t1, bonus) or (t, bonus), got {schedule!r}.")
        return cls(schedule[0], schedule[-2], schedule[-1])

    def __call__(self, t: Any) -> Any:
        """Returns the bonus at step `t` of the episode: a float for a number, floats of its shape for an array or
        tensor."""
        if self.t0 == self.t1:
            fraction = (t >= self.t0) * 1.0
        else:
            fraction = (t - self.t0) / (self.t1 - self.t0)
            fraction = fraction.clip(0.0, 1.0) if hasattr(fraction, "clip") else min(max(fraction, 0.0), 1.0)
        return fraction * self.bonus


def alive_bonus(t: Any, schedule: AliveBonus | Sequence[float] | None) -> Any:
    """Returns the bonus of `schedule` (see `AliveBonus.from_schedule`) at step `t`, a number, an array or a tensor.

    >>> alive_bonus(150, (100, 200, 8.0))
    4.0
    """
    return AliveBonus.from_schedule(schedule)(t)
