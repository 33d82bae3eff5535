"""Faults of environments on another interpreter: reported within a second, restarted, and nothing is left."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.fixtures.foreign import PYTHONS, foreign_pool, old_env, python_path
from tests.fixtures.processes import wait_until, workers_alive
from tests.fixtures.scripts import Script

from vecrl.engine.pool import Pool
from vecrl.errors import StepTimeout, WorkerCrash

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return python_path(request.param)


def _pool(python: str, fault: str, **options: object) -> Pool:
    """Two workers of one environment each; the second commits the fault in step 2."""
    return foreign_pool([old_env(0, length=99), old_env(1, fault=fault, length=99)], python, 2, **options)


def _actions(count: int = 2) -> dict[str, np.ndarray]:
    return {"turn": np.full(count, 2), "force": np.zeros((count, 2), np.float32)}


def test_a_process_that_exits_is_reported(python: str) -> None:
    with closing(_pool(python, "exit")) as pool:
        pool.reset()
        pool.step(_actions())
        begin = time.monotonic()
        with pytest.raises(WorkerCrash, match=r"environment 1 .*its worker process exited with code 3"):
            pool.step(_actions())
        assert time.monotonic() - begin < 1


def test_a_killed_process_is_replaced(python: str) -> None:
    with closing(_pool(python, "")) as pool:
        pool.reset([0, 1])
        os.kill(pool.worker_infos[1].pid, signal.SIGKILL)
        with pytest.raises(WorkerCrash, match="killed by SIGKILL"):
            pool.step(_actions())
        assert pool.respawn_crashed().tolist() == [1]
        pool.reset()
        assert np.floor(pool.step(_actions()).reward).tolist() == [2, 2]


def test_a_stuck_environment_times_out_and_is_cancelled(python: str) -> None:
    with closing(_pool(python, "sleep", step_timeout=0.3)) as pool:
        pool.reset()
        pool.step(_actions())
        with pytest.raises(StepTimeout, match="environment 1"):
            pool.step(_actions())
        assert pool.cancel([1]).tolist() == [1]


@pytest.mark.parametrize("fault", ["raise", "exit", "sleep"])
def test_failed_environments_are_restarted(python: str, fault: str) -> None:
    options = {"on_failure": "restart", "step_timeout": 0.5 if fault == "sleep" else None}
    with closing(_pool(python, fault, **options)) as pool:
        pool.reset([0, 1])
        pool.step(_actions(), reset_done=True)
        t = pool.step(_actions(), reset_done=True)
        assert t.truncated.tolist()[1]
        assert dict(t.final_infos.items())[1]["failed"]
        again = pool.step(_actions(), reset_done=True)
        assert np.floor(again.reward[1]) == 2


def test_workers_end_with_their_caller(python: str, tmp_path: Path) -> None:
    script = Script(
        f"""
        from tests.fixtures.foreign import foreign_pool, old_env
        pool = foreign_pool([old_env(fault="sleep", length=99)] * 2, {python!r}, 2)
        pool.reset()
        actions = {{"turn": np.full(2, 2), "force": np.zeros((2, 2), np.float32)}}
        pool.step(actions)
        pool.step_async(actions)  # they sleep
        say("ready")
        time.sleep(60)
        """,
        tmp_path,
    )
    script.wait_for("ready")
    assert len(script.workers()) == 2
    others = script.others()
    script.process.kill()
    script.process.communicate()
    assert wait_until(lambda: not any(process.is_running() for process in others))


def test_close_ends_stuck_workers(python: str) -> None:
    pool = _pool(python, "sleep")
    pool.reset()
    pool.step(_actions())
    pool.step_async(_actions())
    pool.close(0.1)
    assert wait_until(lambda: not workers_alive())
