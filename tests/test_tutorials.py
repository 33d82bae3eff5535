"""Follows the tutorials as a reader does: writes their files, and runs their commands and programs, in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {  # the Python blocks that a reader writes into files; the others are run
    "first-native-task.md": ["docking.py", "test_docking.py"],
    "first-environment.md": ["corridor.py"],
}


def _run(folder: Path, *arguments: str) -> str:
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{folder}"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", FILES)
def test_a_reader_can_follow_it(page: str, tmp_path: Path) -> None:
    names = iter(FILES[page])
    printed: list[str] = []
    for kind, block in re.findall(r"```(python|sh)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
        if kind == "sh":
            for line in block.strip().splitlines():
                assert line.startswith("vecrl "), line
                printed.append(_run(tmp_path, "-m", "vecrl", *line.split()[1:]))
        elif (name := next(names, None)) is not None:
            (tmp_path / name).write_text(block)
            if name.startswith("test_"):
                _run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", name)
        else:
            printed.append(_run(tmp_path, "-c", block))
    assert next(names, None) is None
    assert "All checks passed." in printed[0]
    assert any("Solved by best.pt" in text for text in printed)
