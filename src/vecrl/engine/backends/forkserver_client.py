"""The caller's side of the fork servers: one for each number of threads that workers may use."""

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
    """Starts one fork server and requests workers from it.

    Args:
        threads: the number of threads of numerical libraries in its workers.
    """

    _clients: dict[int, ForkserverClient] = {}
    _lock = threading.Lock()

    def __init__(self, threads: int):
        self.control, server_end = socket.socketpair()
        path = [entry for entry in sys.path if type(entry) is str]
        code = (
            f"import sys; sys.path[:] = {path!r}; from {forkserver.__name__} import main; main({server_end.fileno()})"
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

    def start(self, request: dict[str, Any], shared: int) -> tuple[int, int, int]:
        """Starts a worker.

        Args:
            request: the modules that the fork server imports first, and whether it may fork.
            shared: a further descriptor for the worker.

        Returns:
            The caller's descriptors: to write commands to, to read replies from, and to read the worker's process id
            and exit status from.
        """
        worker_fds: list[int] = []
        own_fds: list[int] = []
        body = pickle.dumps(request)
        message = forkserver.LENGTH.pack(len(body)) + body
        try:
            for own_index in (1, 0, 0):  # commands, replies, status
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
        """Ends the fork servers of this process, and with them all remaining workers."""
        for client in cls._clients.values():
            client.control.close()
            try:
                client.process.wait(2.0)
            except subprocess.TimeoutExpired:  # it is still importing a module: its workers end when it is killed
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
