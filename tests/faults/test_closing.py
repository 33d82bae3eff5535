"""`close` while another thread waits in a call: the call raises `ClosedError`, and no worker remains."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv, GatedEnv, SlowToClose, env_fns_with_fault, raises
from tests.fixtures.pools import arrived, make_pool
from tests.fixtures.processes import wait_until

from vecrl.envs import GymWrapper, ParallelEnv
from vecrl.errors import ClosedError, PendingError, StepTimeout, WorkerError
from vecrl.vector import AsyncVectorEnv, RolloutWorkers, VectorEnv
from vecrl.venv import BaseVectorEnv

pytestmark = pytest.mark.usefixtures("nothing_left")
ANYWHERE = ["serial", "threads", "processes", pytest.param("ray", marks=pytest.mark.ray)]
ACTIONS = np.zeros(2, int)


def _gated(folder: Path) -> list[Callable[[], GatedEnv]]:
    return [partial(GatedEnv, i, folder) for i in range(2)]


def _close_during(call: Callable[[], Any], envs: Any, folder: Path, end_itself: bool) -> BaseException | None:
    """Closes `envs` while another thread waits in a call, and returns what the call raises. With `end_itself`, the step
    ends before the call does."""
    raised: list[BaseException | None] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)

    def let_go() -> None:
        if end_itself:
            wait_until(lambda: getattr(envs, "closed", True))
        else:
            waiting.join(10.0)
        (folder / "gate").touch()

    waiting, helper = threading.Thread(target=work), threading.Thread(target=let_go)
    waiting.start()
    assert wait_until((folder / "inside").exists, 30.0)
    helper.start()
    envs.close()
    for thread in (helper, waiting):
        thread.join(20.0)
        assert not thread.is_alive()
    return raised[0]


@pytest.mark.parametrize("backend", ANYWHERE)
@pytest.mark.parametrize("use", ["step", "recv", "invoke"])
def test_close_ends_a_waiting_pool_call(use: str, backend: str, tmp_path: Path) -> None:
    pool = make_pool(_gated(tmp_path), backend)
    pool.reset()

    def receive() -> None:
        pool.send([0, 1], ACTIONS)
        pool.recv()

    calls = {
        "step": lambda: pool.step(ACTIONS),
        "recv": receive,
        "invoke": lambda: pool.invoke("call", "step", [((0,), {})] * 2),
    }
    assert isinstance(_close_during(calls[use], pool, tmp_path, backend == "serial"), ClosedError)
    assert pool.pending.tolist() == []
    for call in (pool.reset, pool.wait, pool.recv, pool.drain, *calls.values(), lambda: pool.cancel([0])):
        with pytest.raises(ClosedError):
            call()
    pool.close()


def _vector(kind: Any, folder: Path) -> tuple[Any, Callable[[], Any]]:
    envs = kind(_gated(folder), backend="processes", num_workers=2)
    envs.reset()
    return envs, lambda: envs.step(ACTIONS)


def _rollouts(folder: Path) -> tuple[Any, Callable[[], Any]]:
    workers = RolloutWorkers(_gated(folder), lambda obs: np.zeros(len(obs), int), num_workers=2)
    workers.reset()
    return workers, lambda: workers.rollout(3)


def _parallel(folder: Path) -> tuple[Any, Callable[[], Any]]:
    env = ParallelEnv(2, [lambda i=i: GymWrapper(GatedEnv(i, folder)) for i in range(2)], envs_per_worker=1)
    data = env.rand_action(env.reset())
    return env, lambda: env.step(data)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(partial(_vector, VectorEnv), id="VectorEnv"),
        pytest.param(partial(_vector, AsyncVectorEnv), id="AsyncVectorEnv"),
        pytest.param(partial(_vector, BaseVectorEnv), id="BaseVectorEnv"),
        pytest.param(partial(_vector, partial(BaseVectorEnv, wait_num=2, timeout=60.0)), id="asynchronous"),
        pytest.param(_rollouts, id="RolloutWorkers"),
        pytest.param(_parallel, id="ParallelEnv"),
    ],
)
def test_close_ends_waiting_calls_of_every_class(made: Any, tmp_path: Path) -> None:
    envs, call = made(tmp_path)
    assert isinstance(_close_during(call, envs, tmp_path, False), ClosedError)
    with pytest.raises(ClosedError):
        call()
    envs.close()


def test_closing_a_serial_environment_in_another_thread_names_it(tmp_path: Path) -> None:
    """Serial environments are stepped by the other thread, which cannot be interrupted."""
    pool = make_pool(_gated(tmp_path), "serial")
    pool.reset()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            pool.step(ACTIONS)
        except ClosedError as error:
            raised.append(error)

    waiting = threading.Thread(target=work)
    waiting.start()
    assert wait_until((tmp_path / "inside").exists)
    with pytest.raises(StepTimeout, match="a call of it in another thread cannot be interrupted"):
        pool.close(0.0)
    (tmp_path / "gate").touch()
    waiting.join()
    assert len(raised) == 1


def _step_on(pool: Any, first: threading.Event, raised: list[BaseException]) -> None:
    try:
        while True:
            pool.step(ACTIONS)
            first.set()
    except BaseException as error:
        raised.append(error)


def test_close_ends_a_loop_of_steps_at_any_point() -> None:
    """The loop may be at any point, not only waiting. It never writes to closed descriptors."""
    for _ in range(20):
        pool = make_pool([partial(FaultyEnv, i) for i in range(2)], "processes", step_timeout=30.0)
        pool.reset()
        raised: list[BaseException] = []
        first = threading.Event()

        thread = threading.Thread(target=_step_on, args=(pool, first, raised))
        thread.start()
        assert first.wait(30.0)
        pool.close()
        thread.join(20.0)
        assert [type(error) for error in raised] == [ClosedError]


def test_close_beside_a_step_between_its_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before `close` ends the pool, it waits for the pending step and gets its result in place of `step`."""
    envs = AsyncVectorEnv([partial(FaultyEnv, i) for i in range(2)], num_workers=1)
    envs.reset()
    stepping, received, step_has_ended = threading.current_thread(), threading.Event(), threading.Event()
    closer = threading.Thread(target=envs.close)
    finish, close_pool = envs._finish_step, envs._pool.close

    def finish_step(timeout: float | None) -> Any:
        if threading.current_thread() is stepping:
            closer.start()
            assert received.wait(30.0)
            return finish(timeout)
        result = finish(timeout)
        received.set()
        return result

    def close_late(timeout: float | None) -> None:
        step_has_ended.wait(30.0)
        close_pool(timeout)

    monkeypatch.setattr(envs, "_finish_step", finish_step)
    monkeypatch.setattr(envs._pool, "close", close_late)
    with pytest.raises(ClosedError):
        envs.step(ACTIONS)
    step_has_ended.set()
    closer.join(30.0)
    assert not closer.is_alive()


@pytest.mark.parametrize(("is_closing", "error"), [(True, ClosedError), (False, PendingError)])
def test_a_second_thread_that_waits_for_the_workers(
    is_closing: bool, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that closes a pool may wait for its workers at the same time as a step does."""
    pool = make_pool([partial(FaultyEnv, i) for i in range(2)], "processes")
    pool.reset()

    def poll_in_use(*_: object) -> None:
        pool._pending.calls_must_end = is_closing
        raise RuntimeError("concurrent poll() invocation")

    with monkeypatch.context() as patch:
        patch.setattr(pool._backend, "_receive", poll_in_use)
        with pytest.raises(error):
            pool.step(ACTIONS)
    pool._pending.calls_must_end = False
    pool.close()


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_signal_handlers_may_close(backend: str, tmp_path: Path) -> None:
    """Like a handler of SIGTERM that runs within the call of the same thread."""
    pool = make_pool(_gated(tmp_path), backend)
    pool.reset()

    def interrupt() -> None:
        wait_until((tmp_path / "inside").exists)
        os.kill(os.getpid(), signal.SIGUSR1)
        if backend == "threads":
            wait_until(lambda: pool.closed)
            (tmp_path / "gate").touch()

    before = signal.signal(signal.SIGUSR1, lambda *_: pool.close())
    helper = threading.Thread(target=interrupt)
    try:
        helper.start()
        with pytest.raises(ClosedError):
            pool.step(ACTIONS)
    finally:
        signal.signal(signal.SIGUSR1, before)
        helper.join()


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_calls_of_two_threads_do_not_mix(backend: str) -> None:
    """Each call returns its own transition, or raises because another command is pending."""
    pool = make_pool([partial(FaultyEnv, i) for i in range(2)], backend, step_timeout=30.0)
    pool.reset()
    steps: list[float] = []
    broken: list[BaseException] = []

    def work() -> None:
        for _ in range(100):
            try:
                steps.append(float(pool.step(ACTIONS).reward[0]))
            except PendingError:
                time.sleep(0)
            except BaseException as error:
                broken.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken
    assert len(set(steps)) == len(steps) > 1
    pool.close()


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_environments_that_have_replied_are_closed_normally(backend: str) -> None:
    """It is closed normally, and not killed without a report like a busy one."""
    pool = make_pool(env_fns_with_fault("close", raises, bad=1, count=2), backend)
    pool.reset()
    pool.send([1], [0])
    assert wait_until(lambda: arrived(pool, 1))
    with pytest.raises(WorkerError, match=r"environment 1 .*ArithmeticError: went wrong on purpose"):
        pool.close()


@pytest.mark.parametrize("backend", ANYWHERE)
def test_every_thread_that_closes_waits_until_all_is_closed(backend: str, tmp_path: Path) -> None:
    pool = make_pool([partial(SlowToClose, i, tmp_path) for i in range(2)], backend)
    closed: list[int] = []

    def close(timeout: float | None) -> None:
        pool.close(timeout)
        closed.append(len([*tmp_path.iterdir()]))

    threads = [threading.Thread(target=close, args=(timeout,)) for timeout in (None, 0.01, 20.0)]
    threads[0].start()
    assert wait_until(lambda: pool.in_use)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert closed == [2, 2, 2]
