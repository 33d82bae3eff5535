"""Ends a pool: its environments and workers, and calls that wait for them in other threads.

A pool serves one thread at a time. The thread that closes it has the call of another thread end first, so that no
descriptor is closed and no environment is ended while something uses it. Knows no rows, mode or dialect.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ..errors import ClosedError, Failure, PendingError
from .backends.base import Backend
from .pending import PendingCommands
from .worker import Command, Op

GRACE = 1.0  # seconds that pending commands may take to end and environments to close, where the user set no limit


class Closing:
    """Closes one pool, once.

    Args:
        pool: its finalizer is set here, which ends the workers of a pool that is collected.

    Attributes:
        turn: lock that a thread holds during its call of the pool. It is reentrant, for signal handlers.
        closed: whether `close` was called, so that no other call begins.
    """

    def __init__(self, pool: Any, backend: Backend, pending: PendingCommands):
        self.turn = threading.RLock()
        self.closed = False
        self._ended = False
        self._backend = backend
        self._pending = pending
        self._finalizer = weakref.finalize(pool, backend.shutdown, GRACE)

    @property
    def in_use(self) -> bool:
        """Whether a call in another thread is at work."""
        free = self.turn.acquire(blocking=False)
        if free:
            self.turn.release()
        return not free

    def abort(self) -> None:
        """Ends every worker of a pool that could not be made."""
        self.closed = True
        self._finalizer()

    def close(self, grace: float) -> list[Failure]:
        """Closes every environment and ends every worker, within about `grace` seconds; harmless twice.

        Returns:
            What went wrong.
        """
        self.closed = True
        self._pending.ending = True  # a call that waits in another thread ends then
        alone = self.turn.acquire(timeout=max(grace, GRACE))
        try:
            if self._ended:
                return []
            self._ended = True
            self._pending.ending = not alone
            return self._end(grace, alone)
        except BaseException:  # Ctrl-C
            self._finalizer()
            raise
        finally:
            self._pending.ending = True  # for the call that a signal's handler closes this in
            if alone:
                self.turn.release()

    def _end(self, grace: float, alone: bool) -> list[Failure]:
        pending = self._pending
        if not alone and self._backend.runs_inline:  # the other thread is in an environment; the finalizer closes them
            text = "another thread is in a call of it, which cannot be ended"
            return [Failure(pending.ids_of(range(self._backend.num_workers)), "close", text, kind="timed_out")]
        try:
            failures, timed_out = self._close_envs(grace)
        except (ClosedError, PendingError):  # the call of another thread goes on, or the one that a signal came in
            failures, timed_out = [], True
        unstopped = self._backend.shutdown(min(grace, GRACE) if timed_out else grace)
        self._finalizer.detach()
        pending.open.clear()
        pending.completed.clear()
        named = {i for failure in failures for i in failure.env_ids}
        for worker in unstopped:
            if not named.issuperset(ids := pending.ids_of([worker])):
                failures.append(Failure(ids, "close", "its thread cannot be ended", worker=worker, kind="timed_out"))
        return failures

    def _close_envs(self, grace: float) -> tuple[list[Failure], bool]:
        """Asks every living worker without a pending command to close: what goes wrong, and whether some timed out."""
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
            text = f"not closed within {grace:g} s, so ended by force where that can be done"
            waiting = [(worker, pending.ids_of([worker])) for worker in sorted(command.waiting)]
            timed_out = [Failure(ids, "close", text, worker=worker, kind="timed_out") for worker, ids in waiting]
            return [*crashed, *command.failures, *timed_out], True
