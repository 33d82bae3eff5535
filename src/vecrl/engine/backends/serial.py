"""Runs workers in the caller's thread. A command is executed when its reply is waited for.

So commands can be pending, time out and be interrupted as on any other backend.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from itertools import repeat

from ..batch_buffers import BatchBuffers
from ..space_layout import Layout
from ..worker import Command, Op, Worker, WorkerReply, WorkerSpec, describe_failure
from .base import Reply
from .worker_options import WorkerOptions


class SerialBackend:
    """A `Backend` in the caller's thread.

    `receive` cannot interrupt a command. If one takes longer than the timeout, the next `receive` returns its reply.
    """

    def __init__(self, worker_specs: Sequence[WorkerSpec], options: WorkerOptions):
        self.num_workers = len(worker_specs)
        self._worker_specs = worker_specs
        self.workers = [Worker(worker_spec) for worker_spec in worker_specs]
        self._queue: deque[tuple[int, Command]] = deque()
        self._late_replies: list[Reply] = []
        self.broadcast(Command(Op.CONSTRUCT))

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> BatchBuffers:
        buffers = BatchBuffers(obs, action, num_envs, slots)
        self._attach_command = Command(Op.ATTACH, extra=(buffers, obs, action))
        self.broadcast(self._attach_command)
        return buffers

    def timed_out(self, overdue: set[int]) -> set[int]:
        return overdue.intersection(worker for worker, _, _ in self._late_replies)

    def kill(self, worker: int) -> bool:
        self._queue = deque(pair for pair in self._queue if pair[0] != worker)
        self._late_replies = [reply for reply in self._late_replies if reply[0] != worker]
        self.workers[worker].execute(Command(Op.CLOSE))
        return True

    def respawn(self, worker: int) -> None:
        self.workers[worker] = Worker(self._worker_specs[worker])
        self.send([(worker, Command(Op.CONSTRUCT))])

    def reattach(self, worker: int) -> None:
        self.send([(worker, self._attach_command)])

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        self._queue.extend(commands)

    def broadcast(self, command: Command) -> None:
        self._queue.extend(zip(range(self.num_workers), repeat(command)))

    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> list[Reply]:
        replies, self._late_replies = self._late_replies, []
        if replies or not self._queue:
            return replies
        started = 0.0 if timeout is None else time.monotonic()
        worker, command = self._queue.popleft()
        try:
            reply = self.workers[worker].execute(command)
        except BaseException as error:  # Ctrl-C: raise it, but the command has ended, so the next call gets a reply
            self._late_replies = [(worker, command.seq, _interrupt_reply(self.workers[worker], command, error))]
            raise
        replies = [(worker, command.seq, reply)]
        if timeout is None or time.monotonic() - started <= timeout:
            return replies
        self._late_replies = replies
        return []

    def shutdown(self, grace: float = 0.0) -> list[int]:
        self._queue.clear()
        for worker in self.workers:
            worker.execute(Command(Op.CLOSE))
        self.workers = []
        return []


def _interrupt_reply(worker: Worker, command: Command, error: BaseException) -> WorkerReply:
    worker_spec = worker.worker_spec
    rows = range(worker_spec.num_envs) if command.rows is None else [r if r >= 0 else ~r for r in command.rows]
    ids = tuple(worker_spec.start + row for row in rows)
    return WorkerReply(
        failures=[describe_failure(ids, command.op.name.lower(), error, worker_spec.index, worker.num_steps)]
    )
