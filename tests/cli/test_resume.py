"""A run that is killed at any time, also while saving, resumes to the results of an uninterrupted run."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_evolve import plain, rows

from vecrl import checkpoint
from vecrl.cli.run_folder import RunFolder
from vecrl.policy.saved_policy import SavedPolicy

SHORT = ["native::CartPole-v1", "--popsize", "6", "--max-steps", "40", "--generations", "8", "--seed", "5"]
SHORT += ["--no-video", "--test-episodes", "3", "--test-every", "3", "--stop-at", "38"]
PROGRAM = str(Path(__file__).with_name("killed_runs.py"))


def outcome(folder):
    """Returns all results of a run except for its duration."""
    state = checkpoint.load(folder / "state.ckpt")["run"]
    best = SavedPolicy.load(folder / "best.pt")
    parts = [plain(state[name]) for name in ("search", "evaluator", "selection", "steps")]
    return rows(folder), parts, best.parameters.tolist(), best.mean_return


def program(parent, seed, number):
    done = subprocess.run(
        [sys.executable, PROGRAM, str(parent), str(seed), str(number), *SHORT],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert lines[-1].startswith("end 0 "), (done.stdout, done.stderr)
    return lines, parent / lines[-1].split()[-1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    _, folder = program(tmp_path_factory.mktemp("uninterrupted"), 0, 0)
    found = outcome(folder)
    assert 2 <= len(found[0]) <= 8
    return found


@pytest.mark.parametrize("seed", range(4))
def test_killed_runs_resume_to_equal_results(uninterrupted, tmp_path, seed):
    lines, folder = program(tmp_path, seed, 6)
    assert any(" -9 " in line for line in lines), lines
    assert outcome(folder) == uninterrupted
    remaining = [file.name for file in folder.iterdir() if file.name.startswith(".")]
    assert remaining == []


def test_finished_runs_do_not_continue(vecrl, tmp_path):
    arguments = [*SHORT[:-2], "--out", tmp_path]
    assert vecrl("evolve", *arguments).code == 0
    folder = tmp_path / "native-CartPole-v1-1"
    before = outcome(folder)
    assert vecrl("evolve", "--resume", folder).code == 0
    assert outcome(folder) == before


def test_a_folder_is_locked_by_one_run(vecrl, tmp_path, monkeypatch):
    assert vecrl("evolve", *SHORT, "--out", tmp_path).code == 0
    folder = tmp_path / "native-CartPole-v1-1"
    before = rows(folder)
    monkeypatch.setattr("vecrl.cli.run_folder.LOCK_TIMEOUT_S", 0.05)
    with RunFolder(folder).lock():
        answer = vecrl("evolve", "--resume", folder, "--generations", 20)
    assert answer.code == 1
    assert "in use by another process" in answer.out
    assert rows(folder) == before
