"""Equal seeds give bit-identical trajectories on every backend and in every finishing order."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import CountingEnv, counting, noise

from vecrl.engine.pool import Pool
from vecrl.engine.transition import Transition
from vecrl.vector import SyncVectorEnv, VectorEnv
from vecrl.vector.env_fns import split_env_fns

N = 5
MODES = list(AutoresetMode)
PLACES = [(backend, workers) for backend in ("serial", "threads", "processes") for workers in (1, 3, N)]
RAY = pytest.param("ray", 2, marks=pytest.mark.ray)


def trajectory(kind: str, mode: AutoresetMode, backend: Any, num_workers: int) -> list[Any]:
    fns = counting(N, delay=0.002) if kind == "slow" else noise("dict", N)
    with VectorEnv(fns, backend=backend, num_workers=num_workers, autoreset_mode=mode) as envs:
        results: list[Any] = [envs.reset(seed=2)]
        envs.action_space.seed(4)
        for _ in range(20):
            results.append(result := envs.step(envs.action_space.sample()))
            done = result[2] | result[3]
            if mode == AutoresetMode.DISABLED and done.any():
                results.append(envs.reset(options={"reset_mask": done}))
        return copy.deepcopy(results)


@lru_cache
def alone(kind: str, mode: AutoresetMode) -> list[Any]:
    return trajectory(kind, mode, "serial", 1)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
@pytest.mark.parametrize(("backend", "num_workers"), [*PLACES[1:], RAY])
@pytest.mark.parametrize("kind", ["slow", "noise"])
def test_trajectories_are_equal_on_every_backend(kind, backend, num_workers, mode):
    assert_same(trajectory(kind, mode, backend, num_workers), alone(kind, mode))


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
def test_counting_environments_follow_the_autoreset_mode(mode):
    """Environment 0 ends after 2 steps. The expected values are listed step by step."""
    with VectorEnv([lambda: CountingEnv(0, 2)], autoreset_mode=mode) as envs:
        envs.reset()
        seen = [envs.step([0]) for _ in range(3 if mode != AutoresetMode.DISABLED else 2)]
    counts = [obs[0].tolist() for obs, *_ in seen]
    ends = [bool(terminated[0]) for _, _, terminated, _, _ in seen]
    rewards = [reward[0] for _, reward, *_ in seen]
    if mode == AutoresetMode.NEXT_STEP:
        assert counts == [[0, 0, 1], [0, 0, 2], [0, 1, 0]]
        assert ends == [False, True, False]
        assert rewards == [1, 2, 0]
    elif mode == AutoresetMode.SAME_STEP:
        assert counts == [[0, 0, 1], [0, 1, 0], [0, 1, 1]]
        assert ends == [False, True, False]
        assert rewards == [1, 2, 1]
        assert seen[1][-1]["final_obs"][0].tolist() == [0, 0, 2]
        assert seen[1][-1]["final_info"]["count"].tolist() == [2]
    else:
        assert counts == [[0, 0, 1], [0, 0, 2]]
        assert ends == [False, True]


@pytest.mark.parametrize(("backend", "num_workers"), [("serial", 1), ("threads", 3), ("processes", 3), RAY])
def test_num_episodes_is_equal_on_every_backend(backend, num_workers):
    """With `num_episodes`, the environments of `SyncVectorEnv` stop one after another."""

    def run(**place: Any) -> list[Any]:
        with SyncVectorEnv(counting(N, delay=0.001), num_episodes=2, **place) as env:
            results: list[Any] = [env.reset(seed=3)]
            results += [env.step(np.full(N, k % 4)) for k in range(18)]
            return results

    assert_same(run(backend=backend, num_workers=num_workers), run())


def targets(t: Transition) -> np.ndarray:
    """Returns the successor's count as a value target sees it, where there is a successor to bootstrap from."""
    return t.discount * t.next_obs[:, 2]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
@pytest.mark.parametrize(("backend", "num_workers"), [("serial", 1), ("threads", 2), ("processes", 2), RAY])
def test_value_targets_at_truncation_use_final_observations(backend, num_workers, mode):
    """`Transition.next_obs` is the true successor in every mode, also where `obs` starts the next episode."""
    pool = Pool(split_env_fns(counting(4, 3), backend, num_workers), backend)
    pool.reset()
    reset_done = mode == AutoresetMode.SAME_STEP
    for _ in range(3):
        t = pool.step(np.zeros(4, int), reset_done=reset_done)
    assert t.terminated.tolist() == [True, False, False, False]
    assert targets(t).tolist() == [0, 3, 3, 3]
    begin = t.done if mode == AutoresetMode.NEXT_STEP else None
    if mode == AutoresetMode.DISABLED:
        pool.reset(ids=np.flatnonzero(t.done))
    t = pool.step(np.zeros(4, int), reset_done=reset_done, reset_mask=begin)
    assert t.truncated.tolist() == [False, True, False, False]
    assert t.next_obs[1].tolist() == [1, 0, 4]  # the last count, not the first one of the next episode
    assert t.obs[1].tolist() == ([1, 1, 0] if reset_done else [1, 0, 4])
    assert targets(t)[1] == 4
    pool.close()


def test_episode_records_are_equal_in_every_autoreset_mode():
    """Returns and lengths are counted once, in the engine."""
    records: list[set[Any]] = []
    for reset_done in (True, False):
        pool = Pool(split_env_fns(counting(3, 2), "serial", 1), "serial")
        pool.reset()
        is_over, record = np.zeros(3, bool), []
        for _ in range(9):
            t = pool.step(np.ones(3, int), reset_done=reset_done, reset_mask=None if reset_done else is_over)
            is_over = np.zeros(3, bool) if reset_done else t.done
            record += zip(
                t.episodes.ids.tolist(), t.episodes.returns.tolist(), t.episodes.lengths.tolist(), strict=True
            )
        records.append({(i, r, n) for i, r, n in record})
        pool.close()
    assert records[0] == records[1] == {(0, 5.0, 2), (1, 9.0, 3), (2, 14.0, 4)}
