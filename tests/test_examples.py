"""The examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


SHORT = {
    "chess_self_play.py": ["--games", "2", "--plies", "12"],
    "cluster.py": ["--here"],
    "custom_environment.py": ["--walkers", "4", "--steps", "20"],
    "dqn_pixels.py": ["--steps", "20", "--envs", "2", "--warmup", "20"],
    "multi_agent.py": ["--games", "8", "--trials", "3"],
    "offline_recurrent.py": ["--updates", "2", "--rows", "4", "--steps", "60"],
    "pixels.py": ["--steps", "5", "--picture", "frames.png"],
    "ppo.py": ["--updates", "2", "--envs", "4", "--steps", "32"],
    "ppo_cleanrl.py": ["--total-steps", "256", "--envs", "4", "--steps", "32"],
    "ppo_pixels.py": ["--updates", "2", "--envs", "2", "--steps", "16"],
    "ppo_rollout_workers.py": ["--total-steps", "4800", "--envs", "4", "--steps", "600", "--epochs", "1"],
    "world_model.py": ["--updates", "600", "--envs", "4", "--steps", "40", "--candidates", "32"],
}


FILES = {
    "dqn_pixels.py": "logs/dqn_pixels/videos/episode_0.mp4",
    "pixels.py": "frames.png",
    "ppo_pixels.py": "logs/ppo_pixels/videos/episode_0.mp4",
    "ppo_rollout_workers.py": "ppo_rollout_workers.png",
}
"""The pictures and videos that examples write."""


def test_every_example_is_tested_and_listed() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert names == set(SHORT)
    assert all(f"| `{name}` |" in page for name in names)


@pytest.mark.parametrize("name", sorted(SHORT))
def test_examples_parse_options_described_by_their_docstring(name: str) -> None:
    source = (EXAMPLES / name).read_text()
    assert "ArgumentParser(description=__doc__" in source
    assert "parse_args()" in source


def run(name: str, folder: Path) -> str:
    """Runs an example in a folder, and returns what it prints."""
    command = [sys.executable, str(EXAMPLES / name), *SHORT[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.ray] if name == "cluster.py" else [])
        for name in sorted(SHORT.keys() - {"world_model.py"})
    ],
)
def test_example_runs(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)
    assert name not in FILES or (tmp_path / FILES[name]).stat().st_size > 1000


def test_planning_in_the_world_model_is_better_than_random_actions(tmp_path: Path) -> None:
    returns = re.findall(r"(?:random|planned) ([\d.]+)", run("world_model.py", tmp_path))
    assert float(returns[-1]) > 1.3 * float(returns[-2])
