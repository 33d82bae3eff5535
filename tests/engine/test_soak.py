"""Long runs and many pools: memory, descriptors, threads and processes do not grow."""

import gc
import os
import threading

import numpy as np
import psutil
import pytest
from tests.fixtures.faulty_envs import FaultyEnv
from tests.fixtures.pools import BACKENDS, make_pool
from tests.fixtures.processes import wait_until, workers_alive

NUM_ENVS, STEPS = 64, 1600  # 102,400 environment steps


def _measure() -> list[int]:
    """Returns the numbers of descriptors and threads of this process and its workers, and of all processes."""
    gc.collect()
    family = [psutil.Process(), *workers_alive()]
    return [len(family), *(p.num_fds() for p in family), *(p.num_threads() for p in family)]


def _memory() -> int:
    return sum(p.memory_info().rss for p in (psutil.Process(), *workers_alive()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hundred_thousand_steps_leak_no_resources(backend: str) -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i, length=5 + i) for i in range(NUM_ENVS)], backend)
    pool.reset()
    actions = np.zeros(NUM_ENVS, int)
    episodes, total = 0, 0.0
    begin, memory = [], 0
    for step in range(STEPS):
        if step == STEPS // 4:
            begin, memory = _measure(), _memory()
        if step % 100 == 99:  # from time to time, in parts
            pool.send(np.arange(0, NUM_ENVS, 2), actions[::2], reset_done=True)
            pool.send(np.arange(1, NUM_ENVS, 2), actions[::2], reset_done=True)
            transition = pool.recv()
        else:
            transition = pool.step(actions, reset_done=True)
        episodes += len(transition.episodes.ids)
        total += float(transition.episodes.lengths.sum())
    assert _measure() == begin
    assert _memory() - memory < 4e6, "bytes"
    expected = [STEPS // (5 + i) for i in range(NUM_ENVS)]
    assert episodes == sum(expected)
    assert total == sum(count * (5 + i) for i, count in enumerate(expected))
    pool.close()


def test_two_hundred_pools_leak_no_resources() -> None:
    make_pool([FaultyEnv] * 2, "processes").close()
    gc.collect()
    before = psutil.Process().num_fds(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    for number in range(200):
        backend = ("processes", "threads", "serial")[number % 3] if number < 150 else "processes"
        pool = make_pool([FaultyEnv] * 2, backend)
        pool.reset()
        pool.step(np.zeros(2, int))
        if number % 10:
            pool.close()
        del pool
    gc.collect()
    after = psutil.Process().num_fds(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    assert after == before
    assert wait_until(lambda: not workers_alive())
