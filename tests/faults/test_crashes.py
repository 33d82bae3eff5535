"""Worker processes that crash: reported within a second with exit code or signal, and the pool can be closed."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.fixtures.faulty_envs import (
    DEADLY,
    PLACES,
    Fault,
    FaultyEnv,
    env_fns_with_fault,
    exits,
    is_killed,
    sleeps_forever,
    starts_children,
    starts_thread,
    writes_much,
)
from tests.fixtures.pools import make_pool
from tests.fixtures.processes import running, wait_until, workers_alive
from tests.fixtures.scripts import Script

from vecrl.engine.backends.processes import describe_exit
from vecrl.engine.pool import Pool
from vecrl.errors import StepTimeout, WorkerCrash

from .test_exceptions import _use

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(3, int)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", DEADLY, ids=lambda f: f.__name__)
def test_crashes_are_reported_within_a_second(fault: Fault, place: str) -> None:
    pool = None
    begin = time.monotonic()
    with pytest.raises(WorkerCrash) as exc_info:  # noqa: PT012
        pool = make_pool(env_fns_with_fault(place, fault), "processes")
        if place != "reset":
            pool.reset()
        begin = time.monotonic()
        _use(pool, place)
    assert time.monotonic() - begin < 1.0
    (failure,) = exc_info.value.failures
    assert 1 in failure.env_ids
    assert failure.kind == "crashed"
    assert failure.pid > 0
    assert failure.command == {"render": "invoke", "peek": "invoke"}.get(place, place)
    assert DEADLY[fault] in str(exc_info.value)
    advice = {"construct": "no worker is left running", "close": "pool is closed nevertheless"}
    assert advice.get(place, "Close this object and create a new one") in str(exc_info.value)
    if pool is not None:
        pool.close()


def test_remaining_workers_continue() -> None:
    pool = make_pool(env_fns_with_fault("step", exits, bad=2, at=2), "processes", 3)
    pool.reset()
    pool.step(ACTIONS)
    with pytest.raises(
        WorkerCrash, match=r"environment 2 .* in 'step' number 2: its worker process exited"
    ) as exc_info:
        pool.step(ACTIONS)
    np.testing.assert_array_equal(exc_info.value.transition.obs[:2], [[0, 0, 2], [1, 0, 2]])
    for use in (lambda: pool.step(ACTIONS), pool.reset, lambda: pool.send([2], [0]), lambda: pool.send([0, 2], [0, 0])):
        with pytest.raises(WorkerCrash, match="environment 2"):
            use()
    assert not len(pool.pending), "a command that cannot reach all workers is sent to none"
    pool.send([1, 0], np.zeros(2, int))
    np.testing.assert_array_equal(pool.recv().obs, [[1, 0, 3], [0, 0, 3]])
    pool.close()


def test_crashes_between_commands_raise_at_the_next_command() -> None:
    pool = make_pool([FaultyEnv] * 2, "processes")
    pool.reset()
    pid = _pids(pool)[1]
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not psutil.pid_exists(pid))
    with pytest.raises(WorkerCrash, match=rf"environment 1 .*pid {pid}.*killed by SIGKILL \(often: out of memory\)"):
        pool.step(np.zeros(2, int))
    pool.close()


def test_crashes_are_noticed_before_other_workers_reply() -> None:
    makers = [lambda: FaultyEnv(0, "step", sleeps_forever), lambda: FaultyEnv(1, "step", is_killed)]
    pool = make_pool(makers, "processes")
    pool.reset()
    begin = time.monotonic()
    pool.send([0, 1], np.zeros(2, int))
    with pytest.raises(WorkerCrash, match="environment 1"):
        pool.recv(at_least=1)
    assert time.monotonic() - begin < 1.0
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 2.0, "waits at most a second for busy workers"


@pytest.mark.parametrize("fault", [starts_children, starts_thread], ids=lambda f: f.__name__)
@pytest.mark.parametrize("end", ["close", "crash", "collect"])
def test_child_processes_end_with_their_worker(fault: Fault, end: str) -> None:
    pool: Pool | None = make_pool(env_fns_with_fault("construct", fault, bad=0, count=2), "processes")
    pool.reset()
    alive = len(workers_alive())
    assert alive == (4 if fault is starts_children else 2)
    if end == "crash":
        os.kill(_pids(pool)[0], signal.SIGKILL)
        assert wait_until(lambda: len(workers_alive()) == 1), "the children died with their worker"
        with pytest.raises(WorkerCrash, match="environment 0"):
            pool.close()
    if end == "close":
        pool.close()
    pool = None
    assert wait_until(lambda: not workers_alive())


@pytest.mark.parametrize("place", ["construct", "reset", "step", "peek", "close"])
def test_large_output_does_not_block_workers(place: str) -> None:
    pool = make_pool(env_fns_with_fault(place, writes_much), "processes", step_timeout=10.0)
    pool.reset()
    assert pool.step(ACTIONS).reward.tolist() == [1.0] * 3
    pool.invoke("call", "peek", [((), {})] * 3)
    pool.close()


def test_killed_forkservers_end_their_workers_and_are_replaced() -> None:
    pool = make_pool([FaultyEnv] * 2, "processes")
    pool.reset()
    fork_server = psutil.Process(_pids(pool)[0]).parent()
    assert fork_server is not None
    pids = _pids(pool)
    fork_server.kill()
    assert wait_until(lambda: not any(map(psutil.pid_exists, pids))), "they die with it, asked or not"
    with pytest.raises(WorkerCrash, match="ended, and so did its parent process"):
        pool.step(np.zeros(2, int))
    pool.close()
    assert wait_until(lambda: not running([fork_server]))
    with_new = make_pool([FaultyEnv] * 2, "processes")
    assert with_new.reset().obs.shape == (2, 3)
    with_new.close()


def test_stopped_workers_time_out_and_can_be_closed() -> None:
    pool = make_pool([FaultyEnv] * 2, "processes", step_timeout=0.2)
    pool.reset()
    pid = _pids(pool)[1]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StepTimeout, match=r"environment 1 .*no reply within 0\.2 s"):
        pool.step(np.zeros(2, int))
    os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(pool.wait(5.0).reward, [1.0, 1.0])
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StepTimeout):
        pool.step(np.zeros(2, int))
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 2.0


def test_forking_the_caller_does_not_affect_workers(tmp_path: Path) -> None:
    """Runs in a separate script, since a process that has rendered cannot fork."""
    script = Script(
        """
    envs = make()
    envs.reset()
    pid = os.fork()
    if pid == 0:
        sys.exit()  # finalizers and all
    os.waitpid(pid, 0)
    say(envs.step(np.zeros(4, int))[1].tolist())
    envs.close()
    """,
        tmp_path,
    )
    assert script.finish(30.0) == (0, "[1.0, 1.0, 1.0, 1.0]\n", "")


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_crash_messages_do_not_depend_on_the_start_method(start_method: Any) -> None:
    pool = make_pool(env_fns_with_fault("step", exits), "processes", start_method=start_method)
    pool.reset()
    with pytest.raises(WorkerCrash, match="exited with code 3"):
        pool.step(ACTIONS)
    pool.close()


def test_every_signal_has_a_description() -> None:
    assert describe_exit(0) == "exited with code 0"
    assert describe_exit(3 << 8) == "exited with code 3"
    assert describe_exit(signal.SIGSEGV) == "was killed by SIGSEGV"
    assert describe_exit(40) == "was killed by signal 40"


def _pids(pool: Pool) -> list[int]:
    """Returns the process id of every environment's worker."""
    return pool.invoke("get", "pid")
