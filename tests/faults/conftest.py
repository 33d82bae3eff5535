"""Checks around every fault test: after the test, no additional resources remain."""

import gc
import os
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import make_pool
from tests.fixtures.processes import wait_until, workers_alive


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """Starts the fork server once, so that no test counts it as a new process."""
    make_pool([FaultyEnv], "processes", 1).close()


@pytest.fixture
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks that workers, descriptors, threads and shared memory after the test are the same as before.

    Ray keeps its own processes. A fixture around every test marked `ray` checks that no actor remains.
    """
    if request.node.get_closest_marker("ray") is not None:
        yield
        return
    gc.collect()
    gc.freeze()  # the collection after the test is then of what the test has made
    before = _holdings()
    yield
    gc.collect()
    assert wait_until(lambda: not workers_alive()), workers_alive()
    assert wait_until(lambda: _holdings() == before), (_holdings(), before)


@pytest.fixture
def alarm() -> Iterator[None]:
    """Replaces Ctrl-C by SIGALRM, which a timer can send within microseconds at any point of this process.

    Not within a callback of the garbage collector (Hypothesis has one), since Python discards exceptions there.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def _holdings() -> tuple[int, int, list[str]]:
    shared = [name for name in os.listdir("/dev/shm") if "vecrl" in name] if os.path.isdir("/dev/shm") else []
    return psutil.Process().num_fds(), threading.active_count(), shared
