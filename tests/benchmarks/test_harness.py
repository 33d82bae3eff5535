"""The order of measurements, failing implementations, and the report of the targets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.harness import Implementation, Process, Result, compete
from benchmarks.records import Beyond, Limit, Target, Workload
from benchmarks.workloads import workloads

from benchmarks import report

LOOP = Implementation("loop", "main", "by_hand:loop_cartpole")
ONCE = Implementation("once", "main", "by_hand:loop_cartpole", fresh=True)
WRONG = Implementation("wrong", "main", "by_hand:loop_cartpole", {"color": "red"})


def test_implementations_take_turns_and_a_failure_does_not_stop_others():
    python = Path(sys.executable)
    results = compete([(c, python) for c in (LOOP, WRONG, ONCE)], {"num_envs": 1}, rounds=2, seconds=0.01)
    by_name = {r.implementation: r for r in results}
    assert [len(by_name[name].micros) for name in ("loop", "once", "wrong")] == [2, 2, 0]
    assert all(us > 0 for us in by_name["loop"].micros + by_name["once"].micros)
    assert all(load >= 0 for load in by_name["loop"].loads)
    assert "color" in by_name["wrong"].error


def test_new_implementations_warm_up_when_turns_are_long(monkeypatch):
    asked: list[int] = []
    run = Process.run
    monkeypatch.setattr(Process, "run", lambda self, units: (asked.append(units), run(self, units))[1])
    long = Implementation("long", "main", "by_hand:loop_cartpole", fresh=True, units=3)
    (result,) = compete([(long, Path(sys.executable))], {"num_envs": 1}, rounds=2, seconds=0.01)
    assert asked == [3, 3] * 2
    assert len(result.micros) == 2


def _results(**medians: float) -> list[Result]:
    return [Result(name, "main", [us], [0.0]) for name, us in medians.items()]


@pytest.mark.parametrize(
    ("target", "held"),
    [
        (Target(("slow",), 4.0), True),
        (Target(("slow",), 4.1), False),
        (Target(("slow", "fast"), 1.0), False),
        (Target(("slow",), 2.1, scale=2.0), False),
        (Target(("slow",), 2.0, scale=2.0), True),
        (Target(("slow", "absent"), 4.0), None),
        (Target(("absent",), 1.0), None),
        (Limit(10e-6), True),
        (Limit(9e-6), False),
    ],
)
def test_targets_compare_with_the_best_other_implementation(target, held):
    assert (
        report.evaluate_targets(target, (Workload("w", "some work", []), _results(vecrl=10, slow=40, fast=5)))[1]
        is held
    )


def test_results_are_written_as_lines_and_as_a_table(tmp_path):
    workload = Workload("w", "some work", [], targets=[Target(("slow",), 2.0)], rows=8, core_micros=40)
    failed = Result("broken", "main", error="Traceback\nKeyError: 'x'")
    outcome = workload, [*_results(vecrl=40, slow=60), failed]
    versions = {"main": {"vecrl": "0.1"}}
    report.write_lines(tmp_path / "deep" / "r.jsonl", outcome, versions)
    lines = [json.loads(line) for line in (tmp_path / "deep" / "r.jsonl").read_text().splitlines()]
    assert [(line["contestant"], line["median_us"], line["n"]) for line in lines] == [
        ("vecrl", 40, 1),
        ("slow", 60, 1),
        ("broken", None, 0),
    ]
    page = report.markdown([outcome], versions, "make bench")
    assert "| w | 1.50 of ≥ 2 × slow | **missed** |" in report.targets_markdown([outcome])
    assert "missed**" not in page
    assert "| slow | 60.0 | 60.0 | 133,333 | 1.50 | 0.33 |" in page
    assert "KeyError: 'x'" in page
    assert "vecrl 0.1" in page


def test_results_of_an_earlier_run_fill_gaps(tmp_path):
    first, second = workloads()[:2]
    versions = {"main": {"vecrl": "0.1"}}
    for workload in (first, second):
        report.write_lines(tmp_path / "r.jsonl", (workload, _results(vecrl=40)), versions)
    versions = {}
    outcomes = report.with_earlier([(second, _results(vecrl=50))], tmp_path / "r.jsonl", versions)
    assert [(workload.name, results[0].median) for workload, results in outcomes] == [
        (first.name, 40),
        (second.name, 50),
    ]
    assert versions == {"main": {"vecrl": "0.1"}}


def test_the_command_line_lists_workloads_and_rejects_unknown_ones(capsys):
    assert main(["--list", "--only", "cheetah"]) == 0
    assert capsys.readouterr().out.startswith("cheetah")
    assert main(["--only", "nonesuch"]) == 2
    assert "serial-cartpole-64" in capsys.readouterr().err


# -- parts of the work, and another checkout -------------------------------------------------------


def test_parts_are_subtracted_round_by_round():
    results = [Result("vecrl", "main", [100.0, 130, 90]), Result("policy", "main", [20.0, 40, 20])]
    workload = Workload("w", "some work", [], rows=10, parts=("policy",), targets=[Beyond(8.0), Beyond(7.9)])
    assert report.beyond(results[0], (workload, results)) == 8.0
    assert [report.evaluate_targets(target, (workload, results)) for target in workload.targets] == [
        ("8.0 µs of ≤ 8 µs beyond policy", True),
        ("8.0 µs of ≤ 7.9 µs beyond policy", False),
    ]
    page = report.markdown([(workload, results)], {}, "make bench")
    assert "| vecrl | 100.0 | 90.0 | 100,000 | 1.00 | 8.0 |" in page
    assert "| policy | 20.0 | 20.0 | 500,000 | 0.20 |  |" in page
    missing = [results[0], Result("policy", "main", error="KeyError")]
    assert report.evaluate_targets(Beyond(8.0), (workload, missing)) == ("≤ 8 µs beyond policy", None)


def test_another_checkout_is_timed_in_turn_with_this_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    package = tmp_path / "src" / "vecrl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('the other one')")
    options = ["--only", "serial-cartpole-64", "--rounds", "1", "--seconds", "0.01", "--against", str(tmp_path)]
    assert main(options) == 1
    output = capsys.readouterr().out
    assert "vecrl, against               FAILED" in output
    assert "the other one" in output
    assert "gymnasium Sync" not in output  # peers are not timed
    with pytest.raises(SystemExit, match="Expected a checkout of vecrl"):
        main([*options[:-1], str(tmp_path / "nowhere")])


def test_ratios_to_another_checkout_are_taken_round_by_round():
    results = [Result("vecrl", "main", [10.0, 20, 40]), Result("vecrl, against", "main", [11.0, 20, 36])]
    assert report.compare_checkouts(results[0], results) == "1.000 (0.900 to 1.100)"
    assert report.compare_checkouts(results[1], results) is None
