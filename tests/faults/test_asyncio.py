"""Programs with an event loop: calls in threads of the loop do not mix, and a cancelled one leaves all usable."""

import asyncio
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv, sleeps
from tests.fixtures.pools import BACKENDS

from vecrl.vector import VectorEnv

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(3, int)


def make(backend: Any, **options: Any) -> VectorEnv:
    workers = None if backend == "serial" else 3
    return VectorEnv([partial(FaultyEnv, i, **options) for i in range(3)], backend=backend, num_workers=workers)


@pytest.mark.parametrize("backend", BACKENDS)
def test_concurrent_calls_do_not_mix(backend: str) -> None:
    async def play(envs: VectorEnv) -> list[float]:
        await asyncio.to_thread(envs.reset)
        return [(await asyncio.to_thread(envs.step, ACTIONS))[1].sum() for _ in range(20)]

    async def play_all() -> list[list[float]]:
        many = [make(backend) for _ in range(3)]
        try:
            return await asyncio.gather(*map(play, many))
        finally:
            for envs in many:
                envs.close()

    expected = [3.0 * count for count in range(1, 21)]
    assert asyncio.run(play_all()) == [expected] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_cancelled_calls_leave_the_environments_usable(backend: str) -> None:
    async def play() -> list[float]:
        envs = make(backend, place="step", fault=partial(sleeps, seconds=0.5))
        await asyncio.to_thread(envs.reset)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(envs.step, ACTIONS), 0.1)
        rewards = (await asyncio.to_thread(envs.step, ACTIONS))[1]  # waits until the first step has ended
        await asyncio.to_thread(envs.close)
        return rewards.tolist()

    assert asyncio.run(play()) == [2.0] * 3


def test_processes_of_the_loop_and_workers_do_not_take_each_others_exit_status() -> None:
    async def play() -> list[int]:
        envs = make("processes")
        await asyncio.to_thread(envs.reset)
        children = [await asyncio.create_subprocess_exec(sys.executable, "-c", "exit(5)") for _ in range(3)]
        await asyncio.to_thread(envs.step, ACTIONS)
        codes = [await child.wait() for child in children]
        await asyncio.to_thread(envs.close)
        return codes

    assert asyncio.run(play()) == [5, 5, 5]
