"""The command line: selects workloads, builds their environments, runs them and writes the results."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import report
from benchmarks.environments import BuildError, python_of, versions_of
from benchmarks.harness import Implementation, Result, compete, foreign_load
from benchmarks.records import OURS, Target, Workload
from benchmarks.workloads import workloads


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the selected workloads; returns 1 if an implementation failed, else 0. A missed target is no failure."""
    options = _parser().parse_args(argv)
    chosen = [_with_implementations(w, options.implementations) for w in _select(options.only, options.quick)]
    if options.against:
        chosen = [_with_other_checkout(w, _source(options.against)) for w in chosen]
    if options.list:
        print("\n".join(f"{w.name:24} {w.title}" for w in chosen))
        return 0
    if not chosen:
        names = ", ".join(w.name for w in workloads())
        print(f"Expected part of a workload's name, got {options.only!r}. There are: {names}", file=sys.stderr)
        return 2
    rounds, seconds = (2, 0.1) if options.quick else (options.rounds, options.seconds)
    results = report.RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl"
    print(report.machine(), "load average", os.getloadavg(), f"cores busy now {foreign_load():.1f}", flush=True)
    versions, outcomes = {}, []
    for workload in chosen:
        start = time.perf_counter()
        outcome = workload, _run(workload, versions, min(rounds, workload.rounds or rounds), seconds)
        outcomes.append(outcome)
        report.write_lines(results, outcome, versions)
        print("\n".join(report.summary(outcome)), f"\n  ({time.perf_counter() - start:.0f} s)", flush=True)
    if options.beside:
        outcomes = report.with_earlier(outcomes, options.beside, versions)
    page = report.markdown(outcomes, versions, " ".join(["python -m benchmarks", *(argv or sys.argv[1:])]))
    results.with_suffix(".md").write_text(page)
    if options.markdown:
        options.markdown.write_text(page)
        options.markdown.with_name(report.TARGETS).write_text(report.targets_markdown(outcomes))
    print(f"written: {results} and {results.with_suffix('.md').name}")
    return int(any(r.error for _, rs in outcomes for r in rs))


def _run(workload: Workload, versions: dict[str, dict[str, str]], rounds: int, seconds: float) -> list[Result]:
    ready: list[tuple[Implementation, Path]] = []
    failed: list[Result] = []
    for implementation in workload.implementations:
        name = implementation.environment
        try:
            ready.append((implementation, python_of(name)))
            if name not in versions:
                versions[name] = versions_of(name)
        except BuildError as error:
            failed.append(Result(implementation.name, name, error=str(error)))
    return compete(ready, workload.parameters, rounds, seconds) + failed


def _select(only: Sequence[str], quick: bool) -> list[Workload]:
    return [w for w in workloads() if (not only or any(o in w.name for o in only)) and (w.quick or not quick)]


def _with_implementations(workload: Workload, names: Sequence[str]) -> Workload:
    """Returns the workload with the implementations that have one of `names` in their name; all if `names` is empty."""
    saved = [c for c in workload.implementations if not names or any(n.lower() in c.name.lower() for n in names)]
    return replace(workload, implementations=saved)


def _with_other_checkout(workload: Workload, source: Path) -> Workload:
    """Returns the workload with vecrl's implementations only, each also with the vecrl of `source`, and the parts."""
    saved = []
    for implementation in workload.implementations:
        if implementation.name.startswith(OURS):
            other = replace(implementation, name=implementation.name + report.AGAINST, source=source)
            saved += [implementation, other]
        elif implementation.name in workload.parts:
            saved.append(implementation)
    alone = [target for target in workload.targets if not isinstance(target, Target)]
    return replace(workload, implementations=saved, targets=alone)


def _source(path: Path) -> Path:
    """Returns the folder that contains the package, for a checkout or its `src`."""
    found = next((p for p in (path / "src", path) if (p / "vecrl" / "__init__.py").is_file()), None)
    if found is None:
        raise SystemExit(f"Expected a checkout of vecrl or its src folder at {path}, got neither. Give --against one.")
    return found.resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Times vecrl and other libraries.")
    parser.add_argument("--only", action="append", default=[], help="workloads with this in their name; repeatable")
    parser.add_argument(
        "--implementations", nargs="+", default=[], help="only implementations with one of these in their name"
    )
    parser.add_argument("--quick", action="store_true", help="one size of each, two short rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="approximate duration of a turn")
    parser.add_argument("--markdown", type=Path, help=f"write the page here, and {report.TARGETS} beside it")
    parser.add_argument("--beside", type=Path, help="results (.jsonl) of an earlier run, for the workloads not run now")
    parser.add_argument("--against", type=Path, help="another checkout of vecrl, timed in turn with this one")
    parser.add_argument("--list", action="store_true", help="only list the workloads")
    return parser


if __name__ == "__main__":
    sys.exit(main())
