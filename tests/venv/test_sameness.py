"""Equal seeds and actions give bit-identical results for every class and number of workers."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import makers
from tests.fixtures.venv_envs import KINDS, ids_of

from vecrl.venv import BaseVectorEnv

N = 5
PLACES = [("dummy", 1), ("dummy", 3), ("subproc", None), ("shmem", None), ("shmem", 2)]
WHAT = ["counting", "dict", "box", "text", "CartPole-v1"]


def begin(what: str, kind: str, num_workers: int | None, **options: Any) -> BaseVectorEnv:
    return KINDS[kind](makers(what, N), num_workers=num_workers, **options)


def trajectory(what: str, kind: str, num_workers: int | None) -> list[Any]:
    """Returns full steps, partial steps, and resets of ended environments."""
    rng = np.random.default_rng(3)
    with begin(what, kind, num_workers) as envs:
        results: list[Any] = [envs.seed(5), envs.reset()]
        for turn in range(30):
            ids = rng.permutation(N)[: 1 + turn % N]
            actions = rng.integers(0, 2, N)
            results.append(result := envs.step(actions) if turn % 3 else envs.step(actions[ids], ids))
            is_over = [info["env_id"] for info, end in zip(result[4], result[2] | result[3], strict=True) if end]
            if is_over:
                results.append(envs.reset(is_over, **({"seed": turn} if turn % 2 else {})))
        return copy.deepcopy(results)


@lru_cache
def alone(what: str) -> list[Any]:
    return trajectory(what, *PLACES[0])


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(("kind", "num_workers"), PLACES[1:])
def test_trajectories_are_equal_on_every_backend(what, kind, num_workers):
    assert_same(trajectory(what, kind, num_workers), alone(what))


def results_by_env(what: str, kind: str, num_workers: int | None, **options: Any) -> list[list[Any]]:
    """Returns the results of each environment in 12 steps with its own actions, in any order of readiness."""
    actions = np.random.default_rng(4).integers(0, 2, (N, 12))
    reported: list[list[Any]] = [[] for _ in range(N)]
    steps, is_over = [0] * N, set()
    with begin(what, kind, num_workers, **options) as envs:

        def reset_ids(ids: list[int], **seeds: Any) -> None:
            for i, *result in zip(ids, *envs.reset(ids, **seeds), strict=True):
                reported[i].append(result)
                is_over.discard(i)

        reset_ids(list(range(N)), seed=list(range(N)))
        while sum(steps) < 12 * N:
            free = [i for i in envs.ready_id if steps[i] < 12]
            if reset_rows := [i for i in free if i in is_over]:
                reset_ids(reset_rows)
            result = envs.step(actions[free, [steps[i] for i in free]], free) if free else envs.step(None)
            for row, i in enumerate(ids_of(result[4])):
                reported[i].append([part[row] for part in result])
                steps[i] += 1
                if result[2][row] or result[3][row]:
                    is_over.add(i)
        return copy.deepcopy(reported)


@lru_cache
def results_without_waiting(what: str) -> list[list[Any]]:
    return results_by_env(what, "dummy", 1)


@pytest.mark.parametrize("what", ["counting", "dict", "CartPole-v1"])
@pytest.mark.parametrize(("kind", "num_workers"), [("dummy", None), ("shmem", None), ("subproc", 3)])
@pytest.mark.parametrize("options", [{"wait_num": 1}, {"wait_num": 3}, {"timeout": 0.001}])
def test_environments_do_not_depend_on_waiting_order(what, kind, num_workers, options):
    assert_same(results_by_env(what, kind, num_workers, **options), results_without_waiting(what))
