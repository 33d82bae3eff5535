"""Wrappers forward all calls to a vector environment, another wrapper, or an EnvPool environment."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.fixtures.venv_envs import GatedCountingEnv, ReturnedObsEnv, ids_of, make, make_returned_obs_venv

from vecrl.errors import ClosedError, SpaceError
from vecrl.venv import BaseVectorEnv, DummyVectorEnv, RunningMeanStd, VectorEnvNormObs, VectorEnvWrapper


def test_every_public_name_is_forwarded():
    """A method that is added to `BaseVectorEnv` and missing in the wrapper would not work on any wrapped
    environment."""
    public = {name for name in vars(BaseVectorEnv) if not name.startswith("_")} - {"excluded_from_state"} | {"__len__"}
    assert public <= set(vars(VectorEnvWrapper))
    for name in ("reset", "step", "seed", "render", "get_env_attr", "set_env_attr"):
        actual, reference = (inspect.signature(getattr(kind, name)) for kind in (VectorEnvWrapper, BaseVectorEnv))
        assert list(actual.parameters) == list(reference.parameters)


@pytest.mark.parametrize("layers", [1, 2])
def test_calls_are_forwarded(layers):
    inner = envs = make("dummy", 3, 3, wait_num=2)
    for _ in range(layers):
        envs = VectorEnvWrapper(envs)
    assert isinstance(envs, BaseVectorEnv)
    assert (len(envs), envs.env_num, envs.is_async, envs.wait_num, envs.timeout, envs.is_closed) == (
        3,
        3,
        True,
        2,
        None,
        False,
    )
    assert envs.reset([2, 0])[0][:, 0].tolist() == [2, 0]
    assert envs.reset(1, seed=3)[0].tolist() == [[1, 0, 0]]
    assert len(envs.step([0] * 3)[0]) == 2
    assert (envs.waiting_id, envs.ready_id) == ([2], [0, 1])
    assert ids_of(envs.step(None)[4]) == [2]
    assert envs.step([0], 1)[0].tolist() == [[1, 0, 2]]
    assert envs.seed(4) == [[4], [5], [6]]
    envs.set_env_attr("i", 7, 0)
    assert envs.get_env_attr("i") == [7, 1, 2]
    assert envs.render(x=1)[1] == (1, {"x": 1})
    assert envs.action_space == [GatedCountingEnv.action_space] * 3
    assert envs.observation_space == [GatedCountingEnv.observation_space] * 3
    assert (envs.metadata, envs.spec) == ([GatedCountingEnv.metadata] * 3, [None] * 3)
    assert envs.reward_range == [(-np.inf, np.inf)] * 3
    inner.further = 5
    assert envs.further == 5
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = envs.nope
    assert repr(envs).startswith("VectorEnvWrapper(")
    envs.close()
    assert (envs.is_closed, inner.is_closed) == (True, True)
    with pytest.raises(ClosedError):
        envs.reset()


def test_observations_are_normalized_by_all_updates():
    """The numbers equal Tianshou's: observations update the statistics before they are normalized, for partial and full
    steps."""
    envs = VectorEnvNormObs(make("dummy", 3))
    seen = np.empty((0, 3))

    def expect(obs: Any, rows: list[list[float]]) -> None:
        nonlocal seen
        seen = np.concatenate([seen, rows])
        expected = (np.array(rows) - seen.mean(0)) / np.sqrt(seen.var(0) + np.finfo(np.float32).eps)
        assert obs.dtype == np.float32
        np.testing.assert_allclose(obs, expected, rtol=1e-5, atol=1e-6)
        assert envs.get_obs_rms().count == len(seen)

    obs, infos = envs.reset()
    expect(obs, [[0, 0, 0], [1, 0, 0], [2, 0, 0]])
    assert infos[0] == {"episode_index": 0}
    obs, rew, _, _, infos = envs.step([0, 0, 0])
    expect(obs, [[0, 0, 1], [1, 0, 1], [2, 0, 1]])
    assert (rew.tolist(), ids_of(infos)) == ([0, 1, 2], [0, 1, 2])
    expect(envs.reset([1])[0], [[1, 1, 0]])
    expect(envs.step([0, 0], [2, 1])[0], [[2, 0, 2], [1, 1, 1]])
    envs.close()


def test_statistics_are_shared_and_frozen():
    train = VectorEnvNormObs(make("dummy", 3))
    test = VectorEnvNormObs(make("dummy", 3), update_obs_rms=False)
    train.reset()
    own = test.get_obs_rms()
    np.testing.assert_allclose(test.reset()[0][:, 0], [0, 1, 2], atol=1e-6)
    assert own.count == 0
    test.set_obs_rms(train.get_obs_rms())
    assert test.get_obs_rms() is train.get_obs_rms()
    np.testing.assert_allclose(test.reset()[0][:, 0], [-1.2247, 0, 1.2247], atol=1e-3)
    assert train.get_obs_rms().count == 3
    train.step([0] * 3)
    assert test.get_obs_rms().count == 6
    assert VectorEnvWrapper(train).get_obs_rms() is train.obs_rms
    assert isinstance(train.obs_rms, RunningMeanStd)
    train.close()
    test.close()


def test_asynchronous_observations_are_normalized():
    with VectorEnvNormObs(make("dummy", 3, 3, wait_num=2)) as envs:
        envs.reset()
        assert envs.step([0] * 3)[0].shape == (2, 3)
        assert envs.step(None)[0].shape == (1, 3)
        assert envs.step(None)[0].shape == (0, 3)
        assert envs.get_obs_rms().count == 6


def test_nested_observations_cannot_be_normalized():
    obs = {"x": np.zeros(2, np.float32)}
    space = spaces.Dict(x=spaces.Box(-1, 1, (2,)))
    for options in ({}, {"stack_dicts": True}):
        with (
            VectorEnvNormObs(make_returned_obs_venv((obs, space), **options)) as envs,
            pytest.raises(SpaceError, match="one array"),
        ):
            envs.reset()
    ragged = [(np.zeros(n, np.float32), spaces.Box(-1, 1, (n,))) for n in (1, 2)]
    with VectorEnvNormObs(make_returned_obs_venv(*ragged)) as envs, pytest.raises(TypeError, match="one array"):
        envs.reset()


class LikeEnvPool(gymnasium.vector.VectorEnv):
    """Imitates EnvPool's environments in what they have and reject: ids are arrays or None, infos dicts of arrays."""

    num_envs, is_async, closed = 3, False, False
    single_observation_space = observation_space = spaces.Box(-1, 1, (2,), np.float32)
    single_action_space = action_space = spaces.Discrete(2)

    def reset(self, env_id=None, *, seed=None, options=None):
        ids = self._ids(env_id)
        return np.full((len(ids), 2), ids[:, None], np.float32), {"env_id": ids, "elapsed_step": 0 * ids}

    def step(self, action, env_id=None):
        assert isinstance(action, np.ndarray)
        ids = self._ids(env_id)
        is_over = np.zeros(len(ids), bool)
        obs = np.full((len(ids), 2), ids[:, None] + 1, np.float32)
        return obs, np.ones(len(ids), np.float32), is_over, is_over, {"env_id": ids}

    def _ids(self, env_id):
        assert env_id is None or isinstance(env_id, np.ndarray)
        return np.arange(3, dtype=np.int32) if env_id is None else env_id.astype(np.int32)

    def close(self, **kwargs):
        self.closed = True

    def __len__(self):
        return self.num_envs


def test_wrappers_over_envpool():
    inner = LikeEnvPool()
    envs = VectorEnvNormObs(VectorEnvWrapper(inner))
    assert (len(envs), envs.env_num, envs.is_async, envs.is_closed, envs.num_envs) == (3, 3, False, False, 3)
    assert envs.action_space == spaces.Discrete(2)
    obs, info = envs.reset(seed=3)
    np.testing.assert_allclose(obs[:, 0], [-1.2247, 0, 1.2247], atol=1e-3)
    assert info["env_id"].tolist() == [0, 1, 2]
    assert envs.reset(1)[0].shape == (1, 2)
    obs, rew, *_, info = envs.step(np.array([0, 1]), [2, 0])
    assert (obs.shape, rew.tolist(), info["env_id"].tolist()) == ((2, 2), [1, 1], [2, 0])
    assert envs.get_obs_rms().count == 6
    envs.close()
    assert (inner.closed, envs.is_closed) == (True, True)


def test_custom_wrappers():
    class Doubled(VectorEnvWrapper):
        def step(self, action, id=None):  # noqa: A002
            obs, rew, *remaining = super().step(action, id)
            return obs, 2 * rew, *remaining

    with Doubled(
        DummyVectorEnv([lambda: ReturnedObsEnv(np.zeros(2, np.float32), spaces.Box(-1, 1, (2,)))] * 2)
    ) as envs:
        envs.reset()
        assert envs.step([0, 0])[1].tolist() == [2, 2]
