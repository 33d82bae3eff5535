"""Runs each worker in a process, with one pipe for commands, one for replies, and the rows in shared memory.

The caller polls the replies and the exit statuses of all workers together, so it detects a crash as fast as a reply.
All workers end with the caller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time
from collections.abc import Collection, Sequence

from ...errors import Failure, PendingError
from ...seeding import seed_for
from ..batch_buffers import BatchBuffers, anonymous_file
from ..space_layout import Layout
from ..worker import Command, Op, WorkerReply, WorkerSpec
from . import forkserver
from .base import Reply
from .preloading import check_not_importing
from .process_worker import ProcessContext
from .protocol import Spin, spin_seconds
from .worker_connection import RESUME_AFTER_MS, ForkserverClient, WorkerConnection
from .worker_options import WorkerOptions
from .worker_programs import program_for

_KILL_TIMEOUT_S = 5.0  # seconds to wait for a killed process to end, before `kill` reports that it is impossible
_SINGLE_POLL_MS = 20.0  # milliseconds to poll one worker only, which is faster, before all are polled


class ProcessBackend:
    """A `Backend` with one process per worker.

    Args:
        worker_specs: one per worker; factories of `__main__` are pickled by value.
        options: how the processes are started; it ignores `ray_options`.

    Raises:
        ValueError: processes cannot be pinned to cores on this platform.
        ModuleNotFoundError: a module in `preload` does not exist.
        SerializationError: a worker spec cannot be pickled.
        RuntimeError: a module that is imported for workers starts workers.
    """

    def __init__(self, worker_specs: Sequence[WorkerSpec], options: WorkerOptions):
        if options.pin_workers and not hasattr(os, "sched_setaffinity"):
            raise ValueError(
                "Expected a platform that can pin processes to cores, got one that cannot. Use pin_workers=False."
            )
        check_not_importing()
        self._program = program_for(worker_specs, options)
        self.num_workers = len(worker_specs)
        self._threads = threads = options.threads_per_worker
        self._poll = select.poll()
        self._connections: list[WorkerConnection] = []
        self._by_fd: dict[int, WorkerConnection] = {}
        self._awaiting: set[WorkerConnection] = set()  # those of which the fork server must report the start or the end
        self._sending: set[WorkerConnection] = set()  # those with a full pipe, and more to send
        self._owner = os.getpid()
        seconds = spin_seconds(options.wait, self.num_workers)
        self._spin = Spin(seconds)
        context = ProcessContext.of_this_process(forkserver.thread_environment(threads), seconds)
        self._buffered_replies: list[Reply] = []  # received while `kill` waited for the end of a worker
        self._memory = -1  # descriptor of the shared memory, kept open for restarted workers
        self._request = {**self._program.request, "path": context.path}
        self._construct_commands: list[Command] = []
        for worker_spec in worker_specs:
            worker_context = (
                dataclasses.replace(context, cores=_cores(worker_spec.index, threads))
                if options.pin_workers
                else context
            )
            construct_payload = self._program.construct_payload(worker_spec, worker_context)
            self._construct_commands.append(Command(Op.CONSTRUCT, extra=construct_payload))
        try:
            self._memory = anonymous_file()
            for worker_spec in worker_specs:
                self._connections.append(self._start(worker_spec.index, worker_spec.ids))
                self._watch_new(self._connections[-1])
            self.send(list(enumerate(self._construct_commands)))
        except BaseException:  # no more descriptors, or Ctrl-C
            self.shutdown()
            raise

    def _start(self, index: int, ids: tuple[int, ...]) -> WorkerConnection:
        """Starts a worker process, which waits for `Op.CONSTRUCT`."""
        server = ForkserverClient.for_threads(self._threads)
        return WorkerConnection(index, ids, server, server.start(self._request, self._memory), self._spin)

    def _watch_new(self, connection: WorkerConnection) -> None:
        self._await_server(connection)
        self._watch_connection(connection)

    def _watch_connection(self, connection: WorkerConnection) -> None:
        for fd in () if connection.exited else (connection.replies_fd, connection.status_fd):
            self._by_fd[fd] = connection
            self._poll.register(fd, select.POLLIN)
        if connection.has_unsent:
            self._poll.register(connection.commands_fd, select.POLLOUT)

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> BatchBuffers:
        os.ftruncate(self._memory, BatchBuffers.size(obs, action, num_envs, slots))
        buffers = BatchBuffers(obs, action, num_envs, slots, self._memory)
        self._attach = Command(Op.ATTACH, extra=self._program.attach_extra(buffers, obs, action))
        self.broadcast(self._attach)
        for connection in self._connections:
            connection.wait_for_pid()
        return buffers

    def timed_out(self, overdue: set[int]) -> set[int]:
        return overdue

    def kill(self, worker: int) -> bool:
        connection = self._connections[worker]
        if not connection.exited:
            self._watch_connection(connection)  # Ctrl-C may have come before, in `respawn`
            connection.wait_for_pid()
            connection.kill(signal.SIGKILL)
            self._wait([connection], _KILL_TIMEOUT_S, self._buffered_replies)
        self._drop_buffered_replies(worker)
        return bool(connection.exited)

    def _drop_buffered_replies(self, worker: int) -> None:
        self._buffered_replies = [reply for reply in self._buffered_replies if reply[0] != worker]

    def respawn(self, worker: int) -> None:
        # Ctrl-C may come between any two statements: the list always has a usable connection, and one that is lost
        # closes itself. What was not dropped is dropped with the next one.
        previous = self._connections[worker]
        self._connections[worker] = self._start(worker, previous.ids)
        self._watch_new(self._connections[worker])
        for fd, connection in list(self._by_fd.items()):
            if self._connections[connection.index] is not connection:
                self._unwatch(fd)
                del self._by_fd[fd]
        self._sending.discard(previous)
        previous.close()
        construct_payload = self._construct_commands[worker].extra
        # otherwise the new worker would repeat the random numbers of the previous one
        construct_payload.seed = seed_for(construct_payload.seed, worker)
        self._drop_buffered_replies(worker)
        self.send([(worker, self._construct_commands[worker])])

    def reattach(self, worker: int) -> None:
        self._connections[worker].wait_for_pid()
        self.send([(worker, self._attach)])

    def _close_memory(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        encoded = [(self._connections[worker], self._program.encode(command)) for worker, command in commands]
        for connection, data in encoded:
            self._send(connection, data)
            if connection.exited:  # Ctrl-C may have lost the reply that reported the crash
                self._buffered_replies.append(self._crash(connection))

    def broadcast(self, command: Command) -> None:
        data = self._program.encode(command)
        for connection in self._connections:
            self._send(connection, data)

    def _send(self, connection: WorkerConnection, data: bytes) -> None:
        if connection.send(data):
            self._sending.add(connection)
            self._by_fd[connection.commands_fd] = connection
            self._poll.register(connection.commands_fd, select.POLLOUT)

    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> list[Reply]:
        replies, self._buffered_replies = self._buffered_replies, []
        if replies:
            return replies
        try:
            return self._receive(timeout, awaited, replies)
        except RuntimeError as error:  # `poll` raises it if two threads use it at once
            raise PendingError("Expected one thread to wait for these workers, got a second. Use a lock.") from error

    def _receive(self, timeout: float | None, awaited: Collection[int], replies: list[Reply]) -> list[Reply]:
        limit = None if timeout is None else timeout * 1000
        deadline = None if timeout is None else time.monotonic() + timeout
        if (
            awaited
            and not self._sending  # their pipes must be watched, too
            and (limit is None or limit > _SINGLE_POLL_MS)
            and self._connections[max(awaited)].wait_for_reply(_SINGLE_POLL_MS, replies)
        ):
            if len(self._connections) > 3:  # most of the others have replied by then, so one poll of all is cheaper
                self._watch(0.0, replies)
            return replies
        while not replies and self._connections:
            limit = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not self._watch(limit, replies) and deadline is not None and time.monotonic() >= deadline:
                break
        return replies

    def _watch(self, milliseconds: float | None, replies: list[Reply]) -> bool:
        """Polls all workers once and handles what is ready. Returns whether anything was."""
        ready = self._poll_all(milliseconds)
        exited: list[WorkerConnection] = []
        for fd, _ in ready:
            connection = self._by_fd.get(fd)
            if connection is None:  # of a worker that was lost in Ctrl-C, or closed by a signal handler meanwhile
                self._unwatch(fd)
                continue
            if fd == connection.status_fd:
                exited.append(connection)
            elif fd == connection.commands_fd:
                if not connection.flush():
                    self._sending.discard(connection)
                    self._poll.unregister(fd)
            elif not connection.read(replies):
                self._poll.unregister(fd)  # the status descriptor reports its exit
                self._await_server(connection)
        for connection in exited:
            self._read_status(connection, replies)
        return bool(ready)

    def _poll_all(self, milliseconds: float | None) -> list[tuple[int, int]]:
        if not self._awaiting:
            return self._poll.poll(milliseconds)
        ready = self._poll.poll(RESUME_AFTER_MS if milliseconds is None else min(milliseconds, RESUME_AFTER_MS))
        if not ready and time.monotonic() >= self._resume_at:
            for connection in self._awaiting:
                connection.server.resume()
            self._resume_at += RESUME_AFTER_MS / 1000
        return ready

    def _unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it is not watched, or closed
            self._poll.unregister(fd)

    def _await_server(self, connection: WorkerConnection) -> None:
        self._awaiting.add(connection)
        self._resume_at = time.monotonic() + RESUME_AFTER_MS / 1000

    def _read_status(self, connection: WorkerConnection, replies: list[Reply]) -> None:
        """Reads the process id, if that is not known yet, or else the exit status, and handles the exit."""
        self._awaiting.discard(connection)
        if connection.pid == 0:
            connection.wait_for_pid()
            return
        data = os.read(connection.status_fd, forkserver.NUMBER.size)
        if data:
            description = describe_exit(forkserver.NUMBER.unpack(data)[0])
        elif connection.pid == -1:
            description = "could not be started: its parent process has ended, or may start no more (see its output)"
        else:
            description = "ended, and so did its parent process"
        connection.exited = connection.exited or description  # keep the first one if Ctrl-C interrupted this before
        while connection.read(replies) and connection.is_readable(connection.replies_fd):  # its last replies
            pass
        for fd in (connection.status_fd, connection.replies_fd, connection.commands_fd):
            self._unwatch(fd)
        self._sending.discard(connection)
        replies.append(self._crash(connection))

    def _crash(self, connection: WorkerConnection) -> Reply:
        text = f"its worker process {connection.exited}"
        failure = Failure(
            connection.ids,
            connection.op_name,
            text,
            "",
            connection.index,
            connection.pid,
            connection.steps,
            kind="crashed",
        )
        return connection.index, -1, WorkerReply(failures=[failure])

    def shutdown(self, grace: float = 0.0) -> list[int]:
        if os.getpid() != self._owner:  # a fork of the owner must not end the owner's workers
            return []
        self._poll = select.poll()  # the previous one may be in use, in a blocked thread or below a signal handler
        for connection in self._connections:
            self._watch_connection(connection)
        # A worker that the fork server has not started yet will end by itself, as its pipes are closed.
        alive = [connection for connection in self._connections if not connection.exited and connection.started]
        for connection in alive:
            self._send(connection, self._program.encode(Command(Op.CLOSE)))
        self._wait(alive, grace)
        for signal_number, seconds in ((signal.SIGTERM, 0.2), (signal.SIGKILL, _KILL_TIMEOUT_S)):
            alive = [connection for connection in alive if not connection.exited]
            for connection in alive:
                connection.kill(signal_number)
            self._wait(alive, seconds)
        for connection in self._connections:
            connection.close()
        self._connections = []
        self._by_fd.clear()
        self._close_memory()
        return [connection.index for connection in alive if not connection.exited]

    def _wait(
        self, connections: Sequence[WorkerConnection], seconds: float, replies: list[Reply] | None = None
    ) -> None:
        """Waits for workers to end. Replies of other workers go into `replies`."""
        replies = [] if replies is None else replies
        deadline = time.monotonic() + seconds
        while any(not connection.exited for connection in connections):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            self._watch(remaining * 1000, replies)


def _cores(index: int, count: int) -> set[int]:
    """Returns `count` cores for worker `index`, among those that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[i % len(cores)] for i in range(index * count, (index + 1) * count)}


def describe_exit(status: int) -> str:
    """Describes a status that `waitpid` returned.

    >>> describe_exit(9)
    'was killed by SIGKILL (often: out of memory)'
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was killed by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
