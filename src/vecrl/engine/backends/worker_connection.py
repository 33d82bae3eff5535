"""The caller's side of one worker process: what is sent, what comes back, and how it ends.

What travels is a stream, so no part of it may be lost or sent twice as Ctrl-C comes. Python lets that come between a
system call and the statement that stores its result, but not within `map`, by which long answers and commands go.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque

from ..worker import Op, WorkerReply
from . import forkserver
from .base import Reply
from .protocol import REPLY, ReplyCodec, unreadable_report

_CHUNK = (1 << 16,)  # bytes read at once: what a pipe holds
_WHOLE = select.PIPE_BUF  # bytes that a pipe takes all of, or none


class WorkerConnection:
    """The caller's ends of one worker process.

    Attributes:
        index, ids: the worker's number and its environments.
        commands: descriptor to write commands to.
        answers: descriptor to read answers from.
        status: descriptor on which the zygote tells the process id, and how the process ended.
        pid: the process id; 0 before it is known, -1 where it never will be.
        exited: how the process ended, in words; "" while it runs.
        steps: how many it was asked for.
    """

    def __init__(self, index: int, ids: tuple[int, ...], commands: int, replies: int, status: int):
        self.index = index
        self.ids = ids
        self.commands_fd = commands
        self.replies_fd = replies
        self.status_fd = status
        self.pid = 0
        self.exited = ""
        self.steps = 0
        self._op = 0
        self._outbox: deque[tuple[memoryview, list[int]]] = deque()  # what to send, and how much was sent at a time
        self._source = (replies,)
        self._chunks: list[bytes] = []  # what was read, and then what of it is no whole answer
        self._inbox = bytearray()
        self._reports = ReplyCodec()
        os.set_blocking(commands, False)
        os.set_blocking(replies, False)
        self._poll = select.poll()
        self._poll.register(replies, select.POLLIN)
        self._poll.register(status, select.POLLIN)

    @property
    def op_name(self) -> str:
        """What the worker was last asked for."""
        return Op(self._op).name.lower()

    def send(self, data: bytes) -> bool:
        """Send, or keep what does not go through yet; whether something is kept."""
        self._op = data[0]
        self.steps += self._op == Op.STEP
        if not self._outbox and len(data) <= _WHOLE:
            try:
                os.write(self.commands_fd, data)
                return False
            except BlockingIOError:
                pass
            except OSError:  # the worker is gone: its status tells
                return False
        self._outbox.append((memoryview(data), []))
        return self.flush()

    @property
    def kept(self) -> bool:
        """Whether something has yet to be sent."""
        return bool(self._outbox)

    def flush(self) -> bool:
        """Send what was kept; whether something still is."""
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
        """Take what has come; whether the worker's end is still open."""
        chunks = self._chunks
        try:
            chunks.extend(map(os.read, self._source, _CHUNK))
        except BlockingIOError:
            return True
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

    def poll_once(self, milliseconds: float, replies: list[Reply]) -> bool:
        """Take what comes within a moment; whether an answer did."""
        for fd, _ in self._poll.poll(milliseconds):
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
            body = bytes(inbox[REPLY.size : stop])
            del inbox[:stop]
            replies.append((self.index, seq, self._decode(body) if size else None))

    def _decode(self, body: bytes) -> WorkerReply:
        try:
            return self._reports.decode(body)
        except Exception as error:
            return unreadable_report(error, self.ids, Op(self._op), self.index, self.steps, self.pid)

    @property
    def started(self) -> bool:
        """Whether the zygote has said which process it started."""
        if self.pid == 0 and self.is_readable(self.status_fd):
            self.wait_for_pid()
        return self.pid > 0

    def is_readable(self, fd: int) -> bool:
        """Whether `status` or `answers` can be read at once."""
        poll = select.poll()  # of its own: another may wait, where a signal's handler closes this
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    def wait_for_pid(self) -> None:
        """Wait for the zygote to say which process it started; -1 where it is gone before."""
        if self.pid:
            return
        data = os.read(self.status_fd, forkserver.NUMBER.size)
        self.pid = forkserver.NUMBER.unpack(data)[0] if data else -1

    def kill(self, signal_number: int) -> None:
        """Send a signal to the worker's process group."""
        if self.pid > 0:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal_number)

    def close(self) -> None:
        """Let go of the worker."""
        for fd in (self.commands_fd, self.replies_fd, self.status_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
