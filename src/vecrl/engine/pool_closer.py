"""Closes a pool: its environments and workers, and calls that wait for them in other threads.

Only one thread at a time can call a pool. The thread that closes the pool first makes a call of another thread end, so
that no descriptor and no environment is closed while it is in use. A fork of the process cannot call a pool with
workers at all, since these belong to the process that made the pool.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import NoReturn

from ..errors import ClosedError, Failure, ForkedError, PendingError
from .backends.base import Backend
from .pending import PendingCommands
from .worker import Command, Op

GRACE = 1.0  # seconds for pending commands to complete, and for environments to close, without a limit by the user
_LONGEST = 10.0**6  # seconds: the system's functions accept no infinite timeout


class ForkedLock:
    """The lock of a pool in a fork of the process that made it. A call of the pool cannot take it.

    Args:
        owner: the id of the process that made the pool.
    """

    def __init__(self, owner: int):
        self._owner = owner

    def acquire(self, blocking: bool = True, timeout: float = -1) -> NoReturn:
        """Raises a `ForkedError`."""
        raise ForkedError(
            f"Expected a call in process {self._owner}, which made these environments and has their workers, got one "
            f"in its fork {os.getpid()}. Make environments after the fork, or start processes by 'spawn'."
        )

    def release(self) -> None:
        """Does nothing."""

    def __enter__(self) -> NoReturn:
        self.acquire()

    def __exit__(self, *_: object) -> None: ...


class PoolCloser:
    """Closes one pool, once.

    Args:
        pool: gets a finalizer, which ends its workers when the pool is garbage-collected.
        backend: the backend of the pool.
        pending: the pending commands of the pool.

    Attributes:
        lock: a thread holds this lock during its call of the pool. It is reentrant, for signal handlers. In a fork of
            the process it is a `ForkedLock`.
        closed: whether `close` was called. Further calls of the pool raise an error.
    """

    _of_process: weakref.WeakSet[PoolCloser] = weakref.WeakSet()  # those of all pools

    def __init__(self, pool: object, backend: Backend, pending: PendingCommands):
        self.lock: threading.RLock | ForkedLock = threading.RLock()
        self.closed = False
        self._claim = threading.RLock()  # held while `_closing_thread` is read and set
        self._closing_thread: int | None = None  # the thread that closes the pool
        self._ended = threading.Event()
        self._backend = backend
        self._pending = pending
        self._finalizer = weakref.finalize(pool, backend.shutdown, GRACE)
        self._owner = os.getpid()
        self._of_process.add(self)

    @classmethod
    def leave_to_owners(cls) -> None:
        """In a fork: makes every call of a pool that has workers raise a `ForkedError`.

        Environments that are in the thread of their caller have copies here, which no other thread is using.
        """
        for closer in list(cls._of_process):
            if closer._pending.runs_inline:
                closer.lock = threading.RLock()
            else:
                closer.lock = ForkedLock(closer._owner)
                closer._finalizer.detach()

    @property
    def in_use(self) -> bool:
        """Whether a call is running in another thread."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return not free

    def abort(self) -> None:
        """Ends every worker of a pool that could not be constructed."""
        self.closed = True
        self._finalizer()

    def close(self, grace: float) -> list[Failure]:
        """Closes every environment and ends every worker, within about `grace` seconds.

        A further call waits until the first one has ended; in a signal handler of the thread that closes, it does
        nothing.

        Returns:
            The failures, to the first call only.
        """
        if isinstance(self.lock, ForkedLock):
            self.lock.acquire()
        self.closed = True
        grace = min(grace, _LONGEST)
        with self._claim:
            if self._closing_thread is None:
                self._pending.calls_must_end = True  # makes a call that waits in another thread raise
        alone = self.lock.acquire(timeout=max(grace, GRACE))
        try:
            if self._claim_closing(alone):
                failures = self._end(grace, alone)
                self._mark_ended()
                return failures
        except BaseException:  # Ctrl-C
            self._finalizer()
            self._mark_ended()
            raise
        finally:
            if alone:
                self.lock.release()
        if self._closing_thread != threading.get_ident():
            self._ended.wait()
        return []

    def _claim_closing(self, alone: bool) -> bool:
        """Returns whether this call is the first that closes the pool."""
        with self._claim:
            if self._closing_thread is not None:
                return False
            self._closing_thread = threading.get_ident()
            self._pending.calls_must_end = not alone
            return True

    def _mark_ended(self) -> None:
        self._pending.calls_must_end = True  # also for a call below the signal handler that closes the pool
        self._ended.set()

    def _end(self, grace: float, alone: bool) -> list[Failure]:
        pending = self._pending
        if not alone and self._pending.runs_inline:  # another thread executes an environment; the finalizer closes them
            text = "a call of it in another thread cannot be interrupted"
            return [Failure(pending.ids_of(range(self._backend.num_workers)), "close", text, kind="timed_out")]
        try:
            failures, timed_out = self._close_envs(grace)
        except (ClosedError, PendingError):  # a call still runs, in another thread or below this signal handler
            failures, timed_out = [], True
        unstopped = self._backend.shutdown(min(grace, GRACE) if timed_out else grace)
        self._finalizer.detach()
        pending.open.clear()
        pending.completed.clear()
        named = {i for failure in failures for i in failure.env_ids}
        for worker in unstopped:
            if not named.issuperset(ids := pending.ids_of([worker])):
                text = "its thread cannot be killed, and ends with the program"
                failures.append(Failure(ids, "close", text, worker=worker, kind="timed_out"))
        return failures

    def _close_envs(self, grace: float) -> tuple[list[Failure], bool]:
        """Closes the environments of every worker that is neither crashed nor pending.

        Returns:
            The failures, and whether a worker timed out or is pending.
        """
        pending = self._pending
        idle = set(range(self._backend.num_workers)) - pending.pending_workers - set(pending.crashed)
        pending.receive_arrived()
        busy = pending.pending_workers
        crashed = [pending.crashed[worker] for worker in sorted(idle.intersection(pending.crashed))]  # not reported yet
        workers = set(range(self._backend.num_workers)) - busy - set(pending.crashed)
        command = pending.register(Op.CLOSE, workers)
        self._backend.send([(worker, Command(Op.CLOSE, command.seq)) for worker in sorted(workers)])
        try:
            return crashed + pending.wait_for(command, grace), bool(busy)
        except TimeoutError:
            text = f"not closed within {grace:g} s, so its worker is killed if that is possible"
            waiting = [(worker, pending.ids_of([worker])) for worker in sorted(command.waiting)]
            timed_out = [Failure(ids, "close", text, worker=worker, kind="timed_out") for worker, ids in waiting]
            return [*crashed, *command.failures, *timed_out], True


if hasattr(os, "register_at_fork"):  # not Windows
    os.register_at_fork(after_in_child=PoolCloser.leave_to_owners)
