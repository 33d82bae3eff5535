"""The wrappers over real EnvPool environments; `test_wrappers` uses an imitation of them."""

from typing import Any

import numpy as np
import pytest

from vecrl.venv import VectorEnvNormObs, VectorEnvWrapper

pytestmark = [
    pytest.mark.torchrl,
    pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning"),
]


def _pool(**options: Any) -> Any:
    import envpool

    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=3, **options)


def test_synchronous_steps_equal_envpool() -> None:
    bare, envs = _pool(), VectorEnvWrapper(_pool())
    assert (len(envs), envs.env_num, envs.is_async, envs.is_closed) == (4, 4, False, False)
    assert envs.action_space == bare.action_space
    np.testing.assert_array_equal(envs.reset()[0], bare.reset()[0])
    for ids in (None, [2, 0], 1):
        chosen = None if ids is None else np.atleast_1d(ids)
        np.testing.assert_array_equal(envs.reset(ids)[0], bare.reset(chosen)[0])
        actions = np.zeros(4 if chosen is None else len(chosen), np.int64)
        *actual, info = envs.step(actions, ids)
        *reference, expected = bare.step(actions, chosen)
        for own, other in zip(actual, reference, strict=True):
            np.testing.assert_array_equal(own, other)
        np.testing.assert_array_equal(info["env_id"], expected["env_id"])
    envs.close()
    assert envs.is_closed
    bare.close()


def test_observations_are_normalized() -> None:
    bare, envs = _pool(), VectorEnvNormObs(VectorEnvWrapper(_pool()))
    seen = [bare.reset()[0]]
    np.testing.assert_allclose(envs.reset()[0], _normed(seen[0], seen[0]), atol=1e-5)
    for _ in range(30):
        seen.append(bare.step(np.zeros(4, np.int64))[0])
        obs = envs.step(np.zeros(4, np.int64))[0]
    rows = np.concatenate(seen).astype(np.float64)
    assert envs.get_obs_rms().count == len(rows)
    np.testing.assert_allclose(envs.get_obs_rms().mean, rows.mean(0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(obs, _normed(seen[-1], rows), atol=1e-5)
    envs.close()
    bare.close()


def _normed(obs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return (obs - rows.mean(0)) / np.sqrt(rows.var(0) + np.finfo(np.float32).eps)


def test_asynchronous_steps_are_wrapped() -> None:
    """In EnvPool's asynchronous mode, half of the environments are received and continue."""
    envs = VectorEnvNormObs(_pool(batch_size=2))
    assert envs.is_async
    envs.async_reset()
    counts = np.zeros(4, int)
    obs, _, _, _, info = envs.recv()
    for _ in range(20):
        counts[info["env_id"]] += 1
        obs, reward, *_, info = envs.step(np.zeros(2, np.int64), info["env_id"])
        assert (obs.shape, reward.shape) == ((2, 4), (2,))
    assert counts.min() > 0
    assert envs.get_obs_rms().count == 40
    envs.close()
