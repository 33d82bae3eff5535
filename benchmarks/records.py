"""Records of workloads and of the targets for vecrl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """vecrl must take no more than this beyond the workload's parts: microseconds per row."""

    most: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A piece of work.

    Attributes:
        name: the name that `--only` matches.
        title: the description of a unit, for the table.
        implementations: the libraries that do it, vecrl first if it is one of them.
        parameters: keyword arguments of every implementation's function.
        targets: the targets for vecrl.
        rows: environment steps (or rows) in a unit.
        core_micros: microseconds of a core that a unit takes with any library, for the efficiency.
        rounds: the number of rounds, if the default would take too long.
        quick: whether `--quick` runs it.
        unit: the unit of measurement, as written after a number.
        parts: implementations of a part of the work (the policy, the simulator). The report contains the time of the
            others minus the sum of the parts.
    """

    name: str
    title: str
    implementations: Sequence[C]
    parameters: dict[str, object] = field(default_factory=dict)
    targets: Sequence[Target | Limit | Beyond] = ()
    rows: int = 1
    core_micros: float = 0.0
    rounds: int | None = None
    quick: bool = False
    unit: str = " s"
    parts: tuple[str, ...] = ()
