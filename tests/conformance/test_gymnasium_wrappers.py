"""gymnasium's own vector wrappers run on `VectorEnv`, and yield what they yield on gymnasium's."""

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
from tests.conformance.compare import assert_same
from tests.conformance.zoo import makers

from vecrl.vector import VectorEnv

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
    said: list[Any] = [env.reset(seed=1)]
    env.action_space.seed(2)
    for _ in range(30):
        said.append(env.step(env.action_space.sample()))
    env.close()
    return said


def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics hold the time that an episode took."""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)


@pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning", "ignore:overflow:RuntimeWarning")  # its own
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_wrapper_yields_what_it_does_on_gymnasium(name, mode, monkeypatch):
    no_time(monkeypatch)
    env_id = "MountainCarContinuous-v0"
    fns = makers(env_id, N)
    ours = drive(VectorEnv(fns, autoreset_mode=mode), WRAPPERS[name])
    theirs = drive(gymnasium.vector.SyncVectorEnv(fns, autoreset_mode=mode), WRAPPERS[name])
    assert_same(ours, theirs)


def test_numpy_to_torch():
    pytest.importorskip("array_api_compat", reason="gymnasium's conversions need array-api-compat")
    envs = wrappers.NumpyToTorch(VectorEnv(makers("CartPole-v1", N), backend="threads"))
    obs, _ = envs.reset(seed=1)
    assert isinstance(obs, torch.Tensor)
    later, reward, *_ = envs.step(torch.tensor([0, 1, 0]))
    assert reward.tolist() == [1.0] * N
    assert later.shape == (N, 4)
    assert not torch.equal(obs, later)
    envs.close()


def test_a_wrapper_shows_what_is_inside():
    envs = wrappers.RecordEpisodeStatistics(VectorEnv(makers("CartPole-v1", N)))
    assert isinstance(envs.unwrapped, VectorEnv)
    assert envs.num_envs == N
    assert envs.spec.id == "CartPole-v1"
    envs.close()
