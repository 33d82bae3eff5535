"""Records the pending commands of a pool, the workers that have not replied yet, and the workers that have crashed."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Sequence

import numpy as np

from ..errors import ClosedError, Failure, PendingError, StepTimeout, failures_to_error
from .backends.base import Backend, Reply
from .worker import Command, Op, WorkerReply

CLOSED = "This object is closed; make a new one."
_MAX_SEQ = 0xFFFFFFFF  # the largest command number: it is sent in 32 bits, and then starts at 1 again
_POLL_S = 0.2  # seconds after which a waiting call checks whether another thread closes the pool


class PendingCommand:
    """One command to one or more workers, until its results are collected.

    Attributes:
        op: the operation.
        seq: its number.
        ids: `[m]` int64, its environments; None if it was sent to all of them.
        slot: index of the slot with its rows.
        reset_done: whether rows in which the episode ends are reset.
        waiting: the workers that have not replied.
        replies: the non-empty replies of the others, each with its worker.
        reset_mask: `[n]` bool, environments that are reset instead of stepped; None for none.
        excluded: environments of the command that were not sent to a worker. The fault policy writes their rows.
        failed: environments with rows written by the fault policy, since they failed.
    """

    __slots__ = ("excluded", "failed", "ids", "op", "replies", "reset_done", "reset_mask", "seq", "slot", "waiting")

    def __init__(self, op: Op, seq: int, workers: Iterable[int], ids: np.ndarray | None, slot: int, reset_done: bool):
        self.op = op
        self.seq = seq
        self.ids = ids
        self.slot = slot
        self.reset_done = reset_done
        self.waiting = set(workers)
        self.replies: list[tuple[int, WorkerReply]] = []
        self.reset_mask: np.ndarray | None = None
        self.excluded: Container[int] = ()
        self.failed: Sequence[int] = ()

    @property
    def failures(self) -> list[Failure]:
        """The failures of all replies so far."""
        return [failure for _, reply in self.replies for failure in reply.failures]


class PendingCommands:
    """All pending commands of one backend.

    Attributes:
        open: the commands with missing replies, keyed by number.
        completed: commands by id (not to all) with all replies, but with results not collected yet.
        crashed: the crashed workers, with the failure of each.
        worker_bounds: `[num_workers + 1]`; worker w has the environments from `worker_bounds[w]` to
            `worker_bounds[w + 1]`, exclusive.
        updating: whether a call is changing these records. If it is set while no call runs, a call was interrupted, and
            `resync` must be called.
        runs_inline: whether the backend executes a command when its reply is waited for.
        calls_must_end: whether calls must end, because another thread closes or has closed the pool.
    """

    def __init__(self, backend: Backend, worker_bounds: np.ndarray, runs_inline: bool):
        self.open: dict[int, PendingCommand] = {}
        self.completed: list[PendingCommand] = []
        self.crashed: dict[int, Failure] = {}
        self.worker_bounds = worker_bounds
        self.updating = False
        self.calls_must_end = False
        self.runs_inline = runs_inline
        self._backend = backend
        self._seq = 0
        # when a worker was sent a command by id, or last replied if it has further ones
        self._busy_since: dict[int, float] = {}
        self._num_due: dict[int, int] = {}  # how many replies to commands by id are missing
        self._resync_seq = 0  # the number of the latest command that `resync` sent
        self._before_resync: set[int] = set()  # the numbers of the commands that were open then

    def register(
        self, op: Op, workers: Iterable[int], ids: np.ndarray | None = None, slot: int = 0, reset_done: bool = False
    ) -> PendingCommand:
        """Adds a pending command and returns it. The caller sends it."""
        self._seq = self._seq % _MAX_SEQ + 1
        command = self.open[self._seq] = PendingCommand(op, self._seq, workers, ids, slot, reset_done)
        return command

    def complete_empty(self, op: Op, ids: np.ndarray, reset_done: bool = False) -> PendingCommand:
        """Adds a completed command for `ids` that is not sent to any worker, since these environments are excluded."""
        self._seq = self._seq % _MAX_SEQ + 1
        command = PendingCommand(op, self._seq, (), ids, 0, reset_done)
        command.excluded = set(ids.tolist())
        self.completed.append(command)
        return command

    def start_timer(self, worker: int) -> None:
        """Counts one more missing reply of a worker to a command by id, and starts its timer if none runs."""
        self._busy_since.setdefault(worker, time.monotonic())
        self._num_due[worker] = self._num_due.get(worker, 0) + 1

    def overdue(self, limit: float) -> set[int]:
        """Returns the workers with a reply that has been missing for more than `limit` seconds."""
        if not self._busy_since:
            return set()
        before = time.monotonic() - limit
        return {worker for worker, since in self._busy_since.items() if since < before}

    def time_until_overdue(self, limit: float) -> float:
        """Returns the seconds until a worker is overdue; infinity if no timer runs."""
        return max(0.0, min(self._busy_since.values(), default=np.inf) + limit - time.monotonic())

    def restart_timers(self, workers: Iterable[int]) -> None:
        """Restarts the timers of these workers."""
        self._busy_since |= dict.fromkeys(workers, time.monotonic())

    def resync(self, limited: bool) -> None:
        """Restores the records after an interrupted call, and sends every pending worker one more command.

        Ctrl-C can interrupt a call before all workers have received a command, or before a reply is recorded. Replies
        arrive in order. So if a worker replies to the latest command and not to an earlier one, it never received that
        one, or its reply was lost.

        Args:
            limited: whether commands by id have a time limit; their timers are restarted.
        """
        for command in [c for c in self.open.values() if not c.waiting and c.ids is not None]:
            self._complete(command)
        self._busy_since.clear()
        self._num_due.clear()
        for command in self.open.values() if limited else ():
            for worker in command.waiting if command.ids is not None else ():
                self.start_timer(worker)
        self._seq = self._resync_seq = self._seq % _MAX_SEQ + 1
        self._before_resync = set(self.open)
        workers = self.pending_workers
        no_op = Command(Op.INVOKE, self._resync_seq, rows=[], extra=("get", "", []))
        self._backend.send([(worker, no_op) for worker in sorted(workers)])

    def register_internal(self, op: Op, workers: Iterable[int]) -> PendingCommand:
        """Adds a pending command that the backend itself has sent, with number 0."""
        command = self.open[0] = PendingCommand(op, 0, workers, None, 0, False)
        return command

    @property
    def sync_command(self) -> PendingCommand | None:
        """The pending command to all environments, or the pending call; None if there is none."""
        for command in self.open.values():
            if command.ids is None:
                return command
        return None

    @property
    def pending_workers(self) -> set[int]:
        """The workers that have not replied to all their commands."""
        return {worker for command in self.open.values() for worker in command.waiting}

    def wait_for(self, command: PendingCommand, timeout: float | None) -> list[Failure]:
        """Waits for all replies to a command and returns its failures.

        Raises:
            StepTimeout: replies are missing after `timeout` seconds; the command stays pending.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while command.waiting:
            remaining = timeout if deadline is None or self.runs_inline else max(0.0, deadline - time.monotonic())
            replies = self.receive(remaining, command.waiting)
            if not replies:
                raise self.timeout_error(timeout)
            if timeout is not None and not command.waiting.isdisjoint(reply[0] for reply in replies):
                deadline = time.monotonic() + timeout  # it was a reply to an earlier command: each has its own time
        self.open.pop(command.seq, None)
        return command.failures if command.replies else []

    def receive(self, timeout: float | None, expect: Collection[int] = ()) -> list[Reply]:
        """Receives replies, records them and returns them; see `Backend.receive`.

        Raises:
            ClosedError: another thread closes the pool.
        """
        updating, self.updating = self.updating, True
        try:
            replies = self._receive(timeout, expect)
        except PendingError:  # a thread that closes the pool waits for the same workers
            if self.calls_must_end:
                raise ClosedError(CLOSED) from None
            raise
        if self.calls_must_end:
            raise ClosedError(CLOSED)
        self.on_replies(replies)
        self.updating = updating
        return replies

    def _receive(self, timeout: float | None, expect: Collection[int]) -> list[Reply]:
        """Receives replies of the backend; stops waiting soon if calls must end."""
        if self.runs_inline:
            return self._backend.receive(timeout, expect)
        replies = self._backend.receive(_POLL_S if timeout is None else min(timeout, _POLL_S), expect)
        while not replies and not self.calls_must_end and (timeout is None or timeout > _POLL_S):
            timeout = None if timeout is None else timeout - _POLL_S
            replies = self._backend.receive(_POLL_S if timeout is None else min(timeout, _POLL_S), expect)
        return replies

    def receive_arrived(self) -> None:
        """Records the replies that have arrived already, so that a worker that has replied does not count as timed out.

        An inline backend has none: it executes a command when its reply is waited for.
        """
        while not self.runs_inline and self.receive(0.0):
            pass

    def on_replies(self, replies: Sequence[Reply]) -> None:
        """Records replies."""
        for worker, seq, reply in replies:
            if seq < 0:
                assert reply is not None
                self.crashed[worker] = reply.failures[0]
                for command in [c for c in self.open.values() if worker in c.waiting]:
                    self._record_reply(command, worker, reply)
            elif seq in self.open:  # other replies belong to dropped commands
                self._record_reply(self.open[seq], worker, reply)
            elif seq == self._resync_seq:
                for command in [c for c in self.open.values() if c.seq in self._before_resync and worker in c.waiting]:
                    ids, op = self.ids_of([worker]), command.op.name.lower()
                    self._record_reply(
                        command, worker, WorkerReply(failures=[Failure(ids, op, "interrupted", worker=worker)])
                    )

    def drop_worker(self, worker: int) -> None:
        """Stops waiting for a killed worker. Its commands by id are removed; commands to all continue without it."""
        for command in [c for c in self.open.values() if worker in c.waiting]:
            if command.ids is None:
                failure = Failure(self.ids_of([worker]), command.op.name.lower(), "cancelled", worker=worker)
                command.replies.append((worker, WorkerReply(failures=[failure])))
                command.waiting.discard(worker)  # the command stays open until its result is collected
            else:
                del self.open[command.seq]
        self._busy_since.pop(worker, None)
        self._num_due.pop(worker, None)

    def _record_reply(self, command: PendingCommand, worker: int, reply: WorkerReply | None) -> None:
        if reply is not None:
            command.replies.append((worker, reply))
        command.waiting.discard(worker)
        if command.ids is not None and worker in self._busy_since:
            self._num_due[worker] -= 1
            if self._num_due[worker]:
                self._busy_since[worker] = time.monotonic()
            else:
                del self._busy_since[worker]
        if not command.waiting:
            self._complete(command)

    def _complete(self, command: PendingCommand) -> None:
        del self.open[command.seq]
        if command.ids is not None:
            self.completed.append(command)

    def timeout_error(self, limit: float | None, workers: Container[int] | None = None) -> StepTimeout:
        """Returns an error that names the environments of all workers (or of `workers`) with missing replies."""
        text = "no reply" if limit is None else f"no reply within {limit:g} s"
        failures: list[Failure] = []
        for command in self.open.values():
            for worker in sorted(w for w in command.waiting if workers is None or w in workers):
                ids = self.ids_of([worker]) if command.ids is None else tuple(command.ids.tolist())
                failures.append(Failure(ids, command.op.name.lower(), text, worker=worker, kind="timed_out"))
        error = failures_to_error(failures)
        assert isinstance(error, StepTimeout)
        return error

    def ids_of(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Returns the environments of these workers."""
        bounds = self.worker_bounds
        return tuple(i for w in sorted(workers) for i in range(int(bounds[w]), int(bounds[w + 1])))
