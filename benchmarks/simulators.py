"""Times environments of simulators: `python -m benchmarks.simulators [--only NAME] [--markdown PAGE]`.

Each is stepped singly, in a batch and over 2 workers, through vecrl's and TorchRL's environments over TensorDicts; and
by vecrl's vector environment beside the simulator's own batch, if it has one.
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
from benchmarks.implementations.on_simulators import TASKS
from benchmarks.records import OURS

BATCH = 64
FORMS = {"single": 1, "batch": BATCH, "workers": 8}
"""The number of environments of each form."""


def main(argv: Sequence[str] | None = None) -> None:
    """Times the selected tasks, prints a row for each, and writes the page."""
    options = _parser().parse_args(argv)
    names = [name for name in TASKS if not options.only or any(part.lower() in name.lower() for part in options.only)]
    print(report.machine(), "load average", os.getloadavg(), f"cores busy now {foreign_load():.1f}", flush=True)
    lines, most_load = [], 0.0
    for name in names:
        [alone] = _compete("alone", {"task": name}, ("own",), options)
        cells = [f"{alone.median:,.0f}" if alone.micros else "fails"]
        for form, num_envs in FORMS.items() if TASKS[name].make else ():
            parameters = {"task": name, "form": form, "num_envs": num_envs}
            results = _compete("tensordicts", parameters, (OURS, "torchrl"), options)
            cells += report.compared_cells(*results)
            most_load = max([most_load, *(load for result in results for load in result.loads)])
        cells += [] if TASKS[name].make else [""] * 3 * len(FORMS)
        if TASKS[name].bare:
            parameters = {"task": name, "num_envs": BATCH}
            cells += report.compared_cells(
                *_compete("vector", parameters, (OURS,), options), *_compete("bare", parameters, ("own",), options)
            )
        else:
            cells += ["", "", ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if options.markdown:
        options.markdown.write_text(_page(lines, most_load))


def _compete(
    function: str, parameters: dict[str, object], libraries: Sequence[str], options: argparse.Namespace
) -> list[Result]:
    python = python_of("simulators")
    implementations = [
        (
            Implementation(
                library,
                "simulators",
                f"on_simulators:{function}",
                parameters | ({"library": library} if function == "tensordicts" else {}),
            ),
            python,
        )
        for library in libraries
    ]
    return compete(implementations, {}, options.rounds, options.seconds)


def _page(lines: Sequence[str], load: float) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in versions_of("simulators").items())
    return "\n".join(
        [
            "# Benchmarks of simulators",
            "",
            f"Made by `python -m benchmarks.simulators` on {datetime.now(UTC):%Y-%m-%d}. {report.machine()}",
            f"{versions}; other programs used at most {load:.1f} cores.",
            "",
            'Times are microseconds of one step of all environments with random actions. "Alone" is one environment',
            "of the simulator, without vecrl or TorchRL. Environments over",
            f"TensorDicts are stepped singly, in a batch of {BATCH}, and 8 over 2 workers (TorchRL: in 8 processes;",
            "batched simulators in 2 on both sides). The last columns are vecrl's vector environment and the",
            f"simulator's own batch, both of {BATCH} rows. A ratio above 1 means that vecrl takes less time; ratios",
            "below 1 are bold.",
            "",
            "| task | alone | vecrl, single | TorchRL | ratio | vecrl, batch | TorchRL | ratio | vecrl, workers "
            "| TorchRL | ratio | vecrl, vector | own | ratio |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulators", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="tasks with this in their name; repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate duration of a turn")
    parser.add_argument("--markdown", type=Path, help="write the page to this file")
    return parser


if __name__ == "__main__":
    main()
