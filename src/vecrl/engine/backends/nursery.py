"""The caller's end of the zygotes: one for each number of threads that workers may use."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from typing import Any

from . import zygote


class Nursery:
    """One zygote, seen from its owner."""

    _all: dict[int, Nursery] = {}
    _lock = threading.Lock()

    def __init__(self, threads: int):
        ours, theirs = socket.socketpair()
        path = [entry for entry in sys.path if type(entry) is str]
        code = f"import sys; sys.path[:] = {path!r}; from {zygote.__name__} import main; main({theirs.fileno()})"
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
    def of(cls, threads: int) -> Nursery:
        """The living zygote of this process for so many threads."""
        with cls._lock:
            found = cls._all.get(threads)
            if found is not None and found.process.poll() is not None:
                found.control.close()
                found = None
            if found is None:
                found = cls._all[threads] = cls(threads)
            return found

    def start(self, request: dict[str, Any], shared: int) -> tuple[int, int, int]:
        """A new worker.

        Args:
            request: what the zygote should import first, and whether it may fork.
            shared: a descriptor that the worker is to have too.

        Returns:
            The caller's descriptors: to write commands to, to read answers from, and to read the worker's process id
            and exit status from.
        """
        theirs: list[int] = []
        ours: list[int] = []
        body = pickle.dumps(request)
        message = zygote.LENGTH.pack(len(body)) + body
        try:
            for keep in (1, 0, 0):  # commands, answers, status
                ends = os.pipe()
                ours.append(ends[keep])
                theirs.append(ends[1 - keep])
            commands, answers, status = theirs
            with self._lock:
                sent = socket.send_fds(self.control, [message], [commands, answers, shared, status])
                if sent < len(message):
                    self.control.sendall(message[sent:])
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return ours[0], ours[1], ours[2]

    @classmethod
    def end_all(cls) -> None:
        """End the zygotes of this process, and with them every worker that is left."""
        for found in cls._all.values():
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


weakref.finalize(Nursery, Nursery.end_all)  # at exit, after the finalizers of pools, which are younger
os.register_at_fork(after_in_child=Nursery.leave_all)
