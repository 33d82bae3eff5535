"""`SimulatorPool`: the results of a step that resets rows with an ended episode equal those of a `Pool`."""

from typing import Any

import numpy as np
import pytest
from tests.fixtures.batch_simulators import CountingBatch, SeededCountingEnv

from vecrl.engine.pool import Pool
from vecrl.engine.simulator import SimulatorMaker
from vecrl.errors import PendingError
from vecrl.simulators.gymnasium import GymnasiumSimulator
from vecrl.simulators.native import make_native
from vecrl.vector import BatchedVectorEnv
from vecrl.vector.simulator_pool import SimulatorPool


def assert_equal_transitions(actual: Any, expected: Any) -> None:
    for name in (
        "ids",
        "obs",
        "reward",
        "terminated",
        "truncated",
        "was_reset",
        "final_rows",
        "final_obs",
        "done_rows",
    ):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(actual.next_obs, expected.next_obs)


def test_steps_with_resets_equal_those_of_a_pool() -> None:
    simulator, seeds = CountingBatch(4), [0, 1, 2, 3]
    pool = Pool([(SimulatorMaker(GymnasiumSimulator, [SeededCountingEnv] * 4), 4)])
    simulator_pool: Any = SimulatorPool(simulator)
    assert_equal_transitions(simulator_pool.reset(seeds), pool.reset(seeds))
    ended = 0
    for _ in range(10):
        simulator_pool.step_async(np.zeros(4, np.int64), reset_done=True)
        transition = simulator_pool.wait()
        assert_equal_transitions(transition, pool.step(np.zeros(4, np.int64), reset_done=True))
        rows = transition.final_rows.tolist()
        assert [i for i, _ in transition.final_infos.items()] == rows
        assert sorted([i for i, _ in transition.infos.items()] + rows) == [0, 1, 2, 3]
        ended += len(rows)
    assert ended > 8
    pool.close()


def test_fused_steps_with_resets_equal_those_of_the_vector_env() -> None:
    pool: Any = SimulatorPool(make_native("CartPole-v1", 3))
    envs = BatchedVectorEnv(make_native("CartPole-v1", 3), autoreset_mode="same_step")
    np.testing.assert_array_equal(pool.reset([4, 5, 6]).obs, envs.reset(seed=4)[0])
    for _ in range(12):
        pool.step_async(np.ones(3, np.int64), reset_done=True)
        transition, (obs, _, terminated, _, info) = pool.wait(), envs.step(np.ones(3, np.int64))
        np.testing.assert_array_equal(transition.obs, obs)
        assert transition.final_rows.tolist() == np.flatnonzero(terminated).tolist()
        for row, final_obs in zip(transition.final_rows, transition.final_obs if any(terminated) else (), strict=True):
            np.testing.assert_array_equal(final_obs, info["final_obs"][row])


def test_a_result_needs_a_step() -> None:
    pool = SimulatorPool(make_native("CartPole-v1", 3))
    pool.reset()
    with pytest.raises(PendingError, match=r"Expected a pending step, got none\. Call step_async first"):
        pool.wait()
