"""Prints the table of all simulators in all dialects from the outcomes of tests, into its page or to compare.

    python tools/simulator_table.py FOLDER           # writes the rows that FOLDER has into the page
    python tools/simulator_table.py FOLDER --check   # fails if the page has other rows

The page is docs/simulators-checks.md. FOLDER is that of the environment variable SIMULATOR_TABLE in
tests/simulators/test_every_simulator.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "simulators-checks.md"
BEGIN, END = "<!-- table of simulators -->\n", "<!-- end of the table -->\n"


def read_page(text: str) -> dict[tuple[str, str], list[str]]:
    """Returns the rows of the table on the page, by prefix and dialect."""
    block = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in block if line.startswith("| `")]
    notes = [line.partition(". ")[2] for line in block if line[:1].isdigit()]
    rows = {}
    for prefix, dialect, *marks in cells:
        rows[prefix.strip("`").removesuffix("::"), dialect] = [
            f"– {notes[int(mark[1:]) - 1]}" if mark.startswith("–") else mark for mark in marks
        ]
    return rows


def read_outcomes(folder: Path) -> tuple[list[str], dict[tuple[str, str], list[str]]]:
    """Returns the names of the checks, and the rows of the outcomes, in a folder."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    checks = list(records[0]["outcomes"])
    return checks, {(r["prefix"], r["dialect"]): [r["outcomes"][check] for check in checks] for r in records}


def print_table(checks: list[str], rows: dict[tuple[str, str], list[str]]) -> str:
    """Returns the table, with the reasons of what does not work as numbered notes."""
    notes: list[str] = []
    lines = ["| prefix | dialect | " + " | ".join(checks) + " |", "|" + "---|" * (len(checks) + 2)]
    for (prefix, dialect), outcomes in sorted(rows.items()):
        marks = []
        for outcome in outcomes:
            mark, _, reason = outcome.partition(" ")
            if mark == "–":
                if reason not in notes:
                    notes.append(reason)
                mark = f"–{notes.index(reason) + 1}"
            marks.append(mark)
        lines.append(f"| `{prefix}::` | {dialect} | {' | '.join(marks)} |")
    numbered = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", *numbered, ""])


def main(arguments: list[str]) -> int:
    """Runs the command; returns 1 if the page has other rows than the folder and `--check` is given."""
    text = PAGE.read_text()
    old_rows = read_page(text)
    checks, new_rows = read_outcomes(Path(arguments[0]))
    print(print_table(checks, new_rows))
    if "--check" in arguments:
        different = sorted(key for key, row in new_rows.items() if old_rows.get(key) != row)
        for key in different:
            print(f"Expected {old_rows.get(key)} for {key} as {PAGE.name} says, got {new_rows[key]}.", file=sys.stderr)
        return int(bool(different))
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + BEGIN + print_table(checks, {**old_rows, **new_rows}) + END + after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
