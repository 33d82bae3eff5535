"""The caller's side of a worker process: requests it from a fork server, sends commands, reads replies and its exit.

Commands and replies are byte streams, so no byte may be lost or sent twice on Ctrl-C. Python can raise
KeyboardInterrupt between a system call and the statement that stores its result, but not within `map`. Therefore long
commands and replies are written and read through `map`, and descriptors are opened and closed through it: they always
have exactly one owner, which closes them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import chain, starmap
from operator import countOf
from typing import Any

from ..worker import Op, WorkerReply
from . import forkserver
from .base import Reply
from .protocol import REPLY, ReplyCodec, Spin, unreadable_reply


class Descriptors:
    """Descriptors with one owner, which are closed when it is deleted.

    Python discards a KeyboardInterrupt that comes within `__del__`, and what follows there is not done. So a weak
    reference closes them, by a call in which no code of Python runs.

    Attributes:
        fds: those that are open.
    """

    _references: set[weakref.ref[Descriptors]] = set()

    def __init__(self, fds: Iterable[int] = ()):
        self.fds = [*fds]
        close_all = partial(countOf, map(os.close, self.fds))  # which ignores its argument, the reference
        lost = [reference for reference in self._references if reference() is None]
        self._references.difference_update(lost)
        self._references.add(weakref.ref(self, close_all))

    def close_at(self, *positions: int) -> None:
        """Closes and removes the descriptors at these positions, in descending order."""
        deque(map(os.close, map(self.fds.pop, positions)), 0)  # in one call, so that Ctrl-C cannot come in between

    def close(self) -> None:
        """Closes all."""
        with contextlib.suppress(OSError):
            self.close_at(*range(len(self.fds) - 1, -1, -1))


class ForkserverClient:
    """Starts one fork server and requests workers from it.

    Args:
        threads: the number of threads of numerical libraries in its workers.
    """

    _clients: dict[int, ForkserverClient] = {}
    _lock = threading.Lock()

    def __init__(self, threads: int):
        self.control, server_end = socket.socketpair()
        path = [entry for entry in sys.path if type(entry) is str]
        code = (  # if this process ends before the other serves, the kernel kills it
            "import ctypes, os, sys; sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9); "
            f"os.getppid() == {os.getpid()} or os._exit(1); "
            f"sys.path[:] = {path!r}; from {forkserver.__name__} import main; main({server_end.fileno()})"
        )
        with server_end:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[server_end.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **forkserver.thread_environment(threads)},
                start_new_session=True,
            )

    @classmethod
    def for_threads(cls, threads: int) -> ForkserverClient:
        """Returns this process's fork server for this number of threads. Starts one if none is running."""
        with cls._lock:
            client = cls._clients.get(threads)
            if client is not None and client.process.poll() is not None:
                client.control.close()
                client = None
            if client is None:
                client = cls._clients[threads] = cls(threads)
            return client

    def resume(self) -> None:
        """Continues the fork servers, if something has stopped them (SIGSTOP)."""
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGCONT)

    def start(self, request: dict[str, Any], shared: int) -> Descriptors:
        """Starts a worker.

        Args:
            request: the modules that the fork server imports first, and whether it may fork.
            shared: a further descriptor for the worker.

        Returns:
            The caller's descriptors: to write commands to, to read replies from, and to read the worker's process id
            and exit status from.
        """
        ends = Descriptors()  # of each pipe, the end to read from and the one to write to
        ends.fds.extend(chain.from_iterable(starmap(os.pipe, [()] * 3)))
        with self._lock:
            self.wait_for(self.control.fileno(), select.POLLOUT)
            sent = [ends.fds[0], ends.fds[3], shared, ends.fds[5]]
            forkserver.send_message(self.control, ("worker", request), sent)
        ends.close_at(5, 3, 0)  # those of the worker
        return ends

    def end_with_caller(self, pid: int) -> None:
        """Lets the fork server kill a process when the caller ends, however it ends."""
        try:
            process = os.pidfd_open(pid)
        except (OSError, AttributeError):  # it has ended, or the platform has no such descriptors
            return
        try:
            with self._lock:
                forkserver.send_message(self.control, ("process", None), [process])
        finally:
            os.close(process)

    def wait_for(self, fd: int, event: int = select.POLLIN) -> None:
        """Waits until a descriptor is ready that a fork server reads or writes."""
        poll = select.poll()  # a new one, since another may be in use below the signal handler that calls this
        poll.register(fd, event)
        while not poll.poll(RESUME_AFTER_MS):
            self.resume()

    @classmethod
    def shut_down_all(cls) -> None:
        """Ends the fork servers of this process, and with them all remaining workers."""
        for client in cls._clients.values():
            client.control.close()
            client.resume()
            try:
                client.process.wait(2.0)
            except subprocess.TimeoutExpired:  # its workers end when it is killed
                client.process.kill()
                client.process.wait()
        cls._clients.clear()

    @classmethod
    def forget_all(cls) -> None:
        """Closes the control sockets in a fork of this process. Otherwise the fork servers would not detect its end."""
        cls._lock = threading.Lock()
        for client in cls._clients.values():
            client.control.close()
            client.process.returncode = 0  # it is not a child of this fork, so waiting for it would fail
        cls._clients.clear()


# It runs at exit, after the finalizers of pools, since these are registered later.
weakref.finalize(ForkserverClient, ForkserverClient.shut_down_all)
os.register_at_fork(after_in_child=ForkserverClient.forget_all)


RESUME_AFTER_MS = 1000  # milliseconds to wait for a fork server before it is continued
_CHUNK = (1 << 16,)  # bytes to read at once: the capacity of a pipe
_ATOMIC_SIZE = select.PIPE_BUF  # a write of at most so many bytes to a pipe is atomic


class WorkerConnection:
    """The caller's descriptors of one worker process.

    Args:
        index, ids, server: see the attributes.
        ends: the descriptors for commands, replies and the status; they belong to the connection from then on.
        spin: polls for a reply before the caller sleeps.

    Attributes:
        index, ids: the index of the worker and its environments.
        server: the fork server.
        commands_fd: descriptor to write commands to.
        replies_fd: descriptor to read replies from.
        status_fd: descriptor from which to read the process id and, later, the exit status. The fork server writes
            both.
        pid: the process id; 0 before it is known, -1 if the process was never started.
        exited: a description of how the process ended; "" while it runs.
        steps: the number of step commands sent.
    """

    def __init__(
        self,
        index: int,
        ids: tuple[int, ...],
        server: ForkserverClient,
        ends: Descriptors,
        spin: Spin | None = None,
    ):
        self._ends = ends
        commands, replies, status = ends.fds
        self.index = index
        self.ids = ids
        self.server = server
        self.commands_fd = commands
        self.replies_fd = replies
        self.status_fd = status
        self.pid = 0
        self._pid_data: list[bytes] = []  # what was read of it
        self.exited = ""
        self.steps = 0
        self._spin = spin or Spin(0.0)
        self._op = 0
        self._outbox: deque[tuple[memoryview, list[int]]] = deque()  # bytes to send, and the size of each write so far
        self._source = (replies,)
        self._chunks: list[bytes] = []  # bytes that were read and are not in the inbox yet
        self._inbox = bytearray()  # bytes that are not decoded yet
        self._codec = ReplyCodec()
        os.set_blocking(commands, False)
        os.set_blocking(replies, False)
        self._poll = select.poll()
        self._poll.register(replies, select.POLLIN)
        self._poll.register(status, select.POLLIN)

    @property
    def op_name(self) -> str:
        """The operation of the last command."""
        return Op(self._op).name.lower()

    def send(self, data: bytes) -> bool:
        """Sends a command, or keeps it if the pipe is full. Returns whether unsent bytes are kept."""
        self._op = data[0]
        self.steps += self._op == Op.STEP
        if not self._outbox and len(data) <= _ATOMIC_SIZE:
            try:
                os.write(self.commands_fd, data)
                return False
            except BlockingIOError:
                pass
            except OSError:  # the worker has ended: its status reports it
                return False
        self._outbox.append((memoryview(data), []))
        return self.flush()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes are kept to be sent."""
        return bool(self._outbox)

    def flush(self) -> bool:
        """Sends kept bytes. Returns whether unsent bytes remain."""
        while self._outbox:
            data, sent = self._outbox[0]
            try:
                sent.extend(map(os.write, (self.commands_fd,), (data[sum(sent) :],)))
            except BlockingIOError:
                return True
            except OSError:
                self._outbox.clear()
                return False
            if sum(sent) == len(data):
                self._outbox.popleft()
        return False

    def read(self, replies: list[Reply]) -> bool:
        """Reads available replies into `replies`. Returns whether the worker's end of the pipe is still open."""
        chunks = self._chunks
        try:
            chunks.extend(map(os.read, self._source, _CHUNK))
        except BlockingIOError:
            return True
        except OSError:  # a signal handler has closed the pool meanwhile
            return False
        data = chunks[-1]
        if len(data) == REPLY.size and len(chunks) == 1 and not self._inbox:
            seq, size = REPLY.unpack(data)
            if not size:
                replies.append((self.index, seq, None))
                chunks.clear()
                return True
        while chunks:
            deque(map(self._inbox.extend, map(chunks.pop, (0,))), 0)
        self._parse(replies)
        return bool(data)

    def wait_for_reply(self, milliseconds: float, replies: list[Reply]) -> bool:
        """Reads replies. Returns whether there was one.

        It polls for a while, then sleeps for up to `milliseconds`.
        """
        for fd, _ in self._spin(self._poll) or self._poll.poll(milliseconds):
            if fd == self.replies_fd:
                self.read(replies)
        return bool(replies)

    def _parse(self, replies: list[Reply]) -> None:
        inbox = self._inbox
        while len(inbox) >= REPLY.size:
            seq, size = REPLY.unpack_from(inbox)
            stop = REPLY.size + size
            if len(inbox) < stop:
                return
            with memoryview(inbox) as view:
                body = bytes(view[REPLY.size : stop])
            del inbox[:stop]
            replies.append((self.index, seq, self._decode(body) if size else None))

    def _decode(self, body: bytes) -> WorkerReply:
        try:
            return self._codec.decode(body)
        except Exception as error:
            return unreadable_reply(error, self.ids, Op(self._op), self.index, self.steps, self.pid)

    @property
    def started(self) -> bool:
        """Whether the fork server has started the process."""
        if self.pid == 0 and self.is_readable(self.status_fd):
            self.wait_for_pid()
        return self.pid > 0

    def is_readable(self, fd: int) -> bool:
        """Returns whether a descriptor can be read without waiting."""
        poll = select.poll()  # a new one, since another may be in use below the signal handler that calls this
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    def wait_for_pid(self) -> None:
        """Waits for the fork server to send the process id. Sets it to -1 if the fork server has ended before."""
        if self.pid:
            return
        if not self._pid_data:
            self.server.wait_for(self.status_fd)
            self._pid_data.extend(map(os.read, (self.status_fd,), (forkserver.NUMBER.size,)))
        data = self._pid_data[0]
        self.pid = forkserver.NUMBER.unpack(data)[0] if data else -1

    def kill(self, signal_number: int) -> None:
        """Sends a signal to the worker's process group."""
        if self.pid > 0:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal_number)

    def close(self) -> None:
        """Closes all descriptors, with which the worker ends. A second call does nothing."""
        self.commands_fd = self.replies_fd = self.status_fd = -1
        self._ends.close()
