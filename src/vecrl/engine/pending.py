"""Which commands are under way, who has yet to answer, and who never will."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Sequence

import numpy as np

from ..errors import ClosedError, Failure, StepTimeout, failures_to_error
from .backends.base import Backend, Reply
from .worker import Command, Op, WorkerReply

WorkerReport = tuple[int, WorkerReply]
CLOSED = "This object is closed; make a new one."
# the greatest number of a command, which has 32 bits on the wire; a day and a half of quick steps
_MAX_SEQ = 0xFFFFFFFF
_GLANCE = 0.2  # seconds until a call that waits looks whether another thread closes the pool


class PendingCommand:
    """A command under way.

    Attributes:
        op: what was asked.
        seq: its number.
        ids: `[m]` int64, the environments asked; None for all of them (the short way).
        slot: where its rows are.
        reset_done: whether rows that end begin anew.
        waiting: the workers that have not answered.
        reports: of those that had something to say.
        reset_mask: `[n]` bool, those that begin instead of stepping; None for nobody.
        excluded: those among the environments asked whose workers were not.
        failed: those whose rows were written in their stead, since they failed.
    """

    __slots__ = ("excluded", "failed", "ids", "op", "reports", "reset_done", "reset_mask", "seq", "slot", "waiting")

    def __init__(self, op: Op, seq: int, workers: Iterable[int], ids: np.ndarray | None, slot: int, reset_done: bool):
        self.op = op
        self.seq = seq
        self.ids = ids
        self.slot = slot
        self.reset_done = reset_done
        self.waiting = set(workers)
        self.reports: list[WorkerReport] = []
        self.reset_mask: np.ndarray | None = None
        self.excluded: Container[int] = ()
        self.failed: Sequence[int] = ()

    @property
    def failures(self) -> list[Failure]:
        return [failure for _, report in self.reports for failure in report.failures]


class PendingCommands:
    """All commands under way on one backend.

    Attributes:
        open: those not answered in full, by number.
        completed: those of some environments that were answered in full and not yet collected.
        crashed: workers that are gone, and how they went.
        starts: `[num_workers + 1]`, worker w owns the environments from `starts[w]` to `starts[w + 1]`.
        torn: whether a call is at work on all this. Where none is, one was interrupted: see `resume`.
        ending: whether a call must end, since another thread closes the pool, or has closed it.
    """

    def __init__(self, backend: Backend, starts: np.ndarray):
        self.open: dict[int, PendingCommand] = {}
        self.completed: list[PendingCommand] = []
        self.crashed: dict[int, Failure] = {}
        self.starts = starts
        self.torn = False
        self.ending = False
        self._backend = backend
        self._seq = 0
        # when a worker was asked by name, or answered last, if it has more to do
        self._busy_since: dict[int, float] = {}
        self._num_owed: dict[int, int] = {}  # how many such answers it owes
        self._resync_seq = 0  # the number of the latest command that asks for nothing
        self._before_resync: set[int] = set()

    def register(
        self, op: Op, workers: Iterable[int], ids: np.ndarray | None = None, slot: int = 0, reset_done: bool = False
    ) -> PendingCommand:
        """A new flight; the caller sends its command."""
        self._seq = self._seq % _MAX_SEQ + 1
        command = self.open[self._seq] = PendingCommand(op, self._seq, workers, ids, slot, reset_done)
        return command

    def complete_empty(self, op: Op, ids: np.ndarray, reset_done: bool = False) -> PendingCommand:
        """A flight of `ids` that has landed as it began: nobody is there to be asked."""
        self._seq = self._seq % _MAX_SEQ + 1
        command = PendingCommand(op, self._seq, (), ids, 0, reset_done)
        command.excluded = set(ids.tolist())
        self.completed.append(command)
        return command

    def start_timer(self, worker: int) -> None:
        """From now on a worker owes one more answer to a command to some."""
        self._busy_since.setdefault(worker, time.monotonic())
        self._num_owed[worker] = self._num_owed.get(worker, 0) + 1

    def overdue(self, limit: float) -> set[int]:
        """The workers that have owed an answer for more than `limit` seconds."""
        if not self._busy_since:
            return set()
        before = time.monotonic() - limit
        return {worker for worker, since in self._busy_since.items() if since < before}

    def time_until_overdue(self, limit: float) -> float:
        """Seconds until some worker is overdue."""
        return max(0.0, min(self._busy_since.values(), default=np.inf) + limit - time.monotonic())

    def restart_timers(self, workers: Iterable[int]) -> None:
        """Grant these the same time once more."""
        self._busy_since |= dict.fromkeys(workers, time.monotonic())

    def resume(self, limited: bool) -> None:
        """Restores what an interrupted call left incomplete, and asks every pending worker for one more reply.

        Ctrl-C may strike while a command is on its way to some workers, or a reply on its way here. Replies come in
        order, so a worker that answers the latest command and not an earlier one never received that one, or its reply
        was lost.

        Args:
            limited: whether commands to some have a time limit; it starts again.
        """
        for command in [f for f in self.open.values() if not f.waiting and f.ids is not None]:
            self._land(command)
        self._busy_since.clear()
        self._num_owed.clear()
        for command in self.open.values() if limited else ():
            for worker in command.waiting if command.ids is not None else ():
                self.start_timer(worker)
        self._seq = self._resync_seq = self._seq % _MAX_SEQ + 1
        self._before_resync = set(self.open)
        workers = self.pending_workers
        no_op = Command(Op.INVOKE, self._resync_seq, rows=[], extra=("get", "", []))
        self._backend.send([(worker, no_op) for worker in sorted(workers)])

    def register_internal(self, op: Op, workers: Iterable[int]) -> PendingCommand:
        """A flight whose commands a backend sent of its own, under number 0."""
        command = self.open[0] = PendingCommand(op, 0, workers, None, 0, False)
        return command

    @property
    def sync_command(self) -> PendingCommand | None:
        """The flight of a command to all, or None."""
        for command in self.open.values():
            if command.ids is None:
                return command
        return None

    @property
    def pending_workers(self) -> set[int]:
        """The workers that have not answered all their commands."""
        return {worker for command in self.open.values() for worker in command.waiting}

    def wait_for(self, command: PendingCommand, timeout: float | None) -> list[Failure]:
        """Wait for a flight to be answered in full; its failures.

        Raises:
            StepTimeout: `timeout` seconds went by; the flight stays open.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while command.waiting:
            remaining = (
                timeout if deadline is None or self._backend.runs_inline else max(0.0, deadline - time.monotonic())
            )
            replies = self.receive(remaining, command.waiting)
            if not replies:
                raise self.timeout_error(timeout)
            if timeout is not None and not command.waiting.isdisjoint(answer[0] for answer in replies):
                deadline = time.monotonic() + timeout  # a worker had more to do before: each command has the time
        self.open.pop(command.seq, None)
        return command.failures if command.reports else []

    def receive(self, timeout: float | None, expect: Collection[int] = ()) -> list[Reply]:
        """Takes in replies as they come, and returns them; see `Backend.receive`.

        Raises:
            ClosedError: another thread closes the pool.
        """
        torn, self.torn = self.torn, True
        if self._backend.runs_inline:
            replies = self._backend.receive(timeout, expect)
        else:
            replies = self._backend.receive(_GLANCE if timeout is None else min(timeout, _GLANCE), expect)
            while not replies and not self.ending and (timeout is None or timeout > _GLANCE):
                timeout = None if timeout is None else timeout - _GLANCE
                replies = self._backend.receive(_GLANCE if timeout is None else min(timeout, _GLANCE), expect)
        if self.ending:
            raise ClosedError(CLOSED)
        self.on_replies(replies)
        self.torn = torn
        return replies

    def receive_arrived(self) -> None:
        """Takes in the replies that are here already, so that no worker is judged by what was not read yet.

        A backend that works in turn has none: its commands are carried out when their replies are waited for.
        """
        while not self._backend.runs_inline and self.receive(0.0):
            pass

    def on_replies(self, replies: Sequence[Reply]) -> None:
        """Take answers in."""
        for worker, seq, report in replies:
            if seq < 0:
                assert report is not None
                self.crashed[worker] = report.failures[0]
                for command in [f for f in self.open.values() if worker in f.waiting]:
                    self._record_reply(command, worker, report)
            elif seq in self.open:  # nobody waits any more for the others
                self._record_reply(self.open[seq], worker, report)
            elif seq == self._resync_seq:
                for command in [f for f in self.open.values() if f.seq in self._before_resync and worker in f.waiting]:
                    ids, op = self.ids_of([worker]), command.op.name.lower()
                    self._record_reply(
                        command, worker, WorkerReply(failures=[Failure(ids, op, "interrupted", worker=worker)])
                    )

    def drop_worker(self, worker: int) -> None:
        """Wait no longer for a worker that was ended: commands to all go on without it, those to its own are gone."""
        for command in [f for f in self.open.values() if worker in f.waiting]:
            if command.ids is None:
                failure = Failure(self.ids_of([worker]), command.op.name.lower(), "cancelled", worker=worker)
                command.reports.append((worker, WorkerReply(failures=[failure])))
                command.waiting.discard(worker)  # it stays open until somebody asks for it
            else:
                del self.open[command.seq]
        self._busy_since.pop(worker, None)
        self._num_owed.pop(worker, None)

    def _record_reply(self, command: PendingCommand, worker: int, report: WorkerReply | None) -> None:
        if report is not None:
            command.reports.append((worker, report))
        command.waiting.discard(worker)
        if command.ids is not None and worker in self._busy_since:
            self._num_owed[worker] -= 1
            if self._num_owed[worker]:
                self._busy_since[worker] = time.monotonic()
            else:
                del self._busy_since[worker]
        if not command.waiting:
            self._land(command)

    def _land(self, command: PendingCommand) -> None:
        del self.open[command.seq]
        if command.ids is not None:
            self.completed.append(command)

    def timeout_error(self, limit: float | None, workers: Container[int] | None = None) -> StepTimeout:
        """The error that names all (of these) who have not answered within `limit` seconds."""
        text = "no answer" if limit is None else f"no answer within {limit:g} s"
        failures: list[Failure] = []
        for command in self.open.values():
            for worker in sorted(w for w in command.waiting if workers is None or w in workers):
                ids = self.ids_of([worker]) if command.ids is None else tuple(command.ids.tolist())
                failures.append(Failure(ids, command.op.name.lower(), text, worker=worker, kind="timed_out"))
        error = failures_to_error(failures)
        assert isinstance(error, StepTimeout)
        return error

    def ids_of(self, workers: Iterable[int]) -> tuple[int, ...]:
        """The environments of these workers."""
        return tuple(i for w in sorted(workers) for i in range(int(self.starts[w]), int(self.starts[w + 1])))
