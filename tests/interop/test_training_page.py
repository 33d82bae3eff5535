"""Runs the programs of docs/training.md for a short time, each in its own process."""

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parents[2] / "docs" / "training.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
LENGTHS = {"STEPS": 1_200, "EPOCHS": 1, "GENERATIONS": 2}


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    """Variables with which the programs share compiled modules: most of their time is for the same imports."""
    with TemporaryDirectory() as cache:
        yield {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}


def shorten(program: str) -> str:
    """Returns the program with its length constant changed."""
    name, value = re.findall(r"^([A-Z]+) = ([\d_]+)$", program, re.MULTILINE)[0]
    return program.replace(f"{name} = {value}\n", f"{name} = {LENGTHS[name]}\n", 1)


def test_the_page_has_short_programs() -> None:
    assert [20 <= len(block.splitlines()) <= 50 for block in BLOCKS] == [True] * 5


@pytest.mark.parametrize("number", range(1, 6))
def test_program_runs(number: int, environ: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", shorten(BLOCKS[number - 1])]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    returns = re.findall(r"^[\d.]+ s  return (\S+)$", done.stdout, re.MULTILINE)
    assert returns, done.stdout
    assert all(math.isfinite(float(value)) for value in returns)
