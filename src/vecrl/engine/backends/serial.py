"""Workers in the caller's own thread: a command is carried out when its answer is waited for.

So it can be interrupted, timed out and taken up again like any other backend's, and nothing is left half asked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence

from ..arena import Arena
from ..layout import Layout
from ..worker import Command, Op, Plan, Report, Worker, describe_failure
from .base import Answer


class Serial:
    """See `Backend`. A command that took longer than `receive` may is answered by the next `receive`, since nobody
    is there to notice before it has ended."""

    in_turn = True

    def __init__(self, plans: Sequence[Plan]):
        self.num_workers = len(plans)
        self._plans = plans
        self._workers = [Worker(plan) for plan in plans]
        self._asked: deque[tuple[int, Command]] = deque()
        self._late: list[Answer] = []
        self.broadcast(Command(Op.CONSTRUCT))

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> Arena:
        arena = Arena(obs, action, num_envs, slots)
        self._attach = Command(Op.ATTACH, extra=(arena, obs, action))
        self.broadcast(self._attach)
        return arena

    def stuck(self, waiting: set[int]) -> set[int]:
        return waiting.intersection(worker for worker, _, _ in self._late)

    def end(self, worker: int) -> bool:
        self._asked = deque(pair for pair in self._asked if pair[0] != worker)
        self._late = [answer for answer in self._late if answer[0] != worker]
        self._workers[worker].execute(Command(Op.CLOSE))
        return True

    def replace(self, worker: int) -> None:
        self._workers[worker] = Worker(self._plans[worker])
        self.send([(worker, Command(Op.CONSTRUCT))])

    def rejoin(self, worker: int) -> None:
        self.send([(worker, self._attach)])

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        self._asked.extend(commands)

    def broadcast(self, command: Command) -> None:
        self._asked.extend((worker, command) for worker in range(self.num_workers))

    def receive(self, timeout: float | None, expect: Collection[int] = ()) -> list[Answer]:
        answers, self._late = self._late, []
        if answers or not self._asked:
            return answers
        begin = 0.0 if timeout is None else time.monotonic()
        worker, command = self._asked.popleft()
        try:
            report = self._workers[worker].execute(command)
        except BaseException as error:  # Ctrl-C: it is the caller's, but the command has ended all the same
            self._late = [(worker, command.seq, _interrupted(self._workers[worker], command, error))]
            raise
        answers = [(worker, command.seq, report)]
        if timeout is None or time.monotonic() - begin <= timeout:
            return answers
        self._late = answers
        return []

    def shutdown(self, grace: float = 0.0) -> list[int]:
        self._asked.clear()
        for worker in self._workers:
            worker.execute(Command(Op.CLOSE))
        self._workers = []
        return []


def _interrupted(worker: Worker, command: Command, error: BaseException) -> Report:
    plan = worker.plan
    rows = range(plan.num_envs) if command.rows is None else [r if r >= 0 else ~r for r in command.rows]
    ids = tuple(plan.start + row for row in rows)
    return Report(failures=[describe_failure(ids, command.op.name.lower(), error, plan.index, worker.steps)])
