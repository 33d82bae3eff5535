"""Around every fault: what was there before is all that is there after."""

import gc
import os
import threading
from collections.abc import Iterator

import psutil
import pytest

from .fixture_envs import Counting, make_pool, wait_until, workers_alive


@pytest.fixture(scope="session", autouse=True)
def _zygote() -> None:
    """Start the process that workers are forked from once, so that no test counts it."""
    make_pool([Counting], "processes", 1).close()


@pytest.fixture
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers, descriptors, threads and shared memory are after the test what they were before. (Ray keeps processes of
    its own; that no actor is left is seen to around every test marked `ray`.)"""
    if request.node.get_closest_marker("ray") is not None:
        yield
        return
    gc.collect()
    before = _holdings()
    yield
    gc.collect()
    assert wait_until(lambda: not workers_alive()), workers_alive()
    assert wait_until(lambda: _holdings() == before), (_holdings(), before)


def _holdings() -> tuple[int, int, list[str]]:
    shared = [name for name in os.listdir("/dev/shm") if "vecrl" in name] if os.path.isdir("/dev/shm") else []
    return psutil.Process().num_fds(), threading.active_count(), shared
