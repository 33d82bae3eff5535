"""`VectorEnv` returns the same values as `gymnasium.vector.SyncVectorEnv` on every backend."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.fixtures.equality import assert_same
from tests.fixtures.gym_envs import GYMNASIUM, SPACES, makers

from vecrl.vector import AsyncVectorEnv, VectorEnv

NUM_ENVS = 4
STEPS = 24
MODES = list(AutoresetMode)
PLACES = [("serial", 1), ("serial", 3), ("threads", 2), ("processes", 1), ("processes", 3)]
MIXED_INFO = {"FrozenLake-v1"}  # an int at a reset, a float at a step; gymnasium keeps the first type


def drive(make: Callable[[], Any], mode: AutoresetMode) -> list[Any]:
    """Returns all results of a vector environment: resets of every kind, steps, spaces, seeds."""
    with_mask = np.array([True, False, True, False])
    envs = make()
    results: list[Any] = [envs.reset(seed=11)]
    envs.action_space.seed(5)
    for step in range(STEPS):
        if step == 9:
            results.append(envs.reset(seed=[3, None, 7, 8], options={"reset_mask": with_mask.copy(), "more": 1}))
        if step == 16:
            results.append(envs.reset(seed=[1, None, 2, 3], options={"easy": True}))
        if step == 20:
            results.append(envs.reset())
        result = envs.step(envs.action_space.sample())
        results.append(copy.deepcopy(result))
        done = result[2] | result[3]
        if mode == AutoresetMode.DISABLED and done.any():
            results.append(envs.reset(options={"reset_mask": done.copy()}))
    results.append((envs.np_random_seed, envs.metadata["autoreset_mode"], envs.num_envs, envs.render_mode))
    for name in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
        results.append(getattr(envs, name))
    envs.close()
    return results


@lru_cache
def reference(name: str, mode: AutoresetMode) -> list[Any]:
    """Returns the results of gymnasium."""
    return drive(lambda: gymnasium.vector.SyncVectorEnv(makers(name, NUM_ENVS), autoreset_mode=mode), mode)


def check(make: Callable[[], Any], name: str, mode: AutoresetMode) -> None:
    actual, expected = drive(make, mode), reference(name, mode)
    if name in MIXED_INFO:
        actual, expected = without_infos(actual), without_infos(expected)
    assert_same(actual, expected)


def without_infos(results: list[Any]) -> list[Any]:
    return [part[:-1] if isinstance(part, tuple) and isinstance(part[-1], dict) else part for part in results]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
@pytest.mark.parametrize("name", ["counting", *GYMNASIUM, *SPACES])
def test_serial_equals_gymnasium(name, mode):
    """Covers every environment and every observation space of gymnasium, in all auto-reset modes."""
    check(lambda: VectorEnv(makers(name, NUM_ENVS), autoreset_mode=mode), name, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
@pytest.mark.parametrize(("backend", "num_workers"), PLACES[1:])
@pytest.mark.parametrize("name", ["CartPole-v1", "Blackjack-v1", "dict", "graph", "image", "dict_of_text", "counting"])
def test_other_backends_equal_gymnasium(name, backend, num_workers, mode):
    """Covers all backends and numbers of workers, in all auto-reset modes."""
    make = lambda: VectorEnv(makers(name, NUM_ENVS), backend=backend, num_workers=num_workers, autoreset_mode=mode)  # noqa: E731
    check(make, name, mode)


@pytest.mark.ray
@pytest.mark.parametrize(("name", "mode"), [*zip(["counting", "dict_of_text", "image"], MODES, strict=True)])
def test_ray_backend_equals_gymnasium(name, mode):
    """Covers infos, partial resets, opaque leaves, final observations, and rows that are too large for inline transfer
    by Ray."""
    test_other_backends_equal_gymnasium(name, "ray", 2, mode)


@pytest.mark.parametrize("name", [*GYMNASIUM, *SPACES])
def test_every_environment_in_processes_equals_gymnasium(name):
    """Covers every environment and observation space: through shared memory, or pickled if the size is not fixed."""
    make = lambda: VectorEnv(makers(name, NUM_ENVS), backend="processes", num_workers=2, autoreset_mode="same_step")  # noqa: E731
    check(make, name, AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4", "sequence", "counting"])
def test_async_vector_env_equals_gymnasium(name, mode):
    """`AsyncVectorEnv` returns the same values."""
    check(lambda: AsyncVectorEnv(makers(name, NUM_ENVS), num_workers=2, autoreset_mode=mode), name, mode)


def test_info_dtypes_are_widened():
    """Where gymnasium truncates 0.5 to 0 (the first environment returned an integer), no value is lost."""
    from vecrl.engine.infos import merge

    merged = merge(iter([(0, {"x": 1}), (1, {"x": 0.5})]), 2)
    np.testing.assert_array_equal(merged["x"], [1.0, 0.5])
