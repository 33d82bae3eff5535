"""What a workload is, and what vecrl must reach in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import Implementation as C

OURS = "vecrl"


@dataclass(frozen=True, slots=True)
class Target:
    """vecrl must be `at_least` times as fast as the best of `rivals`, each counted as `scale` times as fast."""

    rivals: tuple[str, ...]
    at_least: float
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """vecrl must take no more than this, in the workload's unit."""

    most: float


@dataclass(frozen=True, slots=True)
class Beyond:
    """vecrl must take no more than this beyond the workload's parts: microseconds a row."""

    most: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A piece of work.

    Attributes:
        name: what `--only` matches.
        title: what a unit of it is, for the table.
        implementations: the libraries that do it, vecrl first if it is one of them.
        parameters: keyword arguments of every contestant's function.
        targets: what vecrl must reach.
        rows: environment steps (or rows) in a unit.
        core_micros: microseconds of a core that a unit must take whatever the library does, for the efficiency.
        rounds: how many turns each has, where the usual number would take too long.
        quick: whether `--quick` runs it.
        unit: what is measured, as written behind a number.
        parts: contestants that do a part of the work by itself (the policy, the simulator). What the others take
            beyond their sum is reported.
    """

    name: str
    title: str
    implementations: Sequence[C]
    parameters: dict[str, Any] = field(default_factory=dict)
    targets: Sequence[Target | Limit | Beyond] = ()
    rows: int = 1
    core_micros: float = 0.0
    rounds: int | None = None
    quick: bool = False
    unit: str = " s"
    parts: tuple[str, ...] = ()
