"""Workers in the caller's own thread: a command is carried out as it is sent."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...errors import Failure
from ..arena import Arena
from ..layout import Layout
from ..worker import Command, Op, Plan, Report, Worker, describe_failure
from .base import Answer


class Serial:
    """See `Backend`. A step that took longer than `step_timeout` seconds is reported late once it has ended,
    since nobody is there to notice before."""

    def __init__(self, plans: Sequence[Plan], step_timeout: float | None = None):
        self.num_workers = len(plans)
        self._workers = [Worker(plan) for plan in plans]
        self._timeout = step_timeout
        self._answers: list[Answer] = []
        self.broadcast(Command(Op.CONSTRUCT))

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> Arena:
        arena = Arena(obs, action, num_envs, slots)
        self.broadcast(Command(Op.ATTACH, extra=(arena, obs, action)))
        return arena

    def send(self, worker: int, command: Command) -> None:
        begin = 0.0 if self._timeout is None else time.perf_counter()
        try:
            report = self._workers[worker].execute(command)
        except BaseException as error:  # Ctrl-C: it is the caller's, but the command has ended all the same
            failure = describe_failure((), command.op.name.lower(), error, worker, self._workers[worker].steps)
            self._answers.append((worker, command.seq, Report(failures=[failure])))
            raise
        if self._timeout is not None and command.op in (Op.STEP, Op.RESET):
            took = time.perf_counter() - begin
            if took > self._timeout:
                report = report or Report()
                report.failures.append(_late(self._workers[worker], command, took, self._timeout))
        self._answers.append((worker, command.seq, report))

    def broadcast(self, command: Command) -> None:
        for worker in range(self.num_workers):
            self.send(worker, command)

    def receive(self, timeout: float | None, expect: int | None = None) -> list[Answer]:
        answers, self._answers = self._answers, []
        return answers

    def shutdown(self, grace: float = 0.0) -> list[int]:
        for worker in self._workers:
            worker.execute(Command(Op.CLOSE))
        self._workers = []
        return []


def _late(worker: Worker, command: Command, took: float, limit: float) -> Failure:
    plan = worker.plan
    rows = range(plan.num_envs) if command.rows is None else [r if r >= 0 else ~r for r in command.rows]
    ids = tuple(plan.start + row for row in rows)
    text = f"took {took:.3f} s where {limit:.3f} s are allowed (the serial backend can only tell afterwards)"
    return Failure(ids, command.op.name.lower(), text, worker=plan.index, step=worker.steps, kind="late")
