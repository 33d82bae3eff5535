"""Ctrl-C at any point of a call: no call hangs, and replies to interrupted commands are not mistaken for later ones."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fixtures.faulty_envs import FaultyEnv, env_fns_with_fault
from tests.fixtures.pools import BACKENDS, make_pool

from vecrl.engine.pending import PendingCommand
from vecrl.engine.pool import Pool
from vecrl.errors import PendingError
from vecrl.vector import VectorEnv

pytestmark = pytest.mark.usefixtures("nothing_left")
ACTIONS = np.zeros(4, int)


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupt_soon(delay: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, delay)


def _work(pool: Pool, rounds: int = 1000) -> None:
    for _ in range(rounds):
        pool.reset()
        for _ in range(5):
            pool.step(ACTIONS)
        pool.send([0, 3], ACTIONS[:2])
        pool.send([1], ACTIONS[:1])
        pool.recv()
        pool.invoke("get", "count")


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("backend", BACKENDS)
def test_reset_recovers_from_interrupts(backend: str) -> None:
    pool = make_pool([lambda i=i: FaultyEnv(i) for i in range(4)], backend, 2, step_timeout=10.0)
    _work(pool, 1)  # modules that are imported on first use
    random = np.random.default_rng(1)
    for _ in range(150):
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            _interrupt_soon(random.uniform(1e-5, 2e-3))
            _work(pool)
        started = pool.reset()
        np.testing.assert_array_equal(started.obs[:, 0], range(4))
        np.testing.assert_array_equal(started.obs[:, 2], 0)
        np.testing.assert_array_equal(pool.step(ACTIONS).reward, 1.0)
        assert pool.pending.tolist() == []
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("to", ["send", "receive"])
def test_interrupts_between_send_and_receive(to: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers rare moments: between the commands to two workers, and between the arrival and the recording of a
    reply."""
    pool = make_pool([lambda i=i: FaultyEnv(i) for i in range(4)], backend, 2, step_timeout=5.0)
    pool.reset()
    sends, receives = pool._backend.send, pool._backend.receive

    def half_send(commands: Any) -> None:
        sends(commands[:1])
        raise KeyboardInterrupt

    def half_receive(*arguments: Any) -> Any:
        receives(*arguments)
        raise KeyboardInterrupt

    if to == "send":
        monkeypatch.setattr(pool._backend, "send", half_send)
        monkeypatch.setattr(
            pool._backend, "broadcast", lambda command: half_send([(w, command) for w in range(pool.num_workers)])
        )
    else:
        monkeypatch.setattr(pool._backend, "receive", half_receive)
    uses = (lambda: pool.step(ACTIONS), lambda: pool.invoke("get", "count"), pool.reset)
    for use in uses:
        monkeypatch.setattr(pool._backend, "send", half_send if to == "send" else sends)
        monkeypatch.setattr(pool._backend, "receive", receives if to == "send" else half_receive)
        with pytest.raises(KeyboardInterrupt):
            use()
        monkeypatch.setattr(pool._backend, "send", sends)
        monkeypatch.setattr(pool._backend, "receive", receives)
        np.testing.assert_array_equal(pool.reset().obs[:, 2], 0)
    monkeypatch.undo()
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, 1.0)
    pool.close()


@pytest.mark.parametrize("moment", ["start", "send", "gather"])
def test_interrupts_while_a_worker_is_replaced(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes at every point in turn. The worker counts as lost until its replacement exists."""
    makers = [lambda i=i: FaultyEnv(i) for i in range(4)]
    pool = make_pool(makers, "processes", 2, on_failure="restart")
    pool.reset(seeds=range(4))
    os.kill(pool.worker_infos[1].pid, signal.SIGKILL)

    gathers = pool._pending.wait_for

    def breaks_in(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def gather(command: PendingCommand, timeout: float | None) -> Any:
        return gathers(command, timeout) if command.seq else breaks_in()

    for _ in range(2):
        with monkeypatch.context() as patch:
            if moment == "start":
                patch.setattr(socket, "send_fds", breaks_in)
            elif moment == "send":
                patch.setattr(pool._backend, "send", breaks_in)
            else:
                patch.setattr(pool._pending, "wait_for", gather)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012
                for _ in range(50):  # its exit may take a moment to be known
                    pool.step(ACTIONS)
    np.testing.assert_array_equal(pool.reset().obs[:, 2], 0)
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, 1.0)
    assert pool.pending.tolist() == []
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_environments_that_interrupt_themselves(backend: str) -> None:
    class Interrupting(FaultyEnv):
        def step(self, action: Any) -> Any:
            if self.env_id == 1 and self.episode == 0:
                raise KeyboardInterrupt
            return super().step(action)

    pool = make_pool([lambda i=i: Interrupting(i) for i in range(4)], backend, 2, step_timeout=5.0)
    pool.reset()
    with pytest.raises((KeyboardInterrupt, Exception), match=r"KeyboardInterrupt|^$"):
        pool.step(ACTIONS)
    np.testing.assert_array_equal(pool.reset().obs[:, 2], 0)
    np.testing.assert_array_equal(pool.step(ACTIONS).reward, 1.0)
    assert threading.current_thread() is threading.main_thread()
    pool.close()


def test_a_serial_step_that_is_interrupted_leaves_its_environments_to_be_reset() -> None:
    """Some have stepped and some have not, and no result tells which."""

    class InterruptedEnv(FaultyEnv):
        def step(self, action: Any) -> Any:
            if self.env_id == 1 and self.episode == 0 and self.count == 2:
                raise KeyboardInterrupt
            return super().step(action)

    pool = make_pool([lambda i=i: InterruptedEnv(i) for i in range(3)], "serial")
    pool.reset()
    pool.step(ACTIONS[:3])
    pool.step(ACTIONS[:3])
    with pytest.raises(KeyboardInterrupt):
        pool.step(ACTIONS[:3])
    with pytest.raises(PendingError, match=r"Environments \[0, 1, 2\] failed before; reset them"):
        pool.step(ACTIONS[:3])
    np.testing.assert_array_equal(pool.reset().obs[:, 2], 0)
    np.testing.assert_array_equal(pool.step(ACTIONS[:3]).reward, 1.0)
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_message_after_an_interrupted_step_fits_classes_that_cannot_wait(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VectorEnv([FaultyEnv] * 4, backend=backend, num_workers=1 if backend == "serial" else 2) as envs:
        envs.reset()

        def interrupt(*_: object) -> Any:
            raise KeyboardInterrupt

        backend_of: Any = envs._pool._backend
        interrupted = (backend_of.workers[0], "step") if backend == "serial" else (backend_of, "receive")
        with monkeypatch.context() as patch:
            patch.setattr(*interrupted, interrupt)
            with pytest.raises(KeyboardInterrupt):
                envs.step(ACTIONS)
        expected = (
            "interrupted call, as by Ctrl-C, counts" if backend == "serial" else "after an interrupted .* if this"
        )
        with pytest.raises(PendingError, match=expected):
            envs.step(ACTIONS)
        envs.reset()
        envs.step(ACTIONS)


@pytest.mark.parametrize("ids", [None, [0, 1]])
def test_a_serial_reset_that_is_interrupted_leaves_its_environments_to_be_reset(ids: list[int] | None) -> None:
    class InterruptedEnv(FaultyEnv):
        def reset(self, **kwargs: Any) -> Any:
            if self.env_id == 1 and self.episode == 0:
                self.episode += 1
                raise KeyboardInterrupt
            return super().reset(**kwargs)

    env_fns = [lambda i=i: InterruptedEnv(i) for i in range(3)]
    mask = None if ids is None else np.isin(np.arange(3), ids)
    options = None if mask is None else {"reset_mask": mask}
    with VectorEnv(env_fns) as envs:
        envs.reset()
        with pytest.raises(KeyboardInterrupt):
            envs.reset(options=options)
        names = r"\[0, 1, 2\]" if ids is None else r"\[0, 1\]"
        with pytest.raises(PendingError, match=rf"Environments {names} failed before; reset them"):
            envs.step(ACTIONS[:3])
        obs, _ = envs.reset(options=options)
        np.testing.assert_array_equal(obs[:, 2], 0)
        np.testing.assert_array_equal(envs.step(ACTIONS[:3])[1], 1.0)


@pytest.mark.parametrize("on_failure", ["raise", "restart", "mask"])
def test_exits_of_signal_handlers_are_not_failures_of_environments(on_failure: Any) -> None:
    """A program that is asked to end by SIGTERM while an environment steps in its thread ends."""

    class Handler:
        def __call__(self, *_: object) -> None:
            sys.exit("asked to end")

        exit = __call__

    def terminate(_: FaultyEnv) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, Handler().exit)
    try:
        pool = make_pool(env_fns_with_fault("step", terminate), "serial", on_failure=on_failure)
        pool.reset()
        with pytest.raises(SystemExit, match="asked to end"):
            pool.step(np.zeros(3, int))
        pool.close()
    finally:
        signal.signal(signal.SIGTERM, before)
