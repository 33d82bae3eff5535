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

from . import forkserver


class ForkserverClient:
    """One zygote, seen from its owner."""

    _clients: dict[int, ForkserverClient] = {}
    _lock = threading.Lock()

    def __init__(self, threads: int):
        own_end, their_end = socket.socketpair()
        path = [entry for entry in sys.path if type(entry) is str]
        code = f"import sys; sys.path[:] = {path!r}; from {forkserver.__name__} import main; main({their_end.fileno()})"
        self.control = own_end
        with their_end:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[their_end.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **forkserver.thread_environment(threads)},
                start_new_session=True,
            )

    @classmethod
    def for_threads(cls, threads: int) -> ForkserverClient:
        """The living zygote of this process for so many threads."""
        with cls._lock:
            client = cls._clients.get(threads)
            if client is not None and client.process.poll() is not None:
                client.control.close()
                client = None
            if client is None:
                client = cls._clients[threads] = cls(threads)
            return client

    def start(self, request: dict[str, Any], shared: int) -> tuple[int, int, int]:
        """A new worker.

        Args:
            request: what the zygote should import first, and whether it may fork.
            shared: a descriptor that the worker is to have too.

        Returns:
            The caller's descriptors: to write commands to, to read answers from, and to read the worker's process id
            and exit status from.
        """
        worker_fds: list[int] = []
        own_fds: list[int] = []
        body = pickle.dumps(request)
        message = forkserver.LENGTH.pack(len(body)) + body
        try:
            for own_index in (1, 0, 0):  # commands, answers, status
                ends = os.pipe()
                own_fds.append(ends[own_index])
                worker_fds.append(ends[1 - own_index])
            commands, replies, status = worker_fds
            with self._lock:
                sent = socket.send_fds(self.control, [message], [commands, replies, shared, status])
                if sent < len(message):
                    self.control.sendall(message[sent:])
        except BaseException:
            for fd in own_fds:
                os.close(fd)
            raise
        finally:
            for fd in worker_fds:
                os.close(fd)
        return own_fds[0], own_fds[1], own_fds[2]

    @classmethod
    def shut_down_all(cls) -> None:
        """End the zygotes of this process, and with them every worker that is left."""
        for client in cls._clients.values():
            client.control.close()
            try:
                client.process.wait(2.0)
            except subprocess.TimeoutExpired:  # it is importing something: its workers end with it
                client.process.kill()
                client.process.wait()
        cls._clients.clear()

    @classmethod
    def forget_all(cls) -> None:
        """In a fork of this process: hold nothing that would keep its zygotes from noticing its end."""
        cls._lock = threading.Lock()
        for client in cls._clients.values():
            client.control.close()
            client.process.returncode = 0  # it is no child of this fork: nothing to wait for
        cls._clients.clear()


# at exit, after the finalizers of pools, which are younger
weakref.finalize(ForkserverClient, ForkserverClient.shut_down_all)
os.register_at_fork(after_in_child=ForkserverClient.forget_all)
