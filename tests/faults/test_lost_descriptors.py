"""Ctrl-C between any two lines of what starts a worker loses no descriptor and no process."""

import gc
import linecache
import os
import sys
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import make_pool
from tests.fixtures.processes import wait_until

from vecrl.engine.backends import processes, worker_connection
from vecrl.engine.pool import Pool

pytestmark = pytest.mark.usefixtures("nothing_left")
FILES = {processes.__file__, worker_connection.__file__}


def interrupt_at(line: int) -> Any:
    """Returns a trace function that raises KeyboardInterrupt before the n-th line of the modules that start workers."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in FILES:
            return None
        # Python itself never leaves a `with` block of a lock without its end, but a trace function can
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith("with "):
            count += 1
            if count == line:
                raise KeyboardInterrupt
        return trace

    return trace


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def make_two() -> Pool:
    pool = make_pool([partial(FaultyEnv, i) for i in range(2)], "processes", 2, on_failure="restart")
    pool.reset()
    return pool


def test_a_worker_that_is_lost_while_it_starts_ends() -> None:
    pool = make_two()
    backend: Any = pool._backend
    before = descriptors()
    for line in range(1, 1000):
        sys.settrace(interrupt_at(line))
        try:
            backend._start(0, (0,))
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert descriptors() == before, line
    assert line > 20
    assert wait_until(lambda: descriptors() == before)
    pool.close()


def test_restarts_that_are_interrupted_at_any_line_can_be_repeated() -> None:
    pool = make_two()
    backend: Any = pool._backend
    before = descriptors()
    for line in range(1, 2000):
        assert backend.kill(1)
        sys.settrace(interrupt_at(line))
        try:
            backend.respawn(1)
            backend.reattach(1)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        backend.respawn(1)
        backend.reattach(1)
        assert wait_until(lambda: len(backend.receive(0.0)) >= 0 and descriptors() <= before), line
    assert line > 40
    pool.recover(2.0)
    assert pool.reset().obs.shape == (2, 3)
    pool.close()
