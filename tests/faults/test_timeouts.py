"""An environment that is late: `StepTimeout` names it, and its answer is never taken for a later one's."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from vecrl.engine.pool import Pool
from vecrl.errors import PendingError, StepTimeout, WorkerError

from .zoo import BACKENDS, Counting, make_pool, one_bad, sleeps, sleeps_forever

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(3, int)


def _late_pool(backend: str, place: str = "step", at: int = 2) -> Pool:
    """A pool whose environment 2, alone in its worker, is late once."""
    pool = make_pool(one_bad(place, sleeps, at, bad=2), backend, 3, step_timeout=0.1)
    pool.step_timeout = None
    pool.reset()
    pool.step_timeout = 0.1
    return pool


@pytest.mark.parametrize("backend", BACKENDS)
def test_waiting_again_yields_the_late_answer(backend: str) -> None:
    pool = _late_pool(backend)
    pool.step(ACTIONS)
    begin = time.monotonic()
    with pytest.raises(StepTimeout, match=r"environment 2 .* in 'step'.*no answer within 0\.1 s") as caught:
        pool.step(ACTIONS)
    assert caught.value.env_ids == (2,)
    assert isinstance(caught.value, TimeoutError)
    if backend != "serial":
        assert time.monotonic() - begin < 0.3
        with pytest.raises(StepTimeout):
            pool.wait(0.01)
    with pytest.raises(PendingError, match="still under way"):
        pool.step(ACTIONS)
    late = pool.wait(5.0)
    np.testing.assert_array_equal(late.obs, [[0, 0, 2], [1, 0, 2], [2, 0, 2]])
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, [3, 3, 3])
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reset_waits_for_the_late_and_drops_them(backend: str) -> None:
    pool = _late_pool(backend)
    pool.step(ACTIONS)
    with pytest.raises(StepTimeout):
        pool.step(ACTIONS)
    pool.step_timeout = 5.0
    np.testing.assert_array_equal(pool.reset().obs, [[0, 1, 0], [1, 1, 0], [2, 1, 0]])
    np.testing.assert_array_equal(pool.step(ACTIONS).obs[:, 1:], [[1, 1]] * 3)
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_others_of_a_partial_step_do_not_wait(backend: str) -> None:
    pool = _late_pool(backend, at=1)
    pool.send([0, 2, 1], ACTIONS)
    came = pool.recv(at_least=1, timeout=5.0).ids.tolist()
    if backend != "serial":  # which does what is asked in the order in which it was asked
        while len(came) < 2:
            came += pool.recv(at_least=1, timeout=5.0).ids.tolist()
        assert sorted(came) == [0, 1]
        with pytest.raises(StepTimeout, match=r"environment 2 \(worker 2"):
            pool.recv(timeout=0.0)
    assert 0 in came
    assert 2 in pool.pending
    with pytest.raises(PendingError, match=r"\[.*2\] are still under way"):
        pool.send([2], [0])
    pool.send([0], [1])
    pending = pool.pending.tolist()
    rest = pool.recv(timeout=5.0)
    assert sorted(rest.ids.tolist()) == pending
    np.testing.assert_array_equal(rest.reward, np.where(rest.ids == 0, 2.0, 1.0))
    assert pool.pending.tolist() == []
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", ["reset", "peek", "render"])
def test_every_place_has_the_limit(place: str, backend: str) -> None:
    pool = make_pool(one_bad(place, sleeps, bad=2), backend, 3, step_timeout=0.1)
    uses: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "reset": (pool.reset, lambda: pool.wait(5.0).obs[:, 0].tolist()),
        "peek": (lambda: pool.invoke("call", "peek", [((), {})] * 3), lambda: pool.invoke_wait(5.0)),
        "render": (lambda: pool.invoke("render"), lambda: [frame.max() for frame in pool.invoke_wait(5.0)]),
    }
    use, again = uses[place]
    with pytest.raises(StepTimeout, match=r"environment 2 "):
        use()
    assert again() == [0, 1, 2]
    pool.close()


def test_closing_does_not_wait_for_those_who_never_come() -> None:
    for place in ("step", "close"):
        pool = make_pool(one_bad(place, sleeps_forever), "processes", step_timeout=0.2)
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
    pool = make_pool([partial(Counting, i, "close", sleeps_forever) for i in range(3)], "processes", 2)
    with pytest.raises(StepTimeout) as caught:
        pool.close(0.2)
    assert [(failure.worker, failure.env_ids) for failure in caught.value.failures] == [(0, (0, 1)), (1, (2,))]


def test_a_thread_that_cannot_be_ended_is_named() -> None:
    pool = make_pool(one_bad("close", sleeps, bad=2), "threads", 3)
    pool.reset()
    with pytest.raises(WorkerError, match=r"environment 2 .* in 'close': not closed within 0\.05 s"):
        pool.close(0.05)
    pool.close()


def test_a_thread_that_is_stuck_in_a_step_is_named_when_closing() -> None:
    pool = make_pool(one_bad("step", sleeps, bad=2), "threads", 3, step_timeout=0.1)
    pool.reset()
    with pytest.raises(StepTimeout):
        pool.step(ACTIONS)
    with pytest.raises(StepTimeout, match="its thread cannot be ended") as caught:
        pool.close(0.1)
    assert 2 in caught.value.env_ids


@pytest.mark.parametrize("backend", BACKENDS)
def test_late_and_failing_at_once_is_told_when_all_is_known(backend: str) -> None:
    def sleeps_and_raises(env: Any) -> None:
        sleeps(env)
        raise ArithmeticError("late and wrong")

    pool = make_pool(one_bad("step", sleeps_and_raises, bad=2), backend, 3, step_timeout=0.1)
    pool.reset()
    with pytest.raises(StepTimeout):
        pool.step(ACTIONS)
    with pytest.raises(WorkerError, match=r"environment 2 .*ArithmeticError: late and wrong") as caught:
        pool.wait(5.0)
    assert not isinstance(caught.value, StepTimeout)
    np.testing.assert_array_equal(caught.value.transition.reward[:2], [1, 1])
    np.testing.assert_array_equal(pool.reset(ids=[2]).obs, [[2, 1, 0]])
    pool.close()
