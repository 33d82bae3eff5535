"""Times every transform of vecrl beside TorchRL's: `python -m benchmarks.transforms [--only NAME] [--markdown PAGE]`.

One row per transform, in a single environment and in a batch of 64. See
`benchmarks.implementations.on_tensordict_transforms` for what is timed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import report
from benchmarks.environments import python_of, versions_of
from benchmarks.harness import Implementation, Result, compete, foreign_load
from benchmarks.implementations.on_tensordict_transforms import ROWS
from benchmarks.records import OURS

SIZES = (1, 64)
ENVIRONMENTS = {OURS: "main", "torchrl": "torchrl-vision"}
REASONS = {
    "BatchSizeTransform": "it also reshapes the input of each step; the time of both is about equal",
    "FrameSkipTransform": "most of its time is the repeated step itself, which is about equal",
    "RandomCropTensorDict": "it takes all entries by one index per row and step, which is slower for many short rows",
}
"""Why a transform may take longer than TorchRL's."""


def main(argv: Sequence[str] | None = None) -> None:
    """Times the selected transforms, prints a row for each, and writes the page."""
    options = _parser().parse_args(argv)
    names = [name for name in ROWS if not options.only or any(part.lower() in name.lower() for part in options.only)]
    print(report.machine(), "load average", os.getloadavg(), f"cores busy now {foreign_load():.1f}", flush=True)
    lines, most_load = [], 0.0
    for name in names:
        cells: list[str] = []
        for size in SIZES:
            results = _compete(name, size, options.rounds, options.seconds)
            cells += report.compared_cells(
                *results, digits=1, least=1.0
            )  # one that costs less than 1 µs counts as 1 µs
            most_load = max([most_load, *(load for result in results for load in result.loads)])
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if options.markdown:
        options.markdown.write_text(_page(lines, most_load))


def _compete(name: str, size: int, rounds: int, seconds: float) -> list[Result]:
    entry = "on_tensordict_transforms:transformed"
    implementations = [
        (
            Implementation(library, environment, entry, {"library": library, "transform": name, "num_envs": size}),
            python_of(environment),
        )
        for library, environment in ENVIRONMENTS.items()
    ]
    return compete(implementations, {}, rounds, seconds)


def _page(lines: Sequence[str], load: float) -> str:
    versions = versions_of(ENVIRONMENTS["torchrl"])
    slower = [name for name in REASONS if any(f"`{name}`" in line and "**" in line for line in lines)]
    return "\n".join(
        [
            "# Benchmarks of transforms",
            "",
            f"Made by `python -m benchmarks.transforms` on {datetime.now(UTC):%Y-%m-%d}. {report.machine()}",
            f"TorchRL {versions['torchrl']}, torch {versions['torch']}; other programs used at most {load:.1f} cores.",
            "",
            "Each row is the time in microseconds that a step of a cheap environment takes longer under one transform,",
            "`TransformedEnv` included; for `gSDENoise` and `NoopResetEnv` a reset, and for transforms of stored data",
            "a call with 32 steps. A ratio above 1 means that vecrl takes less time; ratios below 1 are bold.",
            "",
            "| transform | vecrl, single | TorchRL | ratio | vecrl, 64 rows | TorchRL | ratio |",
            "|---|---|---|---|---|---|---|",
            *lines,
            *(["", "Slower, and why:", "", *(f"- `{name}`: {REASONS[name]}" for name in slower)] if slower else []),
            "",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transforms", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="transforms with this in their name; repeatable")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="approximate duration of a turn")
    parser.add_argument("--markdown", type=Path, help="write the page to this file")
    return parser


if __name__ == "__main__":
    main()
