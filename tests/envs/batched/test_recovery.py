"""Failed environments of a batch are restarted or excluded, for every kind of environment."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.gym_envs import FailsOnceEnv

from vecrl.envs import GymWrapper, ParallelEnv, SerialEnv, StepCounter, TransformedEnv


def _bare(mark: str) -> Any:
    return GymWrapper(FailsOnceEnv(mark))


def _by_path(mark: str) -> Any:
    return TransformedEnv(GymWrapper(FailsOnceEnv(mark)), StepCounter())


@pytest.mark.parametrize("kind", [SerialEnv, partial(ParallelEnv, envs_per_worker=1)], ids=["serial", "parallel"])
@pytest.mark.parametrize("make", [_bare, _by_path])
def test_rollouts_continue_after_a_restart(make: Any, kind: Any, tmp_path: Path) -> None:
    with kind(2, [lambda: make(""), lambda: make(str(tmp_path / "mark"))], on_failure="restart") as env:
        data = env.rollout(6, break_when_any_done=False)
    np.testing.assert_array_equal(data["next", "observation"][..., 0], [[1, 2, 3, 4, 5, 6], [1, 2, 2, 1, 2, 3]])
    np.testing.assert_array_equal(data["observation"][..., 0], [[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]])
    ends = torch.zeros(2, 6, 1, dtype=torch.bool)
    ends[1, 2] = True
    torch.testing.assert_close(data["next", "truncated"], ends)
    torch.testing.assert_close(data["next", "done"], ends)
    assert not data["next", "terminated"].any()
    torch.testing.assert_close(data["next", "reward"], (~ends).float())


@pytest.mark.parametrize("make", [_bare, _by_path])
def test_excluded_environments_do_not_step(make: Any, tmp_path: Path) -> None:
    with SerialEnv(2, [lambda: make(""), lambda: make(str(tmp_path / "mark"))], on_failure="mask") as env:
        data = env.rollout(5, break_when_any_done=False)
    np.testing.assert_array_equal(data["next", "observation"][..., 0], [[1, 2, 3, 4, 5], [1, 2, 2, 2, 2]])
    np.testing.assert_array_equal(data["next", "reward"][1, :, 0], [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(data["next", "done"][1, :, 0], [False, False, True, False, False])
