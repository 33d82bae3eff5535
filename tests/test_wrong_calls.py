"""Wrong arguments that have no table of their own: the error names the argument and what was given."""

from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from vecrl import checkpoint, envs
from vecrl.record import CSVLogger
from vecrl.vector import RolloutWorkers
from vecrl.venv import DummyVectorEnv


def make() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


CASES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "checkpoint.load": (lambda: checkpoint.load(5), TypeError, "Expected path to be the path of a file, got 5"),
    "checkpoint.save": (lambda: checkpoint.save(None, a=1), TypeError, "Expected path to be the path of a file, got"),
    "rollout": (
        lambda: envs.GymEnv("CartPole-v1").rollout(3, out=5),
        TypeError,
        "Expected out to be a TensorDict to write the result into, or None, got 5",
    ),
    "DummyVectorEnv": (
        lambda: DummyVectorEnv([make], step_timout=1),
        TypeError,
        "got 'step_timout'. Did you mean step_timeout",
    ),
    "RolloutWorkers": (
        lambda: RolloutWorkers([make], torch.nn.Linear(4, 2), wait_="sleep"),
        TypeError,
        "got 'wait_'. Did you mean wait",
    ),
    "CSVLogger": (lambda: CSVLogger(None), ValueError, "Expected exp_name to be a string, got None"),
}


@pytest.mark.parametrize(("call", "error", "text"), CASES.values(), ids=CASES)
def test_wrong_arguments_are_named(
    call: Callable[[], object], error: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_seeds_of_numpy_are_those_of_python() -> None:
    first, second = envs.GymEnv("CartPole-v1"), envs.GymEnv("CartPole-v1")
    assert first.set_seed(np.int64(3)) == second.set_seed(3)
    assert first.reset()["observation"].tolist() == second.reset()["observation"].tolist()
