"""Which commands are under way, who has yet to answer, and who never will."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Sequence

import numpy as np

from ..errors import ClosedError, Failure, StepTimeout, failures_to_error
from .backends.base import Answer, Backend
from .worker import Command, Op, Report

WorkerReport = tuple[int, Report]
CLOSED = "This object is closed; make a new one."
_MOST = 0xFFFFFFFF  # the greatest number of a command, which has 32 bits on the wire; a day and a half of quick steps
_GLANCE = 0.2  # seconds until a call that waits looks whether another thread closes the pool


class Flight:
    """A command under way.

    Attributes:
        op: what was asked.
        seq: its number.
        ids: `[m]` int64, the environments asked; None for all of them (the short way).
        slot: where its rows are.
        eager: whether rows that end begin anew.
        waiting: the workers that have not answered.
        reports: of those that had something to say.
        begin: `[n]` bool, those that begin instead of stepping; None for nobody.
        left_out: those among the environments asked whose workers were not.
        failed: those whose rows were written in their stead, since they failed.
    """

    __slots__ = ("begin", "eager", "failed", "ids", "left_out", "op", "reports", "seq", "slot", "waiting")

    def __init__(self, op: Op, seq: int, workers: Iterable[int], ids: np.ndarray | None, slot: int, eager: bool):
        self.op = op
        self.seq = seq
        self.ids = ids
        self.slot = slot
        self.eager = eager
        self.waiting = set(workers)
        self.reports: list[WorkerReport] = []
        self.begin: np.ndarray | None = None
        self.left_out: Container[int] = ()
        self.failed: Sequence[int] = ()

    @property
    def failures(self) -> list[Failure]:
        return [failure for _, report in self.reports for failure in report.failures]


class Flights:
    """All commands under way on one backend.

    Attributes:
        open: those not answered in full, by number.
        landed: those of some environments that were answered in full and not yet collected.
        dead: workers that are gone, and how they went.
        starts: `[num_workers + 1]`, worker w owns the environments from `starts[w]` to `starts[w + 1]`.
        torn: whether a call is at work on all this. Where none is, one was interrupted: see `resume`.
        ending: whether a call must end, since another thread closes the pool, or has closed it.
    """

    def __init__(self, backend: Backend, starts: np.ndarray):
        self.open: dict[int, Flight] = {}
        self.landed: list[Flight] = []
        self.dead: dict[int, Failure] = {}
        self.starts = starts
        self.torn = False
        self.ending = False
        self._backend = backend
        self._seq = 0
        self._since: dict[int, float] = {}  # when a worker was asked by name, or answered last, if it has more to do
        self._owed: dict[int, int] = {}  # how many such answers it owes
        self._echo = 0  # the number of the latest command that asks for nothing
        self._before_echo: set[int] = set()

    def launch(
        self, op: Op, workers: Iterable[int], ids: np.ndarray | None = None, slot: int = 0, eager: bool = False
    ) -> Flight:
        """A new flight; the caller sends its command."""
        self._seq = self._seq % _MOST + 1
        flight = self.open[self._seq] = Flight(op, self._seq, workers, ids, slot, eager)
        return flight

    def ask_nobody(self, op: Op, ids: np.ndarray, eager: bool = False) -> Flight:
        """A flight of `ids` that has landed as it began: nobody is there to be asked."""
        self._seq = self._seq % _MOST + 1
        flight = Flight(op, self._seq, (), ids, 0, eager)
        flight.left_out = set(ids.tolist())
        self.landed.append(flight)
        return flight

    def watch(self, worker: int) -> None:
        """From now on a worker owes one more answer to a command to some."""
        self._since.setdefault(worker, time.monotonic())
        self._owed[worker] = self._owed.get(worker, 0) + 1

    def overdue(self, limit: float) -> set[int]:
        """The workers that have owed an answer for more than `limit` seconds."""
        if not self._since:
            return set()
        before = time.monotonic() - limit
        return {worker for worker, since in self._since.items() if since < before}

    def patience(self, limit: float) -> float:
        """Seconds until some worker is overdue."""
        return max(0.0, min(self._since.values(), default=np.inf) + limit - time.monotonic())

    def renew(self, workers: Iterable[int]) -> None:
        """Grant these the same time once more."""
        self._since |= dict.fromkeys(workers, time.monotonic())

    def resume(self, limited: bool) -> None:
        """Restores what an interrupted call left incomplete, and asks every pending worker for one more reply.

        Ctrl-C may strike while a command is on its way to some workers, or a reply on its way here. Replies come in
        order, so a worker that answers the latest command and not an earlier one never received that one, or its reply
        was lost.

        Args:
            limited: whether commands to some have a time limit; it starts again.
        """
        for flight in [f for f in self.open.values() if not f.waiting and f.ids is not None]:
            self._land(flight)
        self._since.clear()
        self._owed.clear()
        for flight in self.open.values() if limited else ():
            for worker in flight.waiting if flight.ids is not None else ():
                self.watch(worker)
        self._seq = self._echo = self._seq % _MOST + 1
        self._before_echo = set(self.open)
        workers = self.pending_workers
        nothing = Command(Op.INVOKE, self._echo, rows=[], extra=("get", "", []))
        self._backend.send([(worker, nothing) for worker in sorted(workers)])

    def expect(self, op: Op, workers: Iterable[int]) -> Flight:
        """A flight whose commands a backend sent of its own, under number 0."""
        flight = self.open[0] = Flight(op, 0, workers, None, 0, False)
        return flight

    @property
    def of_all(self) -> Flight | None:
        """The flight of a command to all, or None."""
        for flight in self.open.values():
            if flight.ids is None:
                return flight
        return None

    @property
    def pending_workers(self) -> set[int]:
        """The workers that have not answered all their commands."""
        return {worker for flight in self.open.values() for worker in flight.waiting}

    def gather(self, flight: Flight, timeout: float | None) -> list[Failure]:
        """Wait for a flight to be answered in full; its failures.

        Raises:
            StepTimeout: `timeout` seconds went by; the flight stays open.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while flight.waiting:
            left = timeout if end is None or self._backend.in_turn else max(0.0, end - time.monotonic())
            answers = self.receive(left, flight.waiting)
            if not answers:
                raise self.late(timeout)
            if timeout is not None and not flight.waiting.isdisjoint(answer[0] for answer in answers):
                end = time.monotonic() + timeout  # a worker had more to do before: each command has the time
        self.open.pop(flight.seq, None)
        return flight.failures if flight.reports else []

    def receive(self, timeout: float | None, expect: Collection[int] = ()) -> list[Answer]:
        """Takes in replies as they come, and returns them; see `Backend.receive`.

        Raises:
            ClosedError: another thread closes the pool.
        """
        torn, self.torn = self.torn, True
        if self._backend.in_turn:
            answers = self._backend.receive(timeout, expect)
        else:
            answers = self._backend.receive(_GLANCE if timeout is None else min(timeout, _GLANCE), expect)
            while not answers and not self.ending and (timeout is None or timeout > _GLANCE):
                timeout = None if timeout is None else timeout - _GLANCE
                answers = self._backend.receive(_GLANCE if timeout is None else min(timeout, _GLANCE), expect)
        if self.ending:
            raise ClosedError(CLOSED)
        self.land(answers)
        self.torn = torn
        return answers

    def receive_arrived(self) -> None:
        """Takes in the replies that are here already, so that no worker is judged by what was not read yet.

        A backend that works in turn has none: its commands are carried out when their replies are waited for.
        """
        while not self._backend.in_turn and self.receive(0.0):
            pass

    def land(self, answers: Sequence[Answer]) -> None:
        """Take answers in."""
        for worker, seq, report in answers:
            if seq < 0:
                assert report is not None
                self.dead[worker] = report.failures[0]
                for flight in [f for f in self.open.values() if worker in f.waiting]:
                    self._answer(flight, worker, report)
            elif seq in self.open:  # nobody waits any more for the others
                self._answer(self.open[seq], worker, report)
            elif seq == self._echo:
                for flight in [f for f in self.open.values() if f.seq in self._before_echo and worker in f.waiting]:
                    ids, op = self.ids_of([worker]), flight.op.name.lower()
                    self._answer(flight, worker, Report(failures=[Failure(ids, op, "interrupted", worker=worker)]))

    def give_up(self, worker: int) -> None:
        """Wait no longer for a worker that was ended: commands to all go on without it, those to its own are gone."""
        for flight in [f for f in self.open.values() if worker in f.waiting]:
            if flight.ids is None:
                failure = Failure(self.ids_of([worker]), flight.op.name.lower(), "cancelled", worker=worker)
                flight.reports.append((worker, Report(failures=[failure])))
                flight.waiting.discard(worker)  # it stays open until somebody asks for it
            else:
                del self.open[flight.seq]
        self._since.pop(worker, None)
        self._owed.pop(worker, None)

    def _answer(self, flight: Flight, worker: int, report: Report | None) -> None:
        if report is not None:
            flight.reports.append((worker, report))
        flight.waiting.discard(worker)
        if flight.ids is not None and worker in self._since:
            self._owed[worker] -= 1
            if self._owed[worker]:
                self._since[worker] = time.monotonic()
            else:
                del self._since[worker]
        if not flight.waiting:
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        del self.open[flight.seq]
        if flight.ids is not None:
            self.landed.append(flight)

    def late(self, limit: float | None, workers: Container[int] | None = None) -> StepTimeout:
        """The error that names all (of these) who have not answered within `limit` seconds."""
        text = "no answer" if limit is None else f"no answer within {limit:g} s"
        late: list[Failure] = []
        for flight in self.open.values():
            for worker in sorted(w for w in flight.waiting if workers is None or w in workers):
                ids = self.ids_of([worker]) if flight.ids is None else tuple(flight.ids.tolist())
                late.append(Failure(ids, flight.op.name.lower(), text, worker=worker, kind="late"))
        error = failures_to_error(late)
        assert isinstance(error, StepTimeout)
        return error

    def ids_of(self, workers: Iterable[int]) -> tuple[int, ...]:
        """The environments of these workers."""
        return tuple(i for w in sorted(workers) for i in range(int(self.starts[w]), int(self.starts[w + 1])))
