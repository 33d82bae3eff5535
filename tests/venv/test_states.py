"""Environments with ids and classic environments continue from a restored state."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from vecrl import checkpoint
from vecrl.classic import GymEnv
from vecrl.venv import DummyVectorEnv, ShmemVectorEnv, VectorEnvNormObs


def _venv(kind: Any) -> Any:
    return VectorEnvNormObs(kind([partial(gymnasium.make, "CartPole-v1")] * 3, num_workers=2))


def _play(venv: Any, steps: int) -> list[Any]:
    lived = []
    for step in range(steps):
        obs, rew, terminated, truncated, _ = venv.step(np.full(3, step // 2 % 2))
        if len(is_over := np.flatnonzero(terminated | truncated)):
            obs[is_over] = venv.reset(is_over)[0]
        lived += [obs.tolist(), rew.tolist(), terminated.tolist()]
    return lived


@pytest.mark.parametrize("kind", [DummyVectorEnv, ShmemVectorEnv])
def test_restored_venvs_continue_equally(kind: Any, tmp_path: Any) -> None:
    venv = _venv(kind)
    venv.seed(7)
    venv.reset()
    _play(venv, 20)
    checkpoint.save(tmp_path / "venv.ckpt", venv=venv)
    state = venv.get_state()
    expected = _play(venv, 60)
    venv.set_state(state)
    assert _play(venv, 60) == expected
    venv.close()
    other = _venv(kind)
    other.reset()
    checkpoint.load(tmp_path / "venv.ckpt", venv=other)
    assert _play(other, 60) == expected
    other.close()


def test_restored_classic_environments_continue_equally() -> None:
    env = GymEnv("CartPole-v1", running_normalize_states=True, scale_reward=True, seed=3)
    env.reset()
    for _ in range(5):
        env.step(1)
    state = env.get_state()
    expected = [env.step(i % 2)[:3] for i in range(4)]
    env.set_state(state)
    for step, before in zip((env.step(i % 2)[:3] for i in range(4)), expected, strict=True):
        np.testing.assert_array_equal(step[0], before[0])
        assert step[1:] == before[1:]
    env.close()
