"""Environments that are late: `StepTimeout` names them, and a late reply is never taken for a later command's."""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv, env_fns_with_fault, sleeps, sleeps_forever
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.engine.pool import Pool
from vecrl.errors import PendingError, StepTimeout, WorkerError

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(3, int)


def _late_pool(backend: str, place: str = "step", at: int = 2) -> Pool:
    """Returns a pool in which environment 2, alone in its worker, is late once."""
    pool = make_pool(env_fns_with_fault(place, sleeps, at, bad=2), backend, 3, step_timeout=0.1)
    pool.step_timeout = None
    pool.reset()
    pool.step_timeout = 0.1
    return pool


@pytest.mark.parametrize("backend", BACKENDS)
def test_waiting_again_returns_the_late_reply(backend: str) -> None:
    pool = _late_pool(backend)
    pool.step(ACTIONS)
    begin = time.monotonic()
    with pytest.raises(StepTimeout, match=r"environment 2 .* in 'step'.*no reply within 0\.1 s") as exc_info:
        pool.step(ACTIONS)
    assert exc_info.value.env_ids == (2,)
    assert isinstance(exc_info.value, TimeoutError)
    assert "cancel them, or close. Asynchronous classes can also receive again: by step_wait" in str(exc_info.value)
    if backend != "serial":
        assert time.monotonic() - begin < 0.3
        with pytest.raises(StepTimeout):
            pool.wait(0.01)
    with pytest.raises(PendingError, match="still pending"):
        pool.step(ACTIONS)
    late = pool.wait(5.0)
    np.testing.assert_array_equal(late.obs, [[0, 0, 2], [1, 0, 2], [2, 0, 2]])
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, [3, 3, 3])
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_reset_waits_for_pending_commands_and_drops_them(backend: str) -> None:
    pool = _late_pool(backend)
    pool.step(ACTIONS)
    with pytest.raises(StepTimeout):
        pool.step(ACTIONS)
    pool.step_timeout = 5.0
    np.testing.assert_array_equal(pool.reset().obs, [[0, 1, 0], [1, 1, 0], [2, 1, 0]])
    np.testing.assert_array_equal(pool.step(ACTIONS).obs[:, 1:], [[1, 1]] * 3)
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_environments_of_a_partial_step_do_not_wait(backend: str) -> None:
    pool = _late_pool(backend, at=1)
    pool.send([0, 2, 1], ACTIONS)
    actual = pool.recv(at_least=1, timeout=5.0).ids.tolist()
    if backend != "serial":  # which executes its commands in order
        while len(actual) < 2:
            actual += pool.recv(at_least=1, timeout=5.0).ids.tolist()
        assert sorted(actual) == [0, 1]
        with pytest.raises(StepTimeout, match=r"environment 2 \(worker 2"):
            pool.recv(timeout=0.0)
    assert 0 in actual
    assert 2 in pool.pending
    with pytest.raises(PendingError, match=r"\[.*2\] are still pending"):
        pool.send([2], [0])
    pool.send([0], [1])
    pending = pool.pending.tolist()
    remaining = pool.recv(timeout=5.0)
    assert sorted(remaining.ids.tolist()) == pending
    np.testing.assert_array_equal(remaining.reward, np.where(remaining.ids == 0, 2.0, 1.0))
    assert pool.pending.tolist() == []
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", ["reset", "peek", "render"])
def test_every_command_has_the_timeout(place: str, backend: str) -> None:
    pool = make_pool(env_fns_with_fault(place, sleeps, bad=2), backend, 3, step_timeout=0.1)
    uses: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "reset": (pool.reset, lambda: pool.wait(5.0).obs[:, 0].tolist()),
        "peek": (lambda: pool.invoke("call", "peek", [((), {})] * 3), lambda: pool.invoke_wait(5.0)),
        "render": (lambda: pool.invoke("render"), lambda: [frame.max() for frame in pool.invoke_wait(5.0)]),
    }
    use, repeated = uses[place]
    with pytest.raises(StepTimeout, match=r"environment 2 "):
        use()
    assert repeated() == [0, 1, 2]
    pool.close()


def test_close_does_not_wait_for_hung_workers() -> None:
    for place in ("step", "close"):
        pool = make_pool(env_fns_with_fault(place, sleeps_forever), "processes", step_timeout=0.2)
        pool.reset()
        begin = time.monotonic()
        if place == "step":
            with pytest.raises(StepTimeout):
                pool.step(ACTIONS)
            pool.close()
        else:
            with pytest.raises(StepTimeout, match=r"environments 0, 1 .* in 'close': not closed within 0\.2 s"):
                pool.close()
        assert time.monotonic() - begin < 1.0


def test_each_worker_that_does_not_close_is_named() -> None:
    pool = make_pool([partial(FaultyEnv, i, "close", sleeps_forever) for i in range(3)], "processes", 2)
    with pytest.raises(StepTimeout) as exc_info:
        pool.close(0.2)
    assert [(failure.worker, failure.env_ids) for failure in exc_info.value.failures] == [(0, (0, 1)), (1, (2,))]


def test_hung_threads_are_named() -> None:
    pool = make_pool(env_fns_with_fault("close", sleeps, bad=2), "threads", 3)
    pool.reset()
    with pytest.raises(WorkerError, match=r"environment 2 .* in 'close': not closed within 0\.05 s"):
        pool.close(0.05)
    pool.close()


def test_threads_hung_in_a_step_are_named_at_close() -> None:
    pool = make_pool(env_fns_with_fault("step", sleeps, bad=2), "threads", 3, step_timeout=0.1)
    pool.reset()
    with pytest.raises(StepTimeout):
        pool.step(ACTIONS)
    with pytest.raises(StepTimeout, match="its thread cannot be killed") as exc_info:
        pool.close(0.1)
    assert 2 in exc_info.value.env_ids


def test_a_program_with_a_hung_thread_ends() -> None:
    program = """
from tests.fixtures.faulty_envs import env_fns_with_fault, sleeps_forever
from tests.fixtures.pools import make_pool
pool = make_pool(env_fns_with_fault("step", sleeps_forever, at=1, bad=2), "threads", 3)
pool.reset()
pool.step_async([0, 0, 0])
print("stepped")
"""
    run = subprocess.run([sys.executable, "-c", program], timeout=60, check=True, capture_output=True, text=True)
    assert "stepped" in run.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_timeouts_and_failures_raise_together(backend: str) -> None:
    def sleeps_and_raises(env: Any) -> None:
        sleeps(env)
        raise ArithmeticError("late and wrong")

    pool = make_pool(env_fns_with_fault("step", sleeps_and_raises, bad=2), backend, 3, step_timeout=0.1)
    pool.reset()
    with pytest.raises(StepTimeout):
        pool.step(ACTIONS)
    with pytest.raises(WorkerError, match=r"environment 2 .*ArithmeticError: late and wrong") as exc_info:
        pool.wait(5.0)
    assert not isinstance(exc_info.value, StepTimeout)
    np.testing.assert_array_equal(exc_info.value.transition.reward[:2], [1, 1])
    np.testing.assert_array_equal(pool.reset(ids=[2]).obs, [[2, 1, 0]])
    pool.close()
