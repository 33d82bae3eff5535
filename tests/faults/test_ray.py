"""Failures of Ray actors: reported as on other backends, and no actor remains."""

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
from tests.fixtures.faulty_envs import (
    DEADLY,
    PLACES,
    RAISING,
    Fault,
    FaultyEnv,
    Unpicklable,
    Unrebuildable,
    env_fns_with_fault,
    raises,
    sleeps,
    sleeps_forever,
)
from tests.fixtures.pools import make_pool
from tests.fixtures.processes import wait_until
from tests.fixtures.ray_cluster import TestCluster

from vecrl.engine.pool import Pool
from vecrl.errors import StepTimeout, WorkerCrash, WorkerError

pytestmark = pytest.mark.ray
ACTIONS = np.zeros(4, int)


def use(pool: Pool, place: str) -> Any:
    """Calls the methods that lead to `place`."""
    if place in ("reset", "close"):
        return getattr(pool, place)()
    if place == "step":
        return pool.step(ACTIONS)
    if place == "render":
        return pool.invoke("render")
    return pool.invoke("call", "peek", [((), {})] * 4)


@pytest.mark.parametrize("fault", RAISING, ids=lambda f: f.__name__)
def test_exceptions_have_their_traceback_in_every_command(fault: Fault) -> None:
    """Environment i raises at the i-th place. Failing constructors are tested separately, since they leave no pool."""
    places = [place for place in PLACES if place != "construct"]
    pool = make_pool([partial(FaultyEnv, i, places[i], fault) for i in range(5)], "ray")
    actions = np.zeros(5, int)
    uses = {"step": lambda: pool.step(actions), "peek": lambda: pool.invoke("call", "peek", [((), {})] * 5)}
    for i, place in enumerate(places):
        with pytest.raises(WorkerError) as exc_info:
            uses.get(place, lambda place=place: use(pool, place))()
        cause_class = type(exc_info.value.__cause__)
        assert isinstance(exc_info.value, cause_class) == issubclass(cause_class, Exception)
        assert not isinstance(exc_info.value, WorkerCrash | StepTimeout)
        (failure,) = exc_info.value.failures
        assert (failure.env_ids, failure.command, failure.kind) == ((i,), place, "raised")
        assert f"environment {i} (worker {failure.worker}, pid {failure.pid}) in '{place}'" in str(exc_info.value)
        assert RAISING[fault] in str(exc_info.value)
        assert f"in {fault.__name__}" in failure.traceback, "the frame that raised is shown"
        if place in ("reset", "step"):
            np.testing.assert_array_equal(np.delete(exc_info.value.transition.obs[:, 0], i), np.delete(np.arange(5), i))
            np.testing.assert_array_equal(pool.reset(ids=[i]).obs[:, 0], [i])
        assert type(exc_info.value.__cause__) is (
            ArithmeticError if fault is raises else type(exc_info.value.__cause__)
        )


def test_failing_constructors_leave_no_actors(cluster: TestCluster) -> None:
    with pytest.raises(WorkerError, match=r"environment 1 .* in 'construct': ArithmeticError: went wrong on purpose"):
        make_pool(env_fns_with_fault("construct", raises), "ray")
    assert wait_until(lambda: not cluster.actors())


@pytest.mark.parametrize("fault", DEADLY, ids=lambda f: f.__name__)
def test_crashed_actors_are_reported_and_others_continue(fault: Fault) -> None:
    pool = make_pool(env_fns_with_fault("step", fault, count=4), "ray")
    pool.reset()
    begin = time.monotonic()
    with pytest.raises(
        WorkerCrash, match=r"environments 0, 1 .*in 'step' number 1: its actor on node \w+ is lost"
    ) as exc_info:
        pool.step(ACTIONS)
    assert time.monotonic() - begin < 1.0
    (failure,) = exc_info.value.failures
    assert failure.kind == "crashed"
    assert failure.pid > 0
    assert "The actor is dead because its worker process has died" in str(exc_info.value)
    np.testing.assert_array_equal(exc_info.value.transition.obs[2:], [[2, 0, 1], [3, 0, 1]])
    with pytest.raises(WorkerCrash, match="environments 0, 1"):
        pool.step(ACTIONS)
    pool.send([3, 2], np.zeros(2, int))
    np.testing.assert_array_equal(pool.recv().obs, [[3, 0, 2], [2, 0, 2]])
    pool.close()


def test_crashes_between_and_during_commands_are_reported() -> None:
    pool = make_pool([lambda: FaultyEnv(0, "step", sleeps_forever), FaultyEnv], "ray")
    pool.reset()
    pid = pool.invoke("get", "pid")[1]
    pool.send([0], [0])
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not psutil.pid_exists(pid))
    begin = time.monotonic()
    pool.send([1], [0])
    with pytest.raises(WorkerCrash, match="environment 1 "):
        pool.recv(at_least=1)
    assert time.monotonic() - begin < 1.0
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 3.0, "waits at most a second for busy workers"


def test_late_replies_are_not_mistaken_for_the_next() -> None:
    pool = make_pool(env_fns_with_fault("step", partial(sleeps, seconds=0.5), at=2, bad=2), "ray", 3, step_timeout=0.2)
    pool.reset()
    pool.step(np.zeros(3, int))
    with pytest.raises(StepTimeout, match=r"environment 2 .* in 'step'.*no reply within 0\.2 s") as exc_info:
        pool.step(np.zeros(3, int))
    assert exc_info.value.env_ids == (2,), "no other environment"
    np.testing.assert_array_equal(pool.wait(5.0).obs, [[0, 0, 2], [1, 0, 2], [2, 0, 2]])
    np.testing.assert_array_equal(pool.step(np.zeros(3, int)).reward, [3, 3, 3])
    pool.close()


@pytest.mark.parametrize("stop", ["sleeps", "stopped"])
def test_hung_actors_time_out_and_can_be_closed(stop: str, cluster: TestCluster) -> None:
    fault = sleeps_forever if stop == "sleeps" else None
    pool = make_pool(env_fns_with_fault("step", fault, bad=3, count=4), "ray", step_timeout=0.3)  # type: ignore[arg-type]
    pool.reset()
    if stop == "stopped":
        os.kill(pool.invoke("get", "pid")[3], signal.SIGSTOP)
    with pytest.raises(StepTimeout, match=r"environments? .*3"):
        pool.step(ACTIONS)
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 3.0
    assert wait_until(lambda: not cluster.actors())


def test_unpicklable_results_fail_their_environment() -> None:
    makers = [FaultyEnv, partial(FaultyEnv, 1, "peek", lambda env: Unpicklable()), partial(FaultyEnv, 2, "peek")]
    pool = make_pool([*makers, partial(FaultyEnv, 3, "peek", lambda env: Unrebuildable())], "ray", 4)
    pool.reset()
    with pytest.raises(WorkerError) as exc_info:
        use(pool, "peek")
    texts = {failure.env_ids: failure.error for failure in exc_info.value.failures}
    assert "cannot be pickled" in texts[(1,)]
    assert "cannot be unpickled in this process" in texts[(3,)]
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, 1.0)
    pool.close()


def test_garbage_collected_pools_end_their_actors(cluster: TestCluster) -> None:
    pool = make_pool([FaultyEnv] * 2, "ray")
    pool.reset()
    assert len(cluster.actors()) == 2
    del pool
    gc.collect()
    assert wait_until(lambda: not cluster.actors())


def test_forking_the_caller_does_not_affect_actors() -> None:
    pool = make_pool([FaultyEnv] * 2, "ray")
    pool.reset()
    pid = os.fork()
    if pid == 0:
        os._exit(len(pool._backend.shutdown()))
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.step(np.zeros(2, int)).reward.tolist() == [1.0, 1.0]
    pool.close()


def test_reset_recovers_from_ctrl_c() -> None:
    pool = make_pool([partial(FaultyEnv, i) for i in range(4)], "ray", 2, step_timeout=10.0)
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
