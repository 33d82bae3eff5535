"""Workers in processes of their own: one socket each for commands and answers, rows in shared memory.

The caller waits on the sockets and on the workers' ends together, so a worker that dies is noticed as soon as one
that answers. Nothing spins, and nothing survives the caller.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import pickletools
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import cloudpickle
import gymnasium

from ...errors import Failure, ShipError
from ..arena import Arena, anonymous_file
from ..layout import Layout
from ..worker import Command, Op, Plan, Report, describe_failure
from . import zygote
from .base import Answer
from .child import Home, Order
from .wire import ANSWER, decode_report, encode_command

StartMethod = Literal["forkserver", "spawn"]
_CHUNK = 1 << 18  # bytes read at once
_SOON = 0.02  # seconds: so long a read may wait for one worker before all are watched


class Processes:
    """See `Backend`.

    Args:
        plans: one a worker; their factories are pickled by value where they must be.
        start_method: "forkserver" forks a clean process that has the factories' modules imported; "spawn" starts a
            new interpreter a worker, for what must not be imported before a fork (CUDA).
        threads: how many threads numerical libraries may use in a worker.
        preload: further modules to import before workers are forked.

    Raises:
        ShipError: where a plan cannot be pickled.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        start_method: StartMethod = "forkserver",
        threads: int = 1,
        preload: Sequence[str] = (),
    ):
        if start_method not in ("forkserver", "spawn"):
            raise ValueError(f"Expected start_method to be 'forkserver' or 'spawn', but {start_method!r} came.")
        payloads = [_pickle_plan(plan) for plan in plans]
        modules = sorted(set(preload).union(*map(modules_in, payloads))) if start_method == "forkserver" else []
        self.num_workers = len(plans)
        self._poll = select.poll()
        self._links: list[_Link] = []
        self._by_fd: dict[int, _Link] = {}
        self._owner = os.getpid()
        home = Home.here(zygote.thread_environment(threads))
        request = {"fork": start_method == "forkserver", "preload": modules, "path": home.path}
        try:
            for plan in plans:
                ids = tuple(range(plan.start, plan.start + plan.num_envs))
                link = _Link(plan.index, ids, *_Zygote.of(threads).start(request))
                self._links.append(link)
                for fd in (link.channel, link.status):
                    self._by_fd[fd] = link
                    self._poll.register(fd, select.POLLIN)
            orders = [Order(home, link.index, link.ids, p) for link, p in zip(self._links, payloads, strict=True)]
            self.send([(order.index, Command(Op.CONSTRUCT, extra=order)) for order in orders])
        except BaseException:  # no more descriptors, or Ctrl-C
            self.shutdown()
            raise

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> Arena:
        fd = anonymous_file(Arena.size(obs, action, num_envs, slots))
        try:
            arena = Arena(obs, action, num_envs, slots, fd)
            attach = Command(Op.ATTACH, extra=(obs.space, action.space, num_envs, slots))
            self.broadcast(attach)
            for link in self._links:
                with contextlib.suppress(OSError):
                    socket.send_fds(link.socket, [b"a"], [fd])
        finally:
            os.close(fd)
        for link in self._links:
            if link.pid == 0:
                link.learn_pid()
        return arena

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        encoded = [(self._links[worker], encode_command(command)) for worker, command in commands]
        for link, data in encoded:
            self._send(link, data)

    def broadcast(self, command: Command) -> None:
        data = encode_command(command)
        for link in self._links:
            self._send(link, data)

    def _send(self, link: _Link, data: bytes) -> None:
        if link.send(data):
            self._poll.modify(link.channel, select.POLLIN | select.POLLOUT)

    def receive(self, timeout: float | None, expect: int | None = None) -> list[Answer]:
        answers: list[Answer] = []
        if expect is not None and (timeout is None or timeout > _SOON) and self._links[expect].read_soon(answers):
            return answers
        end = None if timeout is None else time.monotonic() + timeout
        while not answers:
            wait = None if end is None else max(0.0, end - time.monotonic()) * 1000
            ready = self._poll.poll(wait)
            if not ready:
                break
            gone: list[_Link] = []
            for fd, event in ready:
                link = self._by_fd[fd]
                if fd == link.status:
                    gone.append(link)
                    continue
                if event & select.POLLOUT and not link.flush():
                    self._poll.modify(fd, select.POLLIN)
                if event & ~select.POLLOUT and not link.read(answers):
                    self._poll.unregister(fd)  # its end is told by the status
            for link in gone:
                self._hear_status(link, answers)
        return answers

    def _hear_status(self, link: _Link, answers: list[Answer]) -> None:
        """Read the process id when the worker begins, its exit status when it ends."""
        if link.pid == 0:
            link.learn_pid()
            return
        data = os.read(link.status, zygote.NUMBER.size)
        link.ended = True
        self._poll.unregister(link.status)
        with contextlib.suppress(KeyError):
            self._poll.unregister(link.channel)
        link.read(answers)
        if not link.closing:
            how = how_it_ended(zygote.NUMBER.unpack(data)[0]) if data else "vanished, and so did its parent process"
            answers.append((link.index, -1, Report(failures=[self._crash(link, how)])))

    def _crash(self, link: _Link, how: str) -> Failure:
        text = f"its worker process {how}"
        return Failure(link.ids, link.doing, text, worker=link.index, pid=link.pid, step=link.steps, kind="crashed")

    def shutdown(self, grace: float = 0.0) -> list[int]:
        if os.getpid() != self._owner:  # a fork of the owner must not end the owner's workers
            return []
        # A worker that its zygote has not come to start ends by itself, as its channel is closed.
        alive = [link for link in self._links if not link.ended and link.started]
        for link in alive:
            link.closing = True
            link.send(encode_command(Command(Op.CLOSE)))
        self._wait(alive, grace)
        for signal_number, patience in ((signal.SIGTERM, 0.2), (signal.SIGKILL, 5.0)):
            alive = [link for link in alive if not link.ended]
            for link in alive:
                link.kill(signal_number)
            self._wait(alive, patience)
        for link in self._links:
            link.close()
        self._links = []
        return [link.index for link in alive if not link.ended]

    def _wait(self, links: Sequence[_Link], seconds: float) -> None:
        end = time.monotonic() + seconds
        while any(not link.ended for link in links):
            left = end - time.monotonic()
            if left <= 0:
                return
            self._answers_until(left)

    def _answers_until(self, seconds: float) -> None:
        for fd, event in self._poll.poll(seconds * 1000):
            link = self._by_fd[fd]
            if fd == link.status:
                self._hear_status(link, [])
                continue
            if event & select.POLLOUT and not link.flush():
                self._poll.modify(fd, select.POLLIN)
            if event & ~select.POLLOUT and not link.read([]):
                self._poll.unregister(fd)


class _Link:
    """The caller's ends of one worker: a socket, and a pipe on which its zygote tells its pid and its end."""

    def __init__(self, index: int, ids: tuple[int, ...], channel: socket.socket, status: int):
        self.index = index
        self.ids = ids
        self.socket = channel
        self.channel = channel.fileno()
        self.status = status
        self.pid = 0
        self.ended = False
        self.closing = False
        self._op = 0
        self.steps = 0
        self._outbox: deque[memoryview] = deque()
        self._inbox = bytearray()
        # Reads may wait a moment; sends, and reads where something is known to have come, say so themselves.
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, int(_SOON * 1e6)))

    @property
    def doing(self) -> str:
        """What the worker was last asked for."""
        return Op(self._op).name.lower()

    def send(self, data: bytes) -> bool:
        """Send, or keep what does not go through yet; whether something is kept."""
        self._op = data[0]
        self.steps += self._op == Op.STEP
        if self._outbox:
            self._outbox.append(memoryview(data))
            return True
        try:
            sent = self.socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:  # the worker is gone: its status tells
            return False
        if sent < len(data):
            self._outbox.append(memoryview(data)[sent:])
        return bool(self._outbox)

    def flush(self) -> bool:
        """Send what was kept; whether something still is."""
        while self._outbox:
            try:
                sent = self.socket.send(self._outbox[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                self._outbox.clear()
                return False
            self._outbox[0] = self._outbox[0][sent:]
            if not self._outbox[0]:
                self._outbox.popleft()
        return False

    def read(self, answers: list[Answer]) -> bool:
        """Take what has come; whether the worker's end is still open."""
        try:
            data = self.socket.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return self._take(data, answers)

    def read_soon(self, answers: list[Answer]) -> bool:
        """Take what comes within a moment; whether an answer did."""
        try:
            self._take(self.socket.recv(_CHUNK), answers)
        except OSError:  # nothing came, or the worker is gone: both are for those who watch all
            return False
        return bool(answers)

    def _take(self, data: bytes, answers: list[Answer]) -> bool:
        if len(data) == ANSWER.size and not self._inbox:
            seq, size = ANSWER.unpack(data)
            if not size:
                answers.append((self.index, seq, None))
                return True
        self._inbox += data
        self._parse(answers)
        return bool(data)

    def _parse(self, answers: list[Answer]) -> None:
        inbox = self._inbox
        while len(inbox) >= ANSWER.size:
            seq, size = ANSWER.unpack_from(inbox)
            stop = ANSWER.size + size
            if len(inbox) < stop:
                return
            body = bytes(inbox[ANSWER.size : stop])
            del inbox[:stop]
            answers.append((self.index, seq, self._decode(body) if size else None))

    def _decode(self, body: bytes) -> Report:
        try:
            return decode_report(body)
        except Exception as error:
            shipped = ShipError(
                f"what they returned cannot be unpickled in this process: {type(error).__name__}: {error}. "
                "Return what this process can import and rebuild, or leave infos out."
            )
            shipped.__cause__ = error
            failure = describe_failure(self.ids, self.doing, shipped, self.index, self.steps)
            return Report(failures=[replace(failure, pid=self.pid)])

    @property
    def started(self) -> bool:
        """Whether the zygote has said which process it started."""
        if self.pid == 0 and select.select([self.status], [], [], 0)[0]:
            self.learn_pid()
        return self.pid > 0

    def learn_pid(self) -> None:
        """Wait for the zygote to say which process it started; -1 where it is gone before."""
        data = os.read(self.status, zygote.NUMBER.size)
        self.pid = zygote.NUMBER.unpack(data)[0] if data else -1

    def kill(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(OSError):
            os.close(self.status)


class _Zygote:
    """The caller's end of a zygote."""

    _all: dict[int, _Zygote] = {}
    _lock = threading.Lock()

    def __init__(self, threads: int):
        ours, theirs = socket.socketpair()
        path = [entry for entry in sys.path if type(entry) is str]
        code = f"import sys; sys.path[:] = {path!r}; from {zygote.__name__} import main; main({theirs.fileno()})"
        self.owner = os.getpid()
        self.control = ours
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **zygote.thread_environment(threads)},
                start_new_session=True,
            )

    @classmethod
    def of(cls, threads: int) -> _Zygote:
        """The living zygote of this process for so many threads."""
        with cls._lock:
            found = cls._all.get(threads)
            if found is not None and found.process.poll() is not None:
                found.control.close()
                found = None
            if found is None:
                found = cls._all[threads] = cls(threads)
            return found

    def start(self, request: dict[str, Any]) -> tuple[socket.socket, int]:
        """A new worker: the caller's socket to it, and the descriptor that tells its pid and its end."""
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        with theirs:
            body = pickle.dumps(request)
            message = struct.pack("<I", len(body)) + body
            try:
                with self._lock:
                    sent = socket.send_fds(self.control, [message], [theirs.fileno(), write])
                    if sent < len(message):
                        self.control.sendall(message[sent:])
            finally:
                os.close(write)
        return ours, read

    @classmethod
    def end_all(cls) -> None:
        """End the zygotes of this process, and with them every worker that is left."""
        for found in cls._all.values():
            if found.owner == os.getpid():
                found.control.close()
                try:
                    found.process.wait(2.0)
                except subprocess.TimeoutExpired:  # it is importing something: its workers end with it
                    found.process.kill()
                    found.process.wait()
        cls._all.clear()

    @classmethod
    def leave_all(cls) -> None:
        """In a fork of this process: hold nothing that would keep its zygotes from noticing its end."""
        cls._lock = threading.Lock()
        for found in cls._all.values():
            found.control.close()
            found.process.returncode = 0  # it is no child of this fork: nothing to wait for
        cls._all.clear()


atexit.register(_Zygote.end_all)
os.register_at_fork(after_in_child=_Zygote.leave_all)


def how_it_ended(status: int) -> str:
    """`waitpid`'s status in words.

    >>> how_it_ended(9)
    'was killed by SIGKILL (often: out of memory)'
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was killed by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")
    return f"exited with code {os.waitstatus_to_exitcode(status)}"


def _pickle_plan(plan: Plan) -> bytes:
    try:
        return cloudpickle.dumps(plan)
    except Exception as error:
        raise ShipError(
            f"The factory of environments {plan.start} to {plan.start + plan.num_envs - 1} cannot be pickled, so no "
            f"worker process can have it: {type(error).__name__}: {error}. Make what cannot be pickled (locks, open "
            'files, windows, …) inside the factory, or use backend="threads".'
        ) from error


def modules_in(payload: bytes) -> set[str]:
    """The modules that a pickle refers to, as far as this process has imported them; for gymnasium's ids, theirs."""
    found: set[str] = set()
    for _, text, _ in pickletools.genops(payload):
        if isinstance(text, str):
            found.update(name for name in text.split(" ")[:1] if name in sys.modules)
            spec = gymnasium.registry.get(text)
            if spec is not None and isinstance(spec.entry_point, str):
                found.add(spec.entry_point.partition(":")[0])
        elif isinstance(text, bytes) and text[:1] == b"\x80":  # a pickle in a pickle: cloudpickle nests them
            with contextlib.suppress(ValueError):
                found |= modules_in(text)
    return {name for name in found if name != "__main__" and not name.startswith("_")}
