"""`on_failure` and `cancel` on Ray: failed, crashed or timed-out actors are replaced, and the others do not wait."""

from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import Fault, exits, is_killed, raises, sleeps_forever

from vecrl.seeding import seed_for

from .test_recovery import ACTIONS, _pool

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("fault", [raises, exits, is_killed], ids=lambda f: f.__name__)
def test_failed_rows_are_truncated_and_reset_in_the_same_step(fault: Fault, tmp_path: Any) -> None:
    pool = _pool("ray", fault, tmp_path / "mark")
    pool.reset([10, 11, 12])
    pool.step(ACTIONS, reset_done=True)
    t = pool.step(ACTIONS, reset_done=True)
    np.testing.assert_array_equal(t.truncated, [False, True, False])
    np.testing.assert_array_equal(t.obs, [[0, 0, 2], [1, 0, 0], [2, 0, 2]])
    np.testing.assert_array_equal(t.next_obs, [[0, 0, 2], [1, 0, 1], [2, 0, 2]])
    assert dict(t.infos.items())[1] == {"env_id": 1, "seed": seed_for(11, 0, 1)}, "its seed stream goes on"
    assert dict(t.final_infos.items())[1]["failed"] is True
    t = pool.step(ACTIONS, reset_done=True)
    np.testing.assert_array_equal(t.obs, [[0, 0, 3], [1, 0, 1], [2, 0, 3]])
    pool.close()


def test_hung_actors_are_replaced(tmp_path: Any) -> None:
    pool = _pool("ray", sleeps_forever, tmp_path / "mark", on_failure="raise")
    pool.reset([1, 2, 3])
    pool.step(ACTIONS)
    pool.send([0, 1], [0, 0])
    assert pool.recv(at_least=1).ids.tolist() == [0]
    assert pool.cancel([1]).tolist() == [1]
    assert pool.reset(ids=[1]).obs.tolist() == [[1, 0, 0]]
    assert pool.step(ACTIONS).obs[:, 2].tolist() == [3, 1, 2]
    pool.close()


def test_only_timed_out_actors_are_replaced(tmp_path: Any) -> None:
    pool = _pool("ray", sleeps_forever, tmp_path / "mark", step_timeout=2.0)
    pool.reset([1, 2, 3])
    pool.step(ACTIONS)
    assert pool.step(ACTIONS).truncated.tolist() == [False, True, False]
    pool.close()
