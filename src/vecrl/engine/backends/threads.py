"""Runs workers in threads of the caller's process, for simulators that release the global interpreter lock."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Sequence

from ..batch_buffers import BatchBuffers
from ..space_layout import Layout
from ..worker import Command, Op, Worker, WorkerReply, WorkerSpec, describe_failure
from .base import Reply
from .worker_options import WorkerOptions


class ThreadBackend:
    """A `Backend` with one thread per worker. A thread cannot be killed; `shutdown` returns those that do not end."""

    def __init__(self, worker_specs: Sequence[WorkerSpec], options: WorkerOptions):
        self.num_workers = len(worker_specs)
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._inboxes: list[queue.SimpleQueue[Command]] = [queue.SimpleQueue() for _ in worker_specs]
        self._threads = [
            threading.Thread(
                target=_serve, args=(Worker(worker_spec), inbox, self._replies), name=f"vecrl-{i}", daemon=True
            )
            for i, (worker_spec, inbox) in enumerate(zip(worker_specs, self._inboxes, strict=True))
        ]
        for thread in self._threads:
            thread.start()
        self.broadcast(Command(Op.CONSTRUCT))

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> BatchBuffers:
        buffers = BatchBuffers(obs, action, num_envs, slots)
        self.broadcast(Command(Op.ATTACH, extra=(buffers, obs, action)))
        return buffers

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        for worker, command in commands:
            self._inboxes[worker].put(command)

    def broadcast(self, command: Command) -> None:
        for inbox in self._inboxes:
            inbox.put(command)

    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> list[Reply]:
        replies: list[Reply] = []
        try:
            replies.append(self._replies.get(timeout=timeout))
            while True:
                replies.append(self._replies.get_nowait())
        except queue.Empty:
            return replies

    def timed_out(self, overdue: set[int]) -> set[int]:
        return overdue

    def kill(self, worker: int) -> bool:
        return False

    def respawn(self, worker: int) -> None:
        raise NotImplementedError("A thread cannot crash, so it cannot be restarted.")

    reattach = respawn

    def shutdown(self, grace: float = 0.0) -> list[int]:
        if any(thread.is_alive() for thread in self._threads):
            self.broadcast(Command(Op.CLOSE))
        deadline = time.monotonic() + grace
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [i for i, thread in enumerate(self._threads) if thread.is_alive()]


def _serve(worker: Worker, inbox: queue.SimpleQueue[Command], replies: queue.SimpleQueue[Reply]) -> None:
    while True:
        command = inbox.get()
        try:
            reply = worker.execute(command)
        except BaseException as error:  # without a reply the caller would wait forever
            ids = tuple(range(worker.worker_spec.start, worker.worker_spec.start + worker.worker_spec.num_envs))
            failure = describe_failure(ids, command.op.name.lower(), error, worker.worker_spec.index, worker.num_steps)
            reply = WorkerReply(failures=[failure])
        replies.put((worker.worker_spec.index, command.seq, reply))
        if command.op == Op.CLOSE:
            return
