"""What goes wrong in an actor: told as everywhere else, and no actor is left."""

import gc
import os
import signal
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from tests.clusters import TestCluster, wait_for

from vecrl.engine.pool import Pool
from vecrl.errors import StepTimeout, WorkerCrash, WorkerError

from .zoo import (
    DEADLY,
    PLACES,
    RAISING,
    Counting,
    Fault,
    Unpicklable,
    Unrebuildable,
    make_pool,
    one_bad,
    raises,
    sleeps,
    sleeps_forever,
)

pytestmark = pytest.mark.ray
ACTIONS = np.zeros(4, int)


def use(pool: Pool, place: str) -> Any:
    """Do what leads to `place`."""
    if place in ("reset", "close"):
        return getattr(pool, place)()
    if place == "step":
        return pool.step(ACTIONS)
    if place == "render":
        return pool.invoke("render")
    return pool.invoke("call", "peek", [((), {})] * 4)


@pytest.mark.parametrize("fault", RAISING, ids=lambda f: f.__name__)
def test_raising_is_named_with_its_traceback_in_every_place(fault: Fault) -> None:
    """Environment i raises in the i-th place; a constructor that does would leave no pool."""
    places = [place for place in PLACES if place != "construct"]
    pool = make_pool([partial(Counting, i, places[i], fault) for i in range(5)], "ray")
    actions = np.zeros(5, int)
    uses = {"step": lambda: pool.step(actions), "peek": lambda: pool.invoke("call", "peek", [((), {})] * 5)}
    for i, place in enumerate(places):
        with pytest.raises(WorkerError) as caught:
            uses.get(place, lambda place=place: use(pool, place))()
        assert type(caught.value) is WorkerError
        (failure,) = caught.value.failures
        assert (failure.env_ids, failure.command, failure.kind) == ((i,), place, "raised")
        assert f"environment {i} (worker {failure.worker}, pid {failure.pid}) in '{place}'" in str(caught.value)
        assert RAISING[fault] in str(caught.value)
        assert f"in {fault.__name__}" in failure.traceback, "the frame that raised is shown"
        if place in ("reset", "step"):
            np.testing.assert_array_equal(np.delete(caught.value.transition.obs[:, 0], i), np.delete(np.arange(5), i))
            np.testing.assert_array_equal(pool.reset(ids=[i]).obs[:, 0], [i])
        assert type(caught.value.__cause__) is (ArithmeticError if fault is raises else type(caught.value.__cause__))


def test_a_constructor_that_raises_leaves_nothing(cluster: TestCluster) -> None:
    with pytest.raises(WorkerError, match=r"environment 1 .* in 'construct': ArithmeticError: went wrong on purpose"):
        make_pool(one_bad("construct", raises), "ray")
    assert wait_for(lambda: not cluster.actors())


@pytest.mark.parametrize("fault", DEADLY, ids=lambda f: f.__name__)
def test_an_actor_that_dies_is_named_at_once_and_the_living_go_on(fault: Fault) -> None:
    pool = make_pool(one_bad("step", fault, count=4), "ray")
    pool.reset()
    begin = time.monotonic()
    with pytest.raises(
        WorkerCrash, match=r"environments 0, 1 .*in 'step' number 1: its actor on node \w+ is gone"
    ) as caught:
        pool.step(ACTIONS)
    assert time.monotonic() - begin < 1.0
    (failure,) = caught.value.failures
    assert failure.kind == "crashed"
    assert failure.pid > 0
    assert "The actor is dead because its worker process has died" in str(caught.value)
    np.testing.assert_array_equal(caught.value.transition.obs[2:], [[2, 0, 1], [3, 0, 1]])
    with pytest.raises(WorkerCrash, match="environments 0, 1"):
        pool.step(ACTIONS)
    pool.send([3, 2], np.zeros(2, int))
    np.testing.assert_array_equal(pool.recv().obs, [[3, 0, 2], [2, 0, 2]])
    pool.close()


def test_a_death_between_commands_is_told_by_the_next_and_while_others_work_before_they_answer() -> None:
    pool = make_pool([lambda: Counting(0, "step", sleeps_forever), Counting], "ray")
    pool.reset()
    pid = pool.invoke("get", "pid")[1]
    pool.send([0], [0])
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not psutil.pid_exists(pid))
    begin = time.monotonic()
    pool.send([1], [0])
    with pytest.raises(WorkerCrash, match="environment 1 "):
        pool.recv(at_least=1)
    assert time.monotonic() - begin < 1.0
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 3.0, "a second for those who are busy, no more"


def test_a_late_answer_is_never_taken_for_the_next() -> None:
    pool = make_pool(one_bad("step", partial(sleeps, seconds=0.5), at=2, bad=2), "ray", 3, step_timeout=0.2)
    pool.reset()
    pool.step(np.zeros(3, int))
    with pytest.raises(StepTimeout, match=r"environment 2 .* in 'step'.*no answer within 0\.2 s") as caught:
        pool.step(np.zeros(3, int))
    assert caught.value.env_ids == (2,), "nobody else"
    np.testing.assert_array_equal(pool.wait(5.0).obs, [[0, 0, 2], [1, 0, 2], [2, 0, 2]])
    np.testing.assert_array_equal(pool.step(np.zeros(3, int)).reward, [3, 3, 3])
    pool.close()


@pytest.mark.parametrize("stop", ["sleeps", "stopped"])
def test_a_stuck_actor_is_late_and_can_be_closed(stop: str, cluster: TestCluster) -> None:
    fault = sleeps_forever if stop == "sleeps" else None
    pool = make_pool(one_bad("step", fault, bad=3, count=4), "ray", step_timeout=0.3)  # type: ignore[arg-type]
    pool.reset()
    if stop == "stopped":
        os.kill(pool.invoke("get", "pid")[3], signal.SIGSTOP)
    with pytest.raises(StepTimeout, match=r"environments? .*3"):
        pool.step(ACTIONS)
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 3.0
    assert wait_for(lambda: not cluster.actors())


def test_what_cannot_travel_is_a_failure_of_its_environment() -> None:
    makers = [Counting, partial(Counting, 1, "peek", lambda env: Unpicklable()), partial(Counting, 2, "peek")]
    pool = make_pool([*makers, partial(Counting, 3, "peek", lambda env: Unrebuildable())], "ray", 4)
    pool.reset()
    with pytest.raises(WorkerError) as caught:
        use(pool, "peek")
    texts = {failure.env_ids: failure.error for failure in caught.value.failures}
    assert "cannot be pickled" in texts[(1,)]
    assert "cannot be unpickled in this process" in texts[(3,)]
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, 1.0)
    pool.close()


def test_a_pool_that_is_collected_takes_its_actors_along(cluster: TestCluster) -> None:
    pool = make_pool([Counting] * 2, "ray")
    pool.reset()
    assert len(cluster.actors()) == 2
    del pool
    gc.collect()
    assert wait_for(lambda: not cluster.actors())


def test_a_fork_of_the_caller_harms_nobody() -> None:
    pool = make_pool([Counting] * 2, "ray")
    pool.reset()
    pid = os.fork()
    if pid == 0:
        os._exit(len(pool._backend.shutdown()))
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.step(np.zeros(2, int)).reward.tolist() == [1.0, 1.0]
    pool.close()


def test_ctrl_c_at_any_time_and_a_reset_makes_all_good() -> None:
    pool = make_pool([partial(Counting, i) for i in range(4)], "ray", 2, step_timeout=10.0)
    pool.reset()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    random = np.random.default_rng(1)
    try:
        for _ in range(20):
            timer = threading.Timer(random.uniform(1e-3, 2e-2), os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                timer.start()
                while True:
                    pool.step(ACTIONS)
                    pool.send([0, 3], ACTIONS[:2])
                    pool.recv()
            np.testing.assert_array_equal(pool.reset().obs[:, 2], 0)
            np.testing.assert_array_equal(pool.step(ACTIONS).reward, 1.0)
            assert not len(pool.pending)
    finally:
        signal.signal(signal.SIGINT, before)
    pool.close()
