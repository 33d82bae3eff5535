"""Results as JSON lines and as a Markdown table: ratios, targets, and whether they hold."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import Result
from benchmarks.records import OURS, Beyond, Limit, Target, Workload
from benchmarks.workloads import workloads

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
Outcome = tuple[Workload, Sequence[Result]]
AGAINST = ", against"
"""Behind the name of a contestant that imports another checkout's vecrl."""


def write_lines(path: Path, outcome: Outcome, versions: Mapping[str, Mapping[str, str]]) -> None:
    """Add one JSON line a result."""
    workload, results = outcome
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as out:
        for result in results:
            line = {
                "workload": workload.name,
                "contestant": result.contestant,
                "versions": versions.get(result.environment, {}),
                "median_us": round(result.median, 3) if result.micros else None,
                "min_us": round(min(result.micros), 3) if result.micros else None,
                "n": len(result.micros),
                "load": round(max(result.loads, default=0.0), 2),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "error": result.error or None,
            }
            print(json.dumps(line), file=out)


def with_earlier(outcomes: Sequence[Outcome], path: Path, versions: dict[str, dict[str, str]]) -> list[Outcome]:
    """These outcomes and, of the workloads that are not among them, those that an earlier run wrote to `path`."""
    found: dict[str, list[Result]] = {}
    environments = {(w.name, c.name): c.environment for w in workloads() for c in w.contestants}
    for line in path.read_text().splitlines():
        said = json.loads(line)
        environment = environments.get((said["workload"], said["contestant"]))
        if environment is None:  # nobody runs it any more
            continue
        micros = [] if said["median_us"] is None else [said["min_us"], said["median_us"], said["median_us"]]
        result = Result(said["contestant"], environment, micros, [said["load"]], said["error"] or "")
        found.setdefault(said["workload"], []).append(result)
        versions.setdefault(environment, said["versions"])
    now = {outcome[0].name: outcome for outcome in outcomes}
    return [now.get(w.name) or (w, found[w.name]) for w in workloads() if w.name in now or w.name in found]


def beyond(result: Result, outcome: Outcome) -> float | None:
    """Microseconds a row beyond the parts, median over the rounds; None where a part's result is missing."""
    workload, results = outcome
    parts = [r.micros for r in results if r.contestant in workload.parts]
    if not parts or len(parts) < len(workload.parts) or {len(p) for p in parts} != {len(result.micros)}:
        return None
    rest = [micros - sum(others) for micros, *others in zip(result.micros, *parts, strict=True)]
    return statistics.median(rest) / workload.rows if rest else None


def compared(result: Result, results: Sequence[Result]) -> str | None:
    """How long another checkout takes in relation to this one, round by round; None where it was not run."""
    theirs = next((r for r in results if r.contestant == result.contestant + AGAINST), None)
    if theirs is None or not theirs.micros or len(theirs.micros) != len(result.micros):
        return None
    ratios = [other / ours for ours, other in zip(result.micros, theirs.micros, strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def judged(target: Target | Limit | Beyond, outcome: Outcome) -> tuple[str, bool | None]:
    """What was asked and seen, as text, and whether it holds: None where a result is missing."""
    workload, results = outcome
    unit = workload.unit
    if isinstance(target, Beyond):
        ours = next((r for r in results if r.contestant == OURS), None)
        seen = None if ours is None else beyond(ours, outcome)
        said = "" if seen is None else f"{seen:.1f} µs of "
        return f"{said}≤ {target.most:g} µs beyond {' and '.join(workload.parts)}", seen and seen <= target.most
    medians = {r.contestant: r.median for r in results if r.micros}
    ours = medians.get(OURS)
    if isinstance(target, Limit):
        if ours is None:
            return f"≤ {target.most:.4g}{unit}", None
        return f"{ours / 1e6:.3g}{unit} of ≤ {target.most:.4g}{unit}", ours / 1e6 <= target.most
    rivals = {name: medians[name] / target.scale for name in target.rivals if name in medians}
    times = f"{target.scale:g} × " if target.scale != 1 else ""
    asked = f"≥ {target.at_least:g} × {times}{'the best of ' if len(target.rivals) > 1 else ''}"
    if ours is None or not rivals:
        return asked + ", ".join(target.rivals), None
    best = min(rivals, key=rivals.__getitem__)
    ratio = rivals[best] / ours
    held = ratio >= target.at_least
    named = f"{best}" if len(target.rivals) == 1 else f"its rivals ({best})"
    return f"{ratio:.2f} of {asked}{named}", held if len(rivals) == len(target.rivals) or not held else None


def markdown(outcomes: Sequence[Outcome], versions: Mapping[str, Mapping[str, str]], command: str) -> str:
    """The whole page."""
    verdicts = [
        (w, text, held) for w, results in outcomes for t in w.targets for text, held in [judged(t, (w, results))]
    ]
    load = max((load for _, results in outcomes for r in results for load in r.loads), default=0.0)
    lines = [
        "# Benchmarks",
        "",
        f"Made by `{command}` on {datetime.now(UTC):%Y-%m-%d}. {machine()}",
        "",
        "Every contestant of a workload runs in a process of its own with one thread a process, and they take turns,",
        "round after round; those that wait are stopped. A time is the median over the rounds. Other programs took at",
        f"most {load:.1f} cores meanwhile. A ratio is a contestant's time over vecrl's: above 1, vecrl is the faster.",
        "",
        "## Targets",
        "",
        "| workload | reached | |",
        "|---|---|---|",
        *(f"| {w.name} | {text} | {_verdict(held)} |" for w, text, held in verdicts),
        "",
        *(HERE / "notes.md").read_text().splitlines(),
        "",
        "## Times",
        *(line for outcome in outcomes for line in _times(*outcome)),
        "",
        "## Versions",
        "",
        *(f"- {name}: {', '.join(f'{p} {v}' for p, v in found.items())}" for name, found in versions.items()),
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """One sentence about where this runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({model}), Python {platform.python_version()}, {platform.system()}."


def _verdict(held: bool | None) -> str:
    return {True: "held", False: "**missed**", None: "not measured"}[held]


def _times(workload: Workload, results: Sequence[Result]) -> list[str]:
    ours = next((r.median for r in results if r.contestant == OURS and r.micros), None)
    efficient = workload.core_micros > 0
    micro = workload.unit == " s"
    head = ["contestant", "µs a unit" if micro else "taken", "fastest", *(["steps/s"] if micro else []), "ratio"]
    head += ["of two cores"] if efficient else []
    head += ["µs a step beyond"] if workload.parts else []
    lines = ["", f"### {workload.name}", "", workload.title + ".", ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for r in results:
        if not r.micros:
            lines.append(
                f"| {r.contestant} | failed: {r.error.strip().splitlines()[-1][:120]} |{' |' * (len(head) - 2)}"
            )
            continue
        cells = [r.contestant, *(_shown(value, workload) for value in (r.median, min(r.micros)))]
        if micro:
            cells.append(f"{workload.rows / r.median * 1e6:,.0f}")
        cells.append(f"{r.median / ours:.2f}" if ours else "")
        if efficient:
            cells.append(f"{workload.core_micros / (2 * r.median):.2f}")
        if workload.parts:
            cells.append(_rest(r, (workload, results)))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rest(result: Result, outcome: Outcome) -> str:
    more = None if result.contestant in outcome[0].parts else beyond(result, outcome)
    return "" if more is None else f"{more:,.1f}"


def _shown(micros: float, workload: Workload) -> str:
    return f"{micros:,.1f}" if workload.unit == " s" else f"{micros / 1e6:.3g}{workload.unit}"


def summary(outcome: Outcome) -> list[str]:
    """A few lines for the terminal."""
    workload, results = outcome
    lines = [f"\n{workload.name}: {workload.title}"]
    for r in results:
        shown = [_shown(value, workload) for value in (r.median, min(r.micros))] if r.micros else []
        said = f"{shown[0]:>12}  (fastest {shown[1]})" if shown else f"FAILED: {r.error}"
        if more := _rest(r, outcome):
            said += f"  {more} µs a step beyond the parts"
        if ratio := compared(r, results):
            said += f"  against: × {ratio}"
        lines.append(f"  {r.contestant:28} {said}")
    for target in workload.targets:
        text, held = judged(target, outcome)
        lines.append(f"  -> {text}: {_verdict(held)}")
    return lines
