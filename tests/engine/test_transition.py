"""The record of a step and its three projections: the value of each field when an episode ends, per auto-reset mode."""

import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.engine.transition import Autoreset, AutoresetMode, autoreset_mode, gymnasium_step

LENGTHS = (2, 3)


@pytest.mark.parametrize("name", ["same_step", "SameStep", "SAME-STEP", "sameStep", AutoresetMode.SAME_STEP])
def test_autoreset_modes_have_aliases(name: str) -> None:
    assert autoreset_mode(name) is AutoresetMode.SAME_STEP


def test_unknown_modes_raise() -> None:
    with pytest.raises(ValueError, match="one of 'next_step', 'same_step', 'disabled', got 'never'"):
        autoreset_mode("never")


EXPECTED = {  # per mode and step: [episode, count] to act on, rewards and done flags
    "same_step": [
        ([[0, 1], [0, 1]], [1, 1], [False, False]),
        ([[1, 0], [0, 2]], [2, 2], [True, False]),
        ([[1, 1], [1, 0]], [1, 3], [False, True]),
        ([[2, 0], [1, 1]], [2, 1], [True, False]),
    ],
    "next_step": [
        ([[0, 1], [0, 1]], [1, 1], [False, False]),
        ([[0, 2], [0, 2]], [2, 2], [True, False]),
        ([[1, 0], [0, 3]], [0, 3], [False, True]),
        ([[1, 1], [1, 0]], [1, 0], [False, False]),
    ],
    "disabled": [
        ([[0, 1], [0, 1]], [1, 1], [False, False]),
        ([[0, 2], [0, 2]], [2, 2], [True, False]),
        ([[0, 3], [0, 3]], [3, 3], [False, True]),
        ([[0, 4], [0, 4]], [4, 4], [False, False]),
    ],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", EXPECTED)
def test_fields_of_each_autoreset_mode_step_by_step(mode: str, backend: str) -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i, length=LENGTHS[i]) for i in range(2)], backend)
    rule = Autoreset(mode, 2)
    pool.reset()
    for obs, reward, ends in EXPECTED[mode]:
        t = pool.step(np.zeros(2, int), reset_mask=rule.reset_mask(), reset_done=rule.reset_done)
        rule.after_step(t)
        np.testing.assert_array_equal(t.obs[:, 1:], obs)
        np.testing.assert_array_equal(t.reward, reward)
        np.testing.assert_array_equal(t.terminated, ends)
        np.testing.assert_array_equal(t.discount, 1.0 - np.array(ends))
        for i in range(2):
            after_reset = mode == "same_step" and ends[i]
            final = [obs[i][0] - 1, LENGTHS[i]] if after_reset else obs[i]
            np.testing.assert_array_equal(t.next_obs[i, 1:], final)
    pool.close()


def test_caller_resets_replace_pending_autoresets() -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i, length=1) for i in range(3)], "serial")
    rule = Autoreset("next_step", 3)
    pool.reset()
    assert rule.reset_mask() is None
    rule.after_step(pool.step(np.zeros(3, int)))
    pool.reset(ids=[1])
    rule.after_reset([1])
    np.testing.assert_array_equal(rule.reset_mask(), [True, False, True])
    t = pool.step(np.zeros(3, int), reset_mask=rule.reset_mask())
    np.testing.assert_array_equal(t.obs[:, 1:], [[1, 0], [1, 1], [1, 0]])
    rule.after_reset(slice(None))
    assert rule.reset_mask() is None
    pool.close()


def test_final_observations_and_infos_are_indexed_by_id() -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i, length=1 if i == 1 else 0) for i in range(3)], "serial")
    pool.reset()
    obs, reward, terminated, truncated, info = gymnasium_step(pool.step(np.zeros(3, int), reset_done=True), 3)
    np.testing.assert_array_equal(obs[:, 1:], [[0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(reward, 1.0)
    np.testing.assert_array_equal(terminated, [False, True, False])
    assert not truncated.any()
    np.testing.assert_array_equal(info["_final_obs"], [False, True, False])
    np.testing.assert_array_equal(info["final_obs"][1], [1, 0, 1])
    assert info["final_obs"][0] is None
    np.testing.assert_array_equal(info["final_info"]["count"], [0, 1, 0])
    np.testing.assert_array_equal(info["_env_id"], [False, True, False], "the info is the new episode's")
    pool.close()
