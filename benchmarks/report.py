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

REPORT_FOLDER = Path(__file__).resolve().parent
RESULTS = REPORT_FOLDER / "results"
TARGETS = "benchmark-targets.md"
Outcome = tuple[Workload, Sequence[Result]]
AGAINST = ", against"
"""Suffix of the name of an implementation that imports vecrl from another checkout."""


def write_lines(path: Path, outcome: Outcome, versions: Mapping[str, Mapping[str, str]]) -> None:
    """Appends one JSON line per result."""
    workload, results = outcome
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as out:
        for result in results:
            line = {
                "workload": workload.name,
                "contestant": result.implementation,
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
    """Returns these outcomes and, for other workloads, those that an earlier run wrote to `path`."""
    earlier_results: dict[str, list[Result]] = {}
    environments = {(w.name, c.name): c.environment for w in workloads() for c in w.implementations}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        environment = environments.get((entry["workload"], entry["contestant"]))
        if environment is None:  # it was removed from the workloads
            continue
        micros = [] if entry["median_us"] is None else [entry["min_us"], entry["median_us"], entry["median_us"]]
        result = Result(entry["contestant"], environment, micros, [entry["load"]], entry["error"] or "")
        earlier_results.setdefault(entry["workload"], []).append(result)
        versions.setdefault(environment, entry["versions"])
    now = {outcome[0].name: outcome for outcome in outcomes}
    return [
        now.get(w.name) or (w, earlier_results[w.name])
        for w in workloads()
        if w.name in now or w.name in earlier_results
    ]


def beyond(result: Result, outcome: Outcome) -> float | None:
    """Returns microseconds per row beyond the parts, median over the rounds; None if a part's result is missing."""
    workload, results = outcome
    parts = [r.micros for r in results if r.implementation in workload.parts]
    if not parts or len(parts) < len(workload.parts) or {len(p) for p in parts} != {len(result.micros)}:
        return None
    remaining = [micros - sum(others) for micros, *others in zip(result.micros, *parts, strict=True)]
    return statistics.median(remaining) / workload.rows if remaining else None


def compare_checkouts(result: Result, results: Sequence[Result]) -> str | None:
    """Returns the ratio of the times of the other checkout and this one, over the rounds; None if it was not run."""
    expected = next((r for r in results if r.implementation == result.implementation + AGAINST), None)
    if expected is None or not expected.micros or len(expected.micros) != len(result.micros):
        return None
    ratios = [other / actual for actual, other in zip(result.micros, expected.micros, strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def evaluate_targets(target: Target | Limit | Beyond, outcome: Outcome) -> tuple[str, bool | None]:
    """Returns the target and the result as text, and whether the target is met: None if a result is missing."""
    workload, results = outcome
    unit = workload.unit
    if isinstance(target, Beyond):
        actual = next((r for r in results if r.implementation == OURS), None)
        seen = None if actual is None else beyond(actual, outcome)
        target_text = f"≤ {target.most:g} µs beyond {' and '.join(workload.parts)}"
        return (target_text, None) if seen is None else (f"{seen:.1f} µs of {target_text}", seen <= target.most)
    medians = {r.implementation: r.median for r in results if r.micros}
    actual = medians.get(OURS)
    if isinstance(target, Limit):
        if actual is None:
            return f"≤ {target.most:.4g}{unit}", None
        return f"{actual / 1e6:.3g}{unit} of ≤ {target.most:.4g}{unit}", actual / 1e6 <= target.most
    peers = {name: medians[name] / target.scale for name in target.rivals if name in medians}
    times = f"{target.scale:g} × " if target.scale != 1 else ""
    target_text = f"≥ {target.at_least:g} × {times}{'the best of ' if len(target.rivals) > 1 else ''}"
    if actual is None or not peers:
        return target_text + ", ".join(target.rivals), None
    best = min(peers, key=peers.__getitem__)
    ratio = peers[best] / actual
    is_met = ratio >= target.at_least
    named = f"{best}" if len(target.rivals) == 1 else f"its rivals ({best})"
    return f"{ratio:.2f} of {target_text}{named}", is_met if len(peers) == len(target.rivals) or not is_met else None


def markdown(outcomes: Sequence[Outcome], versions: Mapping[str, Mapping[str, str]], command: str) -> str:
    """Returns the page of times."""
    load = max((load for _, results in outcomes for r in results for load in r.loads), default=0.0)
    lines = [
        "# Benchmarks",
        "",
        "![vecrl beside other libraries](assets/bars.svg)",
        "",
        f"Made by `{command}` on {datetime.now(UTC):%Y-%m-%d}. {machine()}",
        "",
        "Every implementation of a workload runs in its own process, with one thread per process. They take turns for",
        "several rounds; the others are stopped meanwhile. A time is the median over the rounds. Other programs used",
        f"at most {load:.1f} cores. A ratio is an implementation's time divided by vecrl's: above 1, vecrl is faster.",
        "",
        f"[Targets]({TARGETS}) has what was aimed at, what was missed, and why.",
        "",
        "## Times",
        *(line for outcome in outcomes for line in _times(*outcome)),
        "",
        "## Versions",
        "",
        *(f"- {name}: {', '.join(f'{p} {v}' for p, v in packages.items())}" for name, packages in versions.items()),
    ]
    return "\n".join(lines) + "\n"


def targets_markdown(outcomes: Sequence[Outcome]) -> str:
    """Returns the page of targets, with the notes on those that are missed."""
    verdicts = [
        (w, text, is_met)
        for w, results in outcomes
        for t in w.targets
        for text, is_met in [evaluate_targets(t, (w, results))]
    ]
    lines = [
        "# Targets of the benchmarks",
        "",
        "Of the last runs of [Benchmarks](benchmarks.md), which says how they are measured.",
        "",
        "| workload | reached | |",
        "|---|---|---|",
        *(f"| {w.name} | {text} | {_describe_target(is_met)} |" for w, text, is_met in verdicts),
        "",
        *(REPORT_FOLDER / "notes.md").read_text().splitlines(),
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Returns one sentence that describes the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({model}), Python {platform.python_version()}, {platform.system()}."


def _describe_target(is_met: bool | None) -> str:
    return {True: "held", False: "**missed**", None: "not measured"}[is_met]


def _times(workload: Workload, results: Sequence[Result]) -> list[str]:
    actual = next((r.median for r in results if r.implementation == OURS and r.micros), None)
    efficient = workload.core_micros > 0
    micro = workload.unit == " s"
    head = ["implementation", "µs a unit" if micro else "taken", "fastest", *(["steps/s"] if micro else []), "ratio"]
    head += ["of two cores"] if efficient else []
    head += ["µs a step beyond"] if workload.parts else []
    lines = ["", f"### {workload.name}", "", workload.title + ".", ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for r in results:
        if not r.micros:
            lines.append(
                f"| {r.implementation} | failed: {r.error.strip().splitlines()[-1][:120]} |{' |' * (len(head) - 2)}"
            )
            continue
        cells = [r.implementation, *(_format_number(value, workload) for value in (r.median, min(r.micros)))]
        if micro:
            cells.append(f"{workload.rows / r.median * 1e6:,.0f}")
        cells.append(f"{r.median / actual:.2f}" if actual else "")
        if efficient:
            cells.append(f"{workload.core_micros / (2 * r.median):.2f}")
        if workload.parts:
            cells.append(_rest(r, (workload, results)))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _rest(result: Result, outcome: Outcome) -> str:
    more = None if result.implementation in outcome[0].parts else beyond(result, outcome)
    return "" if more is None else f"{more:,.1f}"


def _format_number(micros: float, workload: Workload) -> str:
    return f"{micros:,.1f}" if workload.unit == " s" else f"{micros / 1e6:.3g}{workload.unit}"


def summary(outcome: Outcome) -> list[str]:
    """Returns some lines for the terminal."""
    workload, results = outcome
    lines = [f"\n{workload.name}: {workload.title}"]
    for r in results:
        shown = [_format_number(value, workload) for value in (r.median, min(r.micros))] if r.micros else []
        text = f"{shown[0]:>12}  (fastest {shown[1]})" if shown else f"FAILED: {r.error}"
        if more := _rest(r, outcome):
            text += f"  {more} µs a step beyond the parts"
        if ratio := compare_checkouts(r, results):
            text += f"  against: × {ratio}"
        lines.append(f"  {r.implementation:28} {text}")
    for target in workload.targets:
        text, is_met = evaluate_targets(target, outcome)
        lines.append(f"  -> {text}: {_describe_target(is_met)}")
    return lines


def compared_cells(ours: Result, theirs: Result, digits: int = 0, least: float = 0.0) -> list[str]:
    """Returns the cells of a row that compares two implementations: both times, and how many times ours is faster.

    Args:
        ours, theirs: the results; the last line of an error is printed.
        digits: digits of times after the point.
        least: the microseconds that a shorter time counts as in the ratio.
    """
    for result in (ours, theirs):
        if result.error:
            print(f"  {result.implementation}: {result.error.splitlines()[-1]}", flush=True)
    times = [f"{result.median:,.{digits}f}" if result.micros else "fails" for result in (ours, theirs)]
    if not (ours.micros and theirs.micros):
        return [*times, ""]
    ratio = max(theirs.median, least) / max(ours.median, least)
    return [*times, f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**"]
