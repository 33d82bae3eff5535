"""Writes the slowest tests, and the seconds of each group of tests, from pytest's JUnit files.

    python tools/test_times.py FOLDER

FOLDER has a file GROUP.xml for each run of pytest, or several, GROUP-PART.xml. The result is FOLDER/times.txt, and is
printed. A test's time includes its fixtures, so the first test that uses a fixture of a session or module pays for it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 40


def read(folder: Path) -> tuple[dict[str, list[float]], list[tuple[float, str, str]]]:
    """Returns seconds, number and failures of each group's tests, and the seconds, group and name of each test."""
    groups: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    tests: list[tuple[float, str, str]] = []
    for path in sorted(folder.glob("*.xml")):
        group = path.stem.partition("-part")[0]
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            numbers = (float(suite.get("time", 0)), int(suite.get("tests", 0)), failed)
            groups[group] = [total + number for total, number in zip(groups[group], numbers, strict=True)]
            for case in suite.iter("testcase"):
                tests.append((float(case.get("time", 0)), group, f"{case.get('classname')}::{case.get('name')}"))
    return groups, sorted(tests, reverse=True)


def format_times(groups: dict[str, list[float]], tests: list[tuple[float, str, str]]) -> str:
    """Returns the text of both tables; the shorter one is last, where a reader of a long output sees it."""
    rows = sorted(groups.items(), key=lambda item: -item[1][0])
    lines = [f"The {SLOWEST} slowest tests", "seconds  group         test"]
    lines += [f"{seconds:7.1f}  {group:12}  {name}" for seconds, group, name in tests[:SLOWEST]]
    lines += ["", "seconds  tests  failed  group"]
    lines += [f"{seconds:7.0f}  {number:5.0f}  {failed:6.0f}  {group}" for group, (seconds, number, failed) in rows]
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    text = format_times(*read(folder))
    (folder / "times.txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
