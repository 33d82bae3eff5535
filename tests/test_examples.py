"""The examples run."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


SHORT = {
    "cluster.py": ["--here"],
    "custom_environment.py": [],
    "multi_agent.py": [],
    "offline_recurrent.py": ["--updates", "2", "--rows", "4", "--steps", "60"],
    "pixels.py": ["--steps", "5", "--picture", "frames.png"],
    "ppo.py": ["--updates", "2", "--envs", "4", "--steps", "32"],
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHORT)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ray] if name == "cluster.py" else []) for name in SHORT]
)
def test_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name), *SHORT[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert name != "pixels.py" or (tmp_path / "frames.png").stat().st_size > 1000
