"""Workers in threads of the caller's process: for simulators that release the interpreter's lock."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Sequence

from ..arena import Arena
from ..layout import Layout
from ..worker import Command, Op, Plan, Report, Worker, describe_failure
from .base import Answer


class Threads:
    """See `Backend`. A thread that is stuck cannot be ended; `shutdown` names it."""

    in_turn = False

    def __init__(self, plans: Sequence[Plan]):
        self.num_workers = len(plans)
        self._done: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._inboxes: list[queue.SimpleQueue[Command]] = [queue.SimpleQueue() for _ in plans]
        self._threads = [
            threading.Thread(target=_serve, args=(Worker(plan), inbox, self._done), name=f"vecrl-{i}", daemon=True)
            for i, (plan, inbox) in enumerate(zip(plans, self._inboxes, strict=True))
        ]
        for thread in self._threads:
            thread.start()
        self.broadcast(Command(Op.CONSTRUCT))

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> Arena:
        arena = Arena(obs, action, num_envs, slots)
        self.broadcast(Command(Op.ATTACH, extra=(arena, obs, action)))
        return arena

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        for worker, command in commands:
            self._inboxes[worker].put(command)

    def broadcast(self, command: Command) -> None:
        for inbox in self._inboxes:
            inbox.put(command)

    def receive(self, timeout: float | None, expect: Collection[int] = ()) -> list[Answer]:
        answers: list[Answer] = []
        try:
            answers.append(self._done.get(timeout=timeout))
            while True:
                answers.append(self._done.get_nowait())
        except queue.Empty:
            return answers

    def stuck(self, waiting: set[int]) -> set[int]:
        return waiting

    def end(self, worker: int) -> bool:
        return False

    def replace(self, worker: int) -> None:
        raise NotImplementedError("A thread never goes, so none takes its place.")

    rejoin = replace

    def shutdown(self, grace: float = 0.0) -> list[int]:
        if any(thread.is_alive() for thread in self._threads):
            self.broadcast(Command(Op.CLOSE))
        end = time.monotonic() + grace
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return [i for i, thread in enumerate(self._threads) if thread.is_alive()]


def _serve(worker: Worker, inbox: queue.SimpleQueue[Command], done: queue.SimpleQueue[Answer]) -> None:
    while True:
        command = inbox.get()
        try:
            report = worker.execute(command)
        except BaseException as error:  # a thread has nobody above it to raise to
            ids = tuple(range(worker.plan.start, worker.plan.start + worker.plan.num_envs))
            failure = describe_failure(ids, command.op.name.lower(), error, worker.plan.index, worker.steps)
            report = Report(failures=[failure])
        done.put((worker.plan.index, command.seq, report))
        if command.op == Op.CLOSE:
            return
