"""gymnasium's own vector wrappers run on `VectorEnv` with the same results as on gymnasium's environments."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import makers

from vecrl.simulators.native import make_native
from vecrl.vector import BatchedVectorEnv, TorchWrapper, VectorEnv, make_vector_env

N = 3


def halve(obs: np.ndarray) -> np.ndarray:
    return obs / 2


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "ClipReward": lambda env: wrappers.ClipReward(env, -0.5, 0.5),
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": lambda env: wrappers.RescaleAction(env, -2.0, 2.0),
    "FlattenObservation": wrappers.FlattenObservation,
    "RescaleObservation": lambda env: wrappers.RescaleObservation(env, -1.0, 1.0),
    "DtypeObservation": lambda env: wrappers.DtypeObservation(env, np.float64),
    "TransformObservation": lambda env: wrappers.TransformObservation(env, halve),
    "VectorizeTransformObservation": lambda env: wrappers.VectorizeTransformObservation(
        env, gymnasium.wrappers.TransformObservation, func=halve, observation_space=env.single_observation_space
    ),
    "VectorizeTransformReward": lambda env: wrappers.VectorizeTransformReward(
        env, gymnasium.wrappers.TransformReward, func=halve
    ),
    "DictInfoToList": wrappers.DictInfoToList,
}
ANY_MODE = ["RecordEpisodeStatistics", "ClipReward", "ClipAction", "VectorizeTransformReward", "DictInfoToList"]
CASES = [(name, AutoresetMode.NEXT_STEP) for name in WRAPPERS] + [(name, AutoresetMode.SAME_STEP) for name in ANY_MODE]


def drive(envs: Any, wrap: Callable[[Any], Any]) -> list[Any]:
    env = wrap(envs)
    results: list[Any] = [env.reset(seed=1)]
    env.action_space.seed(2)
    for _ in range(30):
        results.append(env.step(env.action_space.sample()))
    env.close()
    return results


def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the duration of episodes from statistics."""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)


@pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning", "ignore:overflow:RuntimeWarning")  # its own
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_wrappers_equal_gymnasium(name, mode, monkeypatch):
    no_time(monkeypatch)
    env_id = "MountainCarContinuous-v0"
    fns = makers(env_id, N)
    actual = drive(VectorEnv(fns, autoreset_mode=mode), WRAPPERS[name])
    reference = drive(gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=mode), WRAPPERS[name])
    assert_same(actual, reference)


@pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning", "ignore:overflow:RuntimeWarning")  # its own
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_wrappers_accept_native_tasks(name, mode):
    envs = BatchedVectorEnv(make_native("MountainCarContinuous-v0", N), autoreset_mode=mode)
    for returned in drive(envs, WRAPPERS[name]):
        *values, _ = returned
        assert all(type(value) is np.ndarray and len(value) == N for value in values)


# gymnasium 1.3 counts steps of ended rows into the next episode in same-step mode
@pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, *([] if gymnasium.__version__.startswith("1.3") else [AutoresetMode.SAME_STEP])]
)
def test_episode_statistics_work_on_native_tasks(mode):
    """A TorchWrapper around the statistics wrapper does not bypass it."""
    plain = BatchedVectorEnv(make_native("CartPole-v1", N), autoreset_mode=mode, episode_stats=True)
    counted = BatchedVectorEnv(make_native("CartPole-v1", N), autoreset_mode=mode)
    wrapped = TorchWrapper(wrappers.RecordEpisodeStatistics(counted))
    plain.reset(seed=1)
    assert isinstance(wrapped.reset(seed=1)[0], torch.Tensor)
    plain.action_space.seed(2)
    ended = 0
    for _ in range(60):
        actions = plain.action_space.sample()
        *_, expected = plain.step(actions)
        *_, info = wrapped.step(torch.from_numpy(actions))
        assert ("_episode" in info) == ("_episode" in expected)
        if "_episode" in info:
            rows = expected["_episode"]
            ended += rows.sum()
            np.testing.assert_array_equal(info["_episode"], rows)
            for key in ("r", "l"):
                np.testing.assert_array_equal(info["episode"][key][rows], expected["episode"][key][rows])
    assert ended > 3


def test_factories_wrap_gymnasium_vector_environments():
    made = make_vector_env("native::CartPole-v1", num_envs=2)
    env = wrappers.RecordEpisodeStatistics(made.env)
    assert isinstance(env.reset(seed=1)[0], np.ndarray)
    obs, reward, *flags, _ = env.step(np.array([0, 1]))
    assert (obs.dtype, reward.dtype, *(flag.dtype for flag in flags)) == (np.float32, np.float64, bool, bool)
    assert isinstance(made.reset(seed=1)[0], torch.Tensor)
    assert isinstance(made.step(torch.tensor([0, 1]))[0], torch.Tensor)


def test_numpy_to_torch_wrapper_returns_tensors():
    pytest.importorskip("array_api_compat", reason="gymnasium's conversions need array-api-compat")
    envs = wrappers.NumpyToTorch(VectorEnv(makers("CartPole-v1", N), backend="threads"))
    obs, _ = envs.reset(seed=1)
    assert isinstance(obs, torch.Tensor)
    later, reward, *_ = envs.step(torch.tensor([0, 1, 0]))
    assert reward.tolist() == [1.0] * N
    assert later.shape == (N, 4)
    assert not torch.equal(obs, later)
    envs.close()


def test_wrappers_forward_attributes():
    envs = wrappers.RecordEpisodeStatistics(VectorEnv(makers("CartPole-v1", N)))
    assert isinstance(envs.unwrapped, VectorEnv)
    assert envs.num_envs == N
    assert envs.spec.id == "CartPole-v1"
    envs.close()


def native_cart_pole(num_envs: int = 1, **options: Any) -> BatchedVectorEnv:
    return make_vector_env("native::CartPole-v1", num_envs=num_envs, **options).env


def make_in_threads(num_envs: int = 1) -> VectorEnv:
    return VectorEnv(makers("CartPole-v1", num_envs), backend="threads", num_workers=2)


@pytest.mark.parametrize("entry_point", [native_cart_pole, make_in_threads])
def test_make_vec_takes_registered_vector_environments(entry_point, monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("vecrl/CartPole-v1", vector_entry_point=entry_point)
    envs = wrappers.RecordEpisodeStatistics(gymnasium.make_vec("vecrl/CartPole-v1", num_envs=3))
    assert envs.spec.id == "vecrl/CartPole-v1"
    assert envs.reset(seed=1)[0].shape == (3, 4)
    ended = [info["_episode"] for *_, info in (envs.step(np.ones(3, int)) for _ in range(12)) if "_episode" in info]
    assert np.any(ended, 0).all()
    envs.close()


def test_envs_names_what_to_use_instead():
    """gymnasium's SyncVectorEnv has the environments themselves."""
    with VectorEnv(makers("CartPole-v1", 2)) as envs:
        with pytest.raises(AttributeError, match=r"Use get_attr\(\"name\"\)"):
            _ = envs.envs
        assert not hasattr(envs, "envs")
