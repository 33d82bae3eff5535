"""`on_failure="restart"` and `"mask"`: a failed environment's episode ends; it is restarted or excluded, and no other
environment waits."""

import gc
import logging
import os
import signal
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import (
    FaultyEnv,
    env_fns_with_fault,
    exits,
    is_killed,
    raises,
    returns_value,
    sleeps_forever,
)
from tests.fixtures.pools import BACKENDS, make_pool
from tests.fixtures.processes import wait_until, workers_alive

from vecrl.engine.pool import Pool
from vecrl.errors import PendingError, StepTimeout, WorkerCrash, WorkerError
from vecrl.seeding import seed_for

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(3, int)


class FailsOnce(FaultyEnv):
    """Commits its fault only in its first instance, which a file records. Its info has its seed."""

    def __init__(self, env_id: int, place: str = "", fault: Any = None, at: int = 0, mark: str = "", length: int = 0):
        if mark and os.path.exists(mark):
            fault = None
        elif mark:
            inner = fault

            def fault(env: FaultyEnv) -> Any:
                with open(mark, "w"):
                    return inner(env)

        super().__init__(env_id, place, fault, at, length)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        return obs, info | {"seed": -1 if seed is None else seed}


def _pool(backend: str, fault: Any, mark: Any, workers: int = 3, place: str = "step", **options: Any) -> Pool:
    """Returns a pool of three environments, of which number 1 commits a fault at count 2 of its first instance."""
    makers = [
        (lambda i=i: FailsOnce(i, place, fault, 2 if place == "step" else 0, str(mark)))
        if i == 1
        else (lambda i=i: FailsOnce(i))
        for i in range(3)
    ]
    return make_pool(makers, backend, workers, on_failure=options.pop("on_failure", "restart"), **options)


def _cases() -> list[Any]:
    cases = [pytest.param(backend, raises, id=f"{backend}-raises") for backend in BACKENDS]
    return [*cases, pytest.param("processes", exits, id="exits"), pytest.param("processes", is_killed, id="killed")]


@pytest.mark.parametrize(("backend", "fault"), _cases())
def test_failed_rows_are_truncated_and_reset_in_the_same_step(backend: str, fault: Any, tmp_path: Any) -> None:
    pool = _pool(backend, fault, tmp_path / "mark")
    pool.reset([10, 11, 12])
    pool.step(ACTIONS, reset_done=True)
    t = pool.step(ACTIONS, reset_done=True)
    np.testing.assert_array_equal(t.truncated, [False, True, False])
    np.testing.assert_array_equal(t.terminated, [False] * 3)
    np.testing.assert_array_equal(t.reward, [2, 0, 2])
    np.testing.assert_array_equal(t.obs, [[0, 0, 2], [1, 0, 0], [2, 0, 2]])
    np.testing.assert_array_equal(t.next_obs, [[0, 0, 2], [1, 0, 1], [2, 0, 2]])
    assert (t.episodes.ids.tolist(), t.episodes.returns.tolist(), t.episodes.lengths.tolist()) == ([1], [1.0], [1])
    info, final = dict(t.infos.items()), dict(t.final_infos.items())
    assert info[1] == {"env_id": 1, "seed": seed_for(11, 0, 1)}, "its seed stream goes on"
    assert final[1]["failed"] is True
    assert ("on purpose" if fault is raises else "worker process") in final[1]["error"]
    assert "failed" not in info[0]
    t = pool.step(ACTIONS, reset_done=True)
    np.testing.assert_array_equal(t.obs, [[0, 0, 3], [1, 0, 1], [2, 0, 3]])
    assert not t.done.any()
    pool.close()


@pytest.mark.parametrize(("backend", "fault"), _cases())
def test_without_same_step_reset_the_last_observation_is_kept(backend: str, fault: Any, tmp_path: Any) -> None:
    pool = _pool(backend, fault, tmp_path / "mark")
    pool.reset()
    pool.step(ACTIONS)
    t = pool.step(ACTIONS)
    np.testing.assert_array_equal(t.obs, [[0, 0, 2], [1, 0, 1], [2, 0, 2]])
    np.testing.assert_array_equal(t.truncated, [False, True, False])
    assert dict(t.infos.items())[1]["failed"] is True
    t = pool.step(ACTIONS, reset_mask=t.done)
    np.testing.assert_array_equal(t.obs, [[0, 0, 3], [1, 1, 0], [2, 0, 3]])
    np.testing.assert_array_equal(t.was_reset, [False, True, False])
    pool.close()


@pytest.mark.parametrize(("backend", "fault"), _cases())
def test_failed_resets_are_retried(backend: str, fault: Any, tmp_path: Any) -> None:
    pool = _pool(backend, fault, tmp_path / "mark", place="reset")
    t = pool.reset([5, 6, 7])
    np.testing.assert_array_equal(t.obs, [[0, 0, 0], [1, 0, 0], [2, 0, 0]])
    assert t.was_reset.all()
    assert not t.done.any()
    info = dict(t.infos.items())
    assert (info[1]["failed"], info[1]["seed"]) == (True, seed_for(6, 0, 1))
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, [1, 1, 1])
    pool.close()


def test_other_rows_of_a_crashed_worker_are_reset_and_reported(tmp_path: Any) -> None:
    pool = _pool("processes", is_killed, tmp_path / "mark", workers=1)
    pool.reset()
    pool.step(ACTIONS, reset_done=True)
    t = pool.step(ACTIONS, reset_done=True)
    assert t.truncated.all()
    np.testing.assert_array_equal(t.next_obs[:, 2], [1, 1, 1])
    np.testing.assert_array_equal(t.episodes.returns, [1, 1, 1])
    np.testing.assert_array_equal(pool.step(ACTIONS, reset_done=True).obs[:, 2], [1, 1, 1])
    pool.close()


def test_idle_rows_of_a_crashed_worker_are_reported_at_their_next_step(tmp_path: Any) -> None:
    pool = _pool("processes", is_killed, tmp_path / "mark", workers=1)
    pool.reset()
    for _ in range(2):
        pool.send([1, 0], [0, 0])
        t = pool.recv()
    assert t.ids.tolist() == [1, 0]
    assert t.truncated.all()
    pool.send([2, 0], [0, 0])
    t = pool.recv()
    assert (t.ids.tolist(), t.truncated.tolist()) == ([2, 0], [True, False])
    np.testing.assert_array_equal(t.obs, [[2, 0, 0], [0, 0, 1]])
    assert dict(t.infos.items())[2]["failed"] is True
    np.testing.assert_array_equal(pool.step(ACTIONS).obs[:, 2], [2, 1, 1])
    pool.close()


@pytest.mark.parametrize("backend", ["processes", "serial"])
def test_timed_out_workers_are_replaced(backend: str, tmp_path: Any) -> None:
    fault = sleeps_forever if backend == "processes" else (lambda env: time.sleep(1.2))
    pool = _pool(backend, fault, tmp_path / "mark", step_timeout=1.0)
    pool.reset()
    pool.step(ACTIONS)
    begin = time.monotonic()
    t = pool.step(ACTIONS)
    assert time.monotonic() - begin < 3.0
    assert t.truncated.tolist() == [False, True, False]
    assert "no reply within 1 s" in dict(t.infos.items())[1]["error"]
    assert pool.step(ACTIONS, reset_mask=t.done).was_reset.tolist() == [False, True, False]
    pool.close()


def test_timed_out_workers_are_replaced_while_others_step(tmp_path: Any) -> None:
    pool = _pool("processes", sleeps_forever, tmp_path / "mark", step_timeout=1.0)
    pool.reset()
    pool.send([0, 1, 2], ACTIONS)
    pool.recv()
    pool.send([1], [0])
    pool.send([0, 2], [0, 0])
    begin, actual = time.monotonic(), []
    while 1 not in actual:
        t = pool.recv(at_least=1)
        actual += t.ids.tolist()
        if len(others := t.ids[t.ids != 1]):
            pool.send(others, np.zeros(len(others), int))
        assert time.monotonic() - begin < 4.0
    row = t.ids.tolist().index(1)
    assert t.truncated[row]
    np.testing.assert_array_equal(t.obs[row], [1, 0, 1])
    pool.close()


def test_hung_threads_cannot_be_replaced() -> None:
    pool = make_pool(
        env_fns_with_fault("step", lambda env: time.sleep(0.4)), "threads", 3, step_timeout=0.1, on_failure="restart"
    )
    pool.reset()
    with pytest.raises(StepTimeout, match="environment 1"):
        pool.step(ACTIONS)
    assert pool.wait(5.0).reward.tolist() == [1, 1, 1]
    pool.close()


@pytest.mark.parametrize(("backend", "fault"), _cases())
def test_masked_rows_repeat_their_last_observation(backend: str, fault: Any, tmp_path: Any) -> None:
    pool = _pool(backend, fault, tmp_path / "mark", on_failure="mask")
    pool.reset()
    pool.step(ACTIONS, reset_done=True)
    t = pool.step(ACTIONS, reset_done=True)
    assert (t.truncated.tolist(), t.was_reset.tolist()) == ([False, True, False], [False] * 3)
    assert pool.alive.tolist() == [True, False, True]
    assert t.episodes.ids.tolist() == [1]
    for count in (3, 4):
        t = pool.step(ACTIONS, reset_done=True)
        np.testing.assert_array_equal(t.obs, [[0, 0, count], [1, 0, 1], [2, 0, count]])
        np.testing.assert_array_equal(t.reward, [count, 0, count])
        assert not t.done.any()
        assert dict(t.infos.items())[1]["failed"] is True
    pool.send([1, 2], [0, 0])
    t = pool.recv()
    assert (t.ids.tolist(), t.reward.tolist(), t.done.any()) == ([1, 2], [0, 5], False)
    assert pool.invoke("get", "env_id") == [0, None, 2]
    t = pool.reset()
    np.testing.assert_array_equal(t.obs, [[0, 1, 0], [1, 0, 1], [2, 1, 0]])
    assert t.was_reset.tolist() == [True, False, True]
    t = pool.reset(ids=[1])
    assert t.was_reset.tolist() == [False]
    pool.close()


def test_steps_with_all_rows_masked_repeat_the_last_results(tmp_path: Any) -> None:
    pool = _pool("processes", is_killed, tmp_path / "mark", workers=1, on_failure="mask")
    pool.reset()
    for _ in range(2):
        t = pool.step(ACTIONS)
    assert t.truncated.all()
    t = pool.step(ACTIONS)
    assert not t.done.any()
    assert not pool.alive.any()
    pool.close()


@pytest.mark.parametrize("on_failure", ["restart", "mask"])
def test_the_restart_budget_is_respected(on_failure: Any, caplog: pytest.LogCaptureFixture) -> None:
    makers = [lambda i=i: FaultyEnv(i, "step", raises) for i in range(3)]
    pool = make_pool(makers, "serial", 1, on_failure=on_failure, restarts_per_hour=2)
    pool.reset()
    with caplog.at_level(logging.WARNING, "vecrl"), pytest.raises(WorkerError, match="environment 2") as exc_info:
        pool.step(ACTIONS)
    assert exc_info.value.env_ids == (2,)
    assert exc_info.value.transition.truncated.tolist() == [True, True, False]
    with pytest.raises(PendingError, match=r"\[2\] failed before; reset them"):
        pool.step(ACTIONS)
    with pytest.raises(PendingError, match=r"\[2\] failed before; reset them"):
        pool.send([2], [0])
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"Environments [{i}] failed and are {'restarted' if on_failure == 'restart' else 'excluded'} "
        f"({i + 1} of 2 within an hour)"
        for i in range(2)
    ]
    pool.close()


def test_failed_restarts_are_reported() -> None:
    lives = []

    def make() -> FaultyEnv:
        lives.append(1)
        if len(lives) > 1:
            raise OSError("the license server is gone")
        return FaultyEnv(1, "step", raises)

    pool = make_pool([FaultyEnv, make], "serial", 1, on_failure="restart")
    pool.reset()
    with pytest.raises(WorkerError, match="the license server is gone") as exc_info:
        pool.step(ACTIONS[:2])
    assert exc_info.value.transition.reward[0] == 1
    pool.close()


def test_results_are_the_same_on_every_backend(tmp_path: Any) -> None:
    rows = []
    for number, backend in enumerate(BACKENDS):
        pool = _pool(backend, raises, tmp_path / f"mark{number}", check_nan=True)
        t = pool.reset([1, 2, 3])
        values = [dict(t.infos.items())]
        for _ in range(4):
            t = pool.step(ACTIONS, reset_done=True)
            values += [t.obs.tolist(), t.reward.tolist(), t.truncated.tolist(), dict(t.infos.items())]
        rows.append(values)
        pool.close()
    assert rows[0] == rows[1] == rows[2]


def test_partially_written_rows_are_not_the_last_observation() -> None:
    nan = returns_value((np.full(3, np.nan), 1.0, False, False, {}))
    for backend in BACKENDS:
        pool = make_pool(env_fns_with_fault("step", nan, at=2), backend, on_failure="restart", check_nan=True)
        pool.reset()
        pool.send([0, 1, 2], ACTIONS)
        pool.recv()
        pool.send([1], [0])
        t = pool.recv()
        np.testing.assert_array_equal(t.obs, [[1, 0, 1]])
        assert t.truncated.all()
        pool.close()


def test_crashes_between_steps_are_handled_by_the_next_step(tmp_path: Any) -> None:
    pool = make_pool([lambda i=i: FailsOnce(i) for i in range(2)], "processes", on_failure="restart")
    pool.reset([3, 4])
    pid = pool.invoke("get", "pid")[1]
    os.kill(pid, signal.SIGKILL)
    t = pool.step(ACTIONS[:2])
    assert t.truncated.tolist() == [False, True]
    pid = pool.invoke("get", "pid")[1]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerCrash):
        pool.invoke("get", "pid")
    assert pool.invoke("get", "env_id") == [0, 1], "the next command finds it restarted"
    t = pool.step(ACTIONS[:2])
    assert t.truncated.tolist() == [False, True], "the environment outside the command reports a truncated episode"
    pool.close()


# -- cancel ----------------------------------------------------------------------------------------


def test_workers_that_crash_during_a_restart_are_restarted_too(tmp_path: Any) -> None:
    restart, other = tmp_path / "restart", tmp_path / "other"

    def make_first() -> FaultyEnv:
        if restart.exists():
            restart.unlink()
            os.kill(pid := int(other.read_text()), signal.SIGKILL)
            assert wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
        return FaultyEnv(0)

    pool = make_pool([make_first, partial(FaultyEnv, 1)], "processes", on_failure="restart")
    pool.reset([0, 1])
    pids = pool.invoke("get", "pid")
    other.write_text(str(pids[1]))
    restart.touch()
    os.kill(pids[0], signal.SIGKILL)
    assert wait_until(lambda: len(workers_alive()) == 1)
    pool.send([1], np.zeros(1, int))
    pool.recv()  # notices the first crash
    pool.send([0, 1], np.zeros(2, int))  # restarts the first worker, and then the second
    assert not restart.exists()
    assert pool.recv(2).truncated.all()
    assert set(pool.invoke("get", "pid")).isdisjoint(pids)
    pool.close()


def test_cancelled_environments_are_rebuilt_and_others_continue(tmp_path: Any) -> None:
    makers = [
        (lambda: FailsOnce(1, "step", sleeps_forever, 1, str(tmp_path / "mark")))
        if i == 1
        else (lambda i=i: FailsOnce(i))
        for i in range(4)
    ]
    pool = make_pool(makers, "processes", 2)
    pool.reset()
    pool.send([0, 1, 2, 3], np.zeros(4, int))
    assert sorted(pool.recv(at_least=2).ids.tolist()) == [2, 3]
    assert wait_until((tmp_path / "mark").exists)
    assert pool.cancel([2]).tolist() == [], "environment 2 has no pending command"
    begin = time.monotonic()
    assert pool.cancel([1]).tolist() == [0, 1]
    assert time.monotonic() - begin < 1.0
    assert not len(pool.pending)
    with pytest.raises(Exception, match="failed before; reset them"):
        pool.send([0], [0])
    np.testing.assert_array_equal(pool.reset(ids=[1, 0]).obs, [[1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(pool.step(np.zeros(4, int)).obs[:, 2], [1, 1, 2, 2])
    pool.close()


def test_full_steps_continue_without_cancelled_rows(tmp_path: Any) -> None:
    pool = _pool("processes", sleeps_forever, tmp_path / "mark", on_failure="raise", step_timeout=0.2)
    pool.reset()
    pool.step(ACTIONS)
    with pytest.raises(StepTimeout) as late:
        pool.step(ACTIONS)
    assert wait_until((tmp_path / "mark").exists)
    assert pool.cancel(late.value.env_ids).tolist() == [1]
    with pytest.raises(WorkerError, match=r"environment 1 .*cancelled") as exc_info:
        pool.wait()
    np.testing.assert_array_equal(exc_info.value.transition.reward[[0, 2]], [2, 2])
    pool.reset(ids=[1])
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, [3, 1, 3])
    pool.close()


def test_threads_cannot_be_cancelled() -> None:
    pool = make_pool(env_fns_with_fault("step", lambda env: time.sleep(0.3)), "threads", 3)
    pool.reset()
    pool.send([1], [0])
    with pytest.raises(StepTimeout, match="environment 1"):
        pool.cancel([1])
    assert pool.recv().ids.tolist() == [1]
    pool.close()


def test_a_cancelled_worker_in_this_process_is_replaced_for_later_steps() -> None:
    made: list[FaultyEnv] = []

    def make() -> FaultyEnv:
        made.append(FaultyEnv(len(made)))
        return made[-1]

    pool = make_pool([make, make], "serial")
    pool.reset()
    pool.step_async(ACTIONS[:2])
    assert pool.cancel([0]).tolist() == [0, 1]
    pool.reset()
    assert pool.step(ACTIONS[:2]).obs.tolist() == [[2, 0, 1], [3, 0, 1]]
    assert [env.closed for env in made] == [True, True, False, False]
    pool.close()


def test_replacement_workers_end_with_the_pool(tmp_path: Any) -> None:
    pool: Pool | None = _pool("processes", is_killed, tmp_path / "mark")
    pool.reset()
    for _ in range(3):
        pool.step(ACTIONS)
    assert len(workers_alive()) == 3
    pool = None
    gc.collect()
    assert wait_until(lambda: not workers_alive())


def test_restarts_use_the_seeds_of_a_restored_state(tmp_path: Any) -> None:
    infos = []
    for number in range(2):
        pool = _pool("serial", raises, tmp_path / f"mark{number}")
        if number == 0:
            pool.reset([10, 11, 12])
            states = pool.get_state()
        else:
            pool.reset()
            pool.set_state(states)
        for _ in range(2):
            t = pool.step(ACTIONS, reset_done=True)
        infos.append((dict(t.infos.items())[1], t.episodes.returns.tolist()))
        pool.close()
    assert infos[0] == infos[1]
    assert infos[0][0]["seed"] == seed_for(11, 0, 1)


@pytest.mark.parametrize("on_failure", ["restart", "mask"])
def test_crashes_beyond_the_budget_raise_in_every_command(on_failure: Any) -> None:
    makers = [lambda i=i: FaultyEnv(i, "step", is_killed) for i in range(3)]
    pool = make_pool(makers, "processes", 3, on_failure=on_failure, restarts_per_hour=2)
    pool.reset()
    with pytest.raises(WorkerCrash) as exc_info:
        pool.step(ACTIONS)
    (remaining,) = exc_info.value.env_ids
    for use in (
        lambda: pool.step(ACTIONS),
        pool.reset,
        lambda: pool.send([remaining], [0]),
        lambda: pool.reset(ids=[remaining]),
    ):
        with pytest.raises(WorkerCrash, match=f"environment {remaining} "):
            use()
    pool.close()


def test_failed_restarts_raise_in_every_command(tmp_path: Any) -> None:
    mark = tmp_path / "made"

    def make() -> FaultyEnv:
        if mark.exists():
            raise OSError("the license server is gone")
        mark.touch()
        return FaultyEnv(1, "step", is_killed)

    pool = make_pool([FaultyEnv, make], "processes", 2, on_failure="restart")
    pool.reset()
    with pytest.raises(WorkerError, match="the license server is gone"):
        pool.step(ACTIONS[:2])
    for use in (lambda: pool.step(ACTIONS[:2]), pool.reset):
        with pytest.raises(WorkerError, match="the license server is gone"):
            use()
    mark.unlink()
    pool.reset()
    np.testing.assert_array_equal(pool.send([0], [0]) or pool.recv().reward, [1])
    pool.close()


def test_exclusions_are_reported_once(tmp_path: Any) -> None:
    makers = [
        partial(FaultyEnv, 0, "step", raises, 2),
        partial(FaultyEnv, 1, "step", is_killed, 4),
        partial(FaultyEnv, 2),
    ]
    pool = make_pool(makers, "processes", 2, on_failure="mask")  # environments 0 and 1 share a worker, or 1 and 2 do
    pool.reset()
    ends = np.array([pool.step(ACTIONS).truncated for _ in range(6)])
    assert ends[1, 0]
    assert ends[3, 1]
    assert (ends.sum(0) <= 1).all()
    pool.close()


@pytest.mark.parametrize("wrong", [[99], [-1], [0.5], []])
def test_cancel_rejects_unknown_ids(wrong: Any) -> None:
    pool = make_pool([FaultyEnv] * 2, "serial", 1)
    with pytest.raises((IndexError, ValueError), match="Expected ids"):
        pool.cancel(wrong)
    pool.close()
