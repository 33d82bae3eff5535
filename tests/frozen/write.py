"""Writes the frozen files: `python -m tests.frozen.write`, then check `git diff tests/frozen`.

Write them only after a change that is on purpose, and explain the change in the commit message.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.frozen.cases import cases
from tests.frozen.digests import digest, text, written
from tests.frozen.public import described

HERE = Path(__file__).parent
SIGNATURES = HERE / "signatures.txt"
TRAJECTORIES = HERE / "trajectories.json"
HOW = "If this change is on purpose, run `python -m tests.frozen.write {}` and say in the commit what changed and why."


def write_signatures() -> None:
    """Writes the public names and signatures."""
    SIGNATURES.write_text(described())


def write_trajectories() -> None:
    """Records each case by its first way."""
    entries = {key: written(digest(next(iter(case.ways.values()))()), case.exact) for key, case in cases().items()}
    TRAJECTORIES.write_text(text(entries))


FILES = {"signatures": write_signatures, "trajectories": write_trajectories}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.frozen.write", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", choices=[*FILES, []], help="which of them; all by default")
    for name in parser.parse_args().what or FILES:
        FILES[name]()
