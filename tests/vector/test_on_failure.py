"""Restarted and masked environments, as each auto-reset mode shows them."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv, sleeps_forever
from tests.fixtures.gym_envs import FailsOnceEnv

from vecrl.errors import StepTimeout
from vecrl.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

ACTIONS = np.zeros(2, int)


def _makers(tmp_path: Path) -> list[Any]:
    mark = str(tmp_path / "mark")
    return [FailsOnceEnv, lambda: FailsOnceEnv(mark)]


@pytest.mark.parametrize("kind", [VectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize(
    ("mode", "after"),
    [("next_step", [0, 1]), ("disabled", [1, 2])],
)
def test_masked_rows_keep_their_observation(kind: Any, mode: str, after: Any, tmp_path: Path) -> None:
    with kind(_makers(tmp_path), autoreset_mode=mode, num_workers=2, on_failure="restart") as envs:
        envs.reset(seed=1)
        for _ in range(3):
            obs, reward, terminated, truncated, info = envs.step(ACTIONS)
        np.testing.assert_array_equal(obs[:, 0], [3, 2])
        np.testing.assert_array_equal(reward, [1, 0])
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
        assert (info["failed"].tolist(), info["_failed"].tolist()) == ([False, True], [False, True])
        assert info["error"][1] == "ArithmeticError: went wrong on purpose"
        for count in after:
            assert envs.step(ACTIONS)[0][1, 0] == count


def test_same_step_mode_starts_the_new_episode(tmp_path: Path) -> None:
    with VectorEnv(_makers(tmp_path), autoreset_mode="same_step", on_failure="restart") as envs:
        envs.reset(seed=1)
        for _ in range(3):
            obs, reward, _, truncated, info = envs.step(ACTIONS)
        np.testing.assert_array_equal(obs[:, 0], [3, 0])
        assert info["final_obs"][1].tolist() == [2]
        assert info["final_info"]["failed"].tolist() == [False, True]
        assert "failed" not in info
        assert (reward.tolist(), truncated.tolist()) == ([1, 0], [False, True])


@pytest.mark.parametrize("num_episodes", [None, 2])
def test_a_failed_episode_counts(num_episodes: int | None, tmp_path: Path) -> None:
    envs = SyncVectorEnv(_makers(tmp_path), num_episodes=num_episodes, on_failure="restart")
    envs.reset(seed=1)
    for _ in range(3):
        obs, _, _, truncated, info = envs.step(ACTIONS)
    np.testing.assert_array_equal(obs[:, 0], [3, 0])
    assert truncated.tolist() == [False, True]
    assert info["final_obs"][1].tolist() == [2]
    assert envs.step(ACTIONS)[0][:, 0].tolist() == [4, 1]
    envs.close()


def test_empty_info_reports_no_failures(tmp_path: Path) -> None:
    with VectorEnv(_makers(tmp_path), empty_info=True, on_failure="restart") as envs:
        envs.reset()
        for _ in range(3):
            *_, truncated, info = envs.step(ACTIONS)
    assert truncated.tolist() == [False, True]
    assert info == {}


@pytest.mark.parametrize("wrong", [{"on_failure": "ignore"}, {"restarts_per_hour": 0}])
def test_invalid_arguments_raise(wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"Expected {next(iter(wrong))} to be"):
        VectorEnv([FailsOnceEnv], **wrong)


def test_timed_out_environments_can_be_cancelled() -> None:
    makers = [FaultyEnv, partial(FaultyEnv, 1, "step", sleeps_forever)]
    with VectorEnv(makers, backend="processes", num_workers=2, step_timeout=0.3) as envs:
        envs.reset(seed=1)
        with pytest.raises(StepTimeout, match=r"Reset \(which waits for them first\), cancel them") as exc_info:
            envs.step(ACTIONS)
        assert envs.cancel(exc_info.value.env_ids).tolist() == [1]
        obs, _ = envs.reset(seed=1)
        np.testing.assert_array_equal(obs[:, 2], 0)
