"""`--logger` of `vecrl rollout` and `vecrl evolve`, with what the logger wrote read back."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.conftest import frames_of

EVOLVE = ["evolve", "CartPole-v1", "--popsize", 4, "--max-steps", 20, "--test-episodes", 2, "--seed", 1]
METRICS = {"steps", "seconds", "best", "mean", "median", "center", "length", "stdev", "test", "reported"}


def series(path: Path) -> dict[int, float]:
    """Returns the values of a CSV file by their steps."""
    with path.open() as file:
        return {int(step): float(value) for step, value in csv.reader(file)}


def test_evolve_writes_metrics_settings_and_the_video(vecrl: Any, tmp_path: Path) -> None:
    answer = vecrl(*EVOLVE, "--generations", 3, "--out", tmp_path, "--logger", "csv")
    assert answer.code == 0, answer.out
    folder = tmp_path / "CartPole-v1-1"
    assert {path.stem for path in (folder / "scalars").iterdir()} == METRICS
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("best", "center", "steps"):
        expected = {int(row["generation"]): float(row[name]) for row in rows}
        assert series(folder / f"scalars/{name}.csv") == pytest.approx(expected)
    assert series(folder / "scalars/test.csv") == {3: float(rows[-1]["test"])}
    settings = yaml.safe_load((folder / "texts/hparams0.txt").read_text())
    assert (settings["popsize"], settings["seed"], settings["env"]) == (4, 1, "CartPole-v1")
    logged, saved = frames_of(folder / "videos/best_0.mp4")[0], frames_of(folder / "best.mp4")[0]
    assert (logged == saved).all()


def test_evolve_without_a_logger_writes_no_log(vecrl: Any, tmp_path: Path) -> None:
    assert vecrl(*EVOLVE, "--generations", 1, "--out", tmp_path, "--no-video").code == 0
    folder = tmp_path / "CartPole-v1-1"
    expected = {"best.pt", "config.yaml", "learning-curve.png", "metrics.csv", "state.ckpt"}
    assert {path.name for path in folder.iterdir()} == expected
    assert yaml.safe_load((folder / "config.yaml").read_text())["logger"] is None


def test_a_resumed_run_continues_its_log(vecrl: Any, tmp_path: Path) -> None:
    folder = tmp_path / "CartPole-v1-1"
    assert vecrl(*EVOLVE, "--generations", 1, "--out", tmp_path, "--no-video").code == 0
    assert vecrl("evolve", "--resume", folder, "--generations", 2, "--logger", "csv").code == 0
    assert vecrl("evolve", "--resume", folder, "--generations", 3).code == 0
    assert sorted(series(folder / "scalars/mean.csv")) == [2, 3]


def test_a_run_is_resumed_in_its_own_folder(vecrl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "CartPole-v1-1"
    assert vecrl(*EVOLVE, "--generations", 1, "--out", tmp_path, "--no-video").code == 0
    monkeypatch.chdir(folder)
    answer = vecrl("evolve", "--resume", ".", "--generations", 2, "--logger", "csv")
    assert answer.code == 0, answer.out
    assert list(series(folder / "scalars/mean.csv")) == [2]


def test_rollout_writes_returns_settings_and_the_video(vecrl: Any, tmp_path: Path) -> None:
    options = ["--episodes", 5, "--envs", 2, "--seed", 3, "--video", tmp_path / "run.mp4", "--out", tmp_path / "logs"]
    answer = vecrl("rollout", "CartPole-v1", *options, "--logger", "csv")
    assert answer.code == 0, answer.out
    folder = tmp_path / "logs/CartPole-v1-rollout-1"
    returns = series(folder / "scalars/return.csv")
    assert list(returns) == [0, 1, 2, 3, 4]
    assert returns == series(folder / "scalars/length.csv")  # one reward per step
    assert yaml.safe_load((folder / "texts/hparams0.txt").read_text())["seed"] == 3
    assert (frames_of(folder / "videos/run_0.mp4")[0] == frames_of(tmp_path / "run.mp4")[0]).all()


def test_an_unknown_or_missing_logger_is_an_error(vecrl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecrl.cli.app.find_spec", lambda name: None)
    for name, message in (("neptune", "got 'neptune'"), ("wandb", 'Expected the extra "loggers"')):
        answer = vecrl(*EVOLVE, "--out", tmp_path, "--logger", name)
        assert answer.code == 2
        assert message in answer.out
    assert not list(tmp_path.iterdir())


@pytest.mark.loggers
def test_evolve_writes_to_tensorboard(vecrl: Any, tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    answer = vecrl(*EVOLVE, "--generations", 2, "--out", tmp_path, "--logger", "tensorboard")
    assert answer.code == 0, answer.out
    events = accumulators.EventAccumulator(str(tmp_path / "CartPole-v1-1"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == METRICS
    assert [event.step for event in events.Scalars("mean")] == [1, 2]
    assert events.Tags()["images"] == ["best"]


@pytest.mark.loggers
@pytest.mark.parametrize(("name", "file"), [("mlflow", "mlflow.db"), ("wandb", "*.wandb")])
def test_rollout_writes_to_services(tmp_path: Path, name: str, file: str) -> None:
    """In a process of its own, since wandb reads the environment variable once."""
    command = [sys.executable, "-m", "vecrl", "rollout", "CartPole-v1", "--episodes", "2", "--logger", name]
    environment = {**os.environ, "WANDB_MODE": "offline"}
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob(file))
