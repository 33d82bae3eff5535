"""Fork servers: the processes from which worker processes are forked.

A fork server has imported the modules that workers need and does nothing else: it has no threads, simulators or
graphics contexts. So a fork of it is as safe as a new interpreter, and takes about a millisecond. The caller's
`__main__` is not run in a worker (factories are pickled by value), so scripts need no main guard.

The first fork server of a caller (`RootServer`) imports nothing but this library, and gets all requests. If a worker
needs other modules, the latest fork server is forked, and the fork (`ImportServer`) imports them. If it comes through,
it is the latest one. If not (it exited, crashed, started threads, lost its descriptors), only the workers that need
these modules are affected: the root starts them without imports, so they import the modules themselves and report what
happens. A fork server that is not the latest one ends with its last worker.

A fork server sends the caller the process id of each worker and, when the worker ends, its exit status (as from
`waitpid`). It kills a worker's whole process group when the worker ends, and all workers when the caller ends. All fork
servers of a caller are one process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .preloading import importing

NUMBER = struct.Struct("<q")
_WORKER_FDS = 4  # descriptors in a request for a worker: its commands, replies and shared memory, and its exit status
_LENGTH = struct.Struct("<I")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # of `prctl`
_END_TIMEOUT_S = 1.0  # seconds that the root waits for the others to end their workers


def thread_environment(threads: int) -> dict[str, str]:
    """Returns the environment variables that limit the threads of numerical libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


# -- messages ---------------------------------------------------------------------------------------


def send_message(connection: socket.socket, message: tuple[str, Any], fds: Sequence[int] = ()) -> None:
    """Sends a kind and its argument, and descriptors."""
    body = pickle.dumps(message)
    data = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(connection, [data], fds)
    if sent < len(data):
        connection.sendall(data[sent:])


def receive_message(connection: socket.socket) -> tuple[str, Any, list[int]]:
    """Receives a kind, its argument and descriptors. The kind is "" if the other end is closed."""
    try:
        data, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, _WORKER_FDS)
        size = _LENGTH.unpack(data)[0] if len(data) == _LENGTH.size else 0
        body = b""
        while len(body) < size and (part := connection.recv(size - len(body))):
            body += part
    except OSError:
        return "", None, []
    for fd in fds:
        os.set_inheritable(fd, False)
    return (*pickle.loads(body), fds) if size and len(body) == size else ("", None, fds)


# -- fork servers -----------------------------------------------------------------------------------


def main(control_fd: int) -> None:
    """Starts workers as the caller at the other end of `control_fd` requests, until the caller ends."""
    importlib.import_module(".process_worker", __package__)  # once here, and not in each worker after its fork
    RootServer(socket.socket(fileno=control_fd)).run()


class ForkServer:
    """Starts workers as `control` requests, and reports their ends.

    Attributes:
        control: a socket for messages.
    """

    def __init__(self, control: socket.socket):
        self.control = control
        self._statuses: dict[int, int] = {}  # process id of a worker: the descriptor to write its exit status to
        self._servers: set[int] = set()  # process ids of fork servers that were forked from this one
        self._received: tuple[int, ...] = ()  # the descriptors of the request that is performed
        self._wake_read, self._wake_write = os.pipe()
        self._poll = select.poll()
        control.set_inheritable(False)
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, _wake)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        signal.set_wakeup_fd(self._wake_write)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError):  # macOS has no limit and allows none
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a worker gets the caller's
        for fd in (control.fileno(), self._wake_read):
            self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """Handles messages and the ends of workers for ever."""
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                    self._reap()
                else:
                    self._handle(fd)

    def _handle(self, fd: int) -> None:
        """Handles what can be read from a descriptor."""
        raise NotImplementedError

    def _descriptors(self) -> list[int]:
        """Returns the descriptors that no fork may keep."""
        own = self.control.fileno(), self._wake_read, self._wake_write
        return [*own, *self._received, *self._statuses.values()]

    def _perform(self, kind: str, argument: Any, fds: list[int]) -> None:
        """Starts a worker or a fork server with the descriptors `fds`, and closes these here."""
        self._received = tuple(fds)
        me = os.getpid()
        try:
            if kind == "server":
                self._servers.add(self._fork(lambda: ImportServer.main(fds[0], me, **argument), fds))
            elif len(fds) == _WORKER_FDS:  # if there are fewer, this process may not open more
                pid = self._start(argument, fds[:-1], me)
                self._statuses[pid] = status = fds.pop()
                with contextlib.suppress(OSError):  # the caller may have closed this worker already
                    os.write(status, NUMBER.pack(pid))
        except OSError:  # no process could be created: its descriptors are closed, which the caller sees
            traceback.print_exc()
        finally:
            self._received = ()
            for fd in fds:
                os.close(fd)

    def _start(self, request: dict[str, Any], worker_fds: list[int], me: int) -> int:
        """Starts a worker process with the descriptors `worker_fds`. Returns its process id."""
        if request["program"]:  # that of a worker on another interpreter
            return _spawn([*request["program"], *map(str, worker_fds)], worker_fds)
        if not request["fork"] or threads_running():
            code = (
                f"import sys; sys.path[:] = {request['path']!r}; from {__name__} import worker_main; "
                f"worker_main(*{worker_fds!r}, {me})"
            )
            return _spawn([sys.executable, "-c", code], worker_fds)
        commands, replies, memory = worker_fds
        pid = self._fork(lambda: worker_main(commands, replies, memory, me), worker_fds)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def _fork(self, run: Callable[[], None], keep: Sequence[int]) -> int:
        """Forks this process and returns the fork's process id. The fork only calls `run` and keeps only `keep`."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # an import may have replaced or closed it
                stream.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for fd in set(self._descriptors()).difference(keep):
                with contextlib.suppress(OSError):
                    os.close(fd)
            run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        for pid in [*self._statuses, *self._servers]:
            if (status := _status(pid, group=pid in self._statuses)) is None:
                continue
            self._servers.discard(pid)
            if (fd := self._statuses.pop(pid, None)) is not None:
                with contextlib.suppress(OSError):
                    os.write(fd, NUMBER.pack(status))
                os.close(fd)

    def _kill_workers(self) -> None:
        for pid in self._statuses:
            _kill_group(pid)


class ImportServer(ForkServer):
    """A fork server that has imported further modules. It gets its messages from the root."""

    @classmethod
    def main(cls, control_fd: int, parent: int, names: list[str], path: list[str]) -> None:
        """Imports modules, tells the root whether forks of this process can be used, and serves it until it ends.

        Args:
            control_fd: descriptor of the socket.
            parent: the process id of the fork server from which this process was forked.
            names: the modules.
            path: the import path.
        """
        _end_with_parent(parent)
        control = socket.socket(fileno=control_fd)
        send_message(control, ("pid", os.getpid()))
        unchanged = _identity(control_fd)
        sys.path[:] = path
        for name in names:
            with contextlib.suppress(BaseException), importing():  # the worker raises the same error and reports it
                importlib.import_module(name)
        if threads_running() or _identity(control_fd) != unchanged:
            os._exit(1)
        server = cls(control)
        gc.freeze()
        _set_process_option(_SET_PDEATHSIG, 0)  # its parent may end before it; the end of the root closes the socket
        send_message(control, ("ready", _modules().union(names)))
        server.run()

    _is_last = False

    def _handle(self, fd: int) -> None:
        kind, argument, fds = receive_message(self.control)
        if not kind:
            self._kill_workers()
            os._exit(0)
        if kind == "last":
            self._is_last = True
            self._end_if_last()
        else:
            self._perform(kind, argument, fds)

    def _reap(self) -> None:
        super()._reap()
        self._end_if_last()

    def _end_if_last(self) -> None:
        if self._is_last and not self._statuses:
            os._exit(0)


@dataclass(eq=False)
class _Known:
    """What the root knows of a fork server.

    Attributes:
        control: the socket to it; None for the root itself.
        parent: the one from which it was forked.
        names: the modules that were requested when it was forked.
        modules: all that it has imported; empty while it imports.
        pid: its process id; 0 if it is not known yet.
        is_last: whether it has got its last message.
    """

    control: socket.socket | None
    parent: _Known | None
    names: frozenset[str]
    modules: frozenset[str] = frozenset()
    pid: int = 0
    is_last: bool = False

    @property
    def imports(self) -> bool:
        """Whether it still imports."""
        return not self.modules


class RootServer(ForkServer):
    """The fork server that the caller has started. It imports nothing, and gives each request to one that has."""

    def __init__(self, control: socket.socket):
        super().__init__(control)
        _set_process_option(_SET_PDEATHSIG, 0)  # the socket reports the end of the caller from now on
        _set_process_option(_SET_CHILD_SUBREAPER, 1)  # it becomes the parent of the fork servers that a parent leaves
        self._itself = self._latest = _Known(None, None, frozenset(), _modules())
        self._known: dict[int, _Known] = {}  # by the descriptor of its socket
        self._waiting: dict[int, tuple[_Known, dict[str, Any], list[int]]] = {}  # requests, by their last descriptor
        self._others: set[int] = set()  # descriptors of processes that are no workers and end with the caller
        self._harmful: set[frozenset[str]] = set()  # sets of modules that made an importing process unusable

    def _descriptors(self) -> list[int]:
        waiting = [fd for _, _, fds in self._waiting.values() for fd in fds]
        return [*super()._descriptors(), *self._known, *self._others, *waiting]

    def _handle(self, fd: int) -> None:
        if fd == self.control.fileno():
            kind, request, fds = receive_message(self.control)
            if not kind:
                self._end()
            if kind == "worker":
                self._assign(request, fds)
            else:
                self._others.update(fds)
                for process in fds:
                    self._poll.register(process, select.POLLIN)  # ready when it ends
        elif fd in self._others:
            self._others.remove(fd)
            self._poll.unregister(fd)
            os.close(fd)
        elif fd in self._known:
            self._listen(fd, self._known[fd])
        elif fd in self._waiting:
            self._drop(fd)
        self._dismiss()

    def _assign(self, request: dict[str, Any], fds: list[int]) -> None:
        """Gives a request for a worker to the fork server that has imported its modules, or will."""
        names = frozenset(request["preload"])
        if len(fds) < _WORKER_FDS or not request["fork"] or names in self._harmful or threads_running():
            return self._perform("worker", request, fds)
        if names <= self._latest.modules:
            return self._ask(self._latest, "worker", request, fds)
        known = next((known for known in self._known.values() if known.imports and known.names == names), None)
        if known is not None:
            return self._await_import(known, request, fds)
        try:
            control, other = socket.socketpair()
        except OSError:  # no descriptors left
            return self._perform("worker", request, fds)
        known = self._known[control.fileno()] = _Known(control, self._latest, names)
        self._poll.register(control, select.POLLIN)
        self._await_import(known, request, fds)  # first, since the fork must close these descriptors
        missing = sorted(names - self._latest.modules)
        return self._ask(self._latest, "server", {"names": missing, "path": request["path"]}, [other.detach()])

    def _await_import(self, known: _Known, request: dict[str, Any], fds: list[int]) -> None:
        self._waiting[fds[-1]] = known, request, fds
        self._poll.register(fds[-1], 0)  # ready if the caller closes its end

    def _ask(self, known: _Known, kind: str, argument: Any, fds: list[int]) -> None:
        if known.control is None:
            return self._perform(kind, argument, fds)
        with contextlib.suppress(OSError):  # it has ended: its descriptors are closed, which the caller sees
            send_message(known.control, (kind, argument), fds)
        for fd in fds:
            os.close(fd)
        return None

    def _listen(self, fd: int, known: _Known) -> None:
        """Handles a message of a fork server, or its end."""
        assert known.control is not None
        kind, argument, _ = receive_message(known.control)
        if kind == "pid":
            known.pid = argument
        elif kind == "ready":
            known.modules = argument
            if known.parent is self._latest:  # no other one came through in the meantime
                self._latest = known
            self._start_waiting(known, known)
        else:
            if any(server is known for server, _, _ in self._waiting.values()):
                self._harmful.add(known.names)
            self._forget(fd)
            self._start_waiting(known, self._itself)

    def _forget(self, fd: int) -> None:
        known = self._known.pop(fd)
        self._poll.unregister(fd)
        if known.control is not None:
            known.control.close()
        if known.imports and known.pid:  # it has closed its descriptors, or was given up
            _kill(known.pid)
        if known is self._latest:
            self._latest = self._itself

    def _start_waiting(self, known: _Known, by: _Known) -> None:
        """Lets the fork server `by` start the workers that have waited for `known`."""
        for fd, (server, request, fds) in list(self._waiting.items()):
            if server is known:
                self._poll.unregister(fd)
                del self._waiting[fd]
                self._ask(by, "worker", request, fds)

    def _drop(self, fd: int) -> None:
        """Drops a request that waits for an import. If it was the last one, the import is given up."""
        known, _, fds = self._waiting.pop(fd)
        self._poll.unregister(fd)
        for own in fds:
            os.close(own)
        if known.control is not None and not any(server is known for server, _, _ in self._waiting.values()):
            self._forget(known.control.fileno())

    def _dismiss(self) -> None:
        """Lets fork servers end from which no more processes will be forked."""
        needed = {self._latest, *(known.parent for known in self._known.values() if known.imports)}
        for known in self._known.values():
            if not (known.imports or known.is_last or known in needed):
                known.is_last = True
                self._ask(known, "last", None, [])

    def _reap(self) -> None:
        super()._reap()
        if sys.platform != "linux":  # it has no other children
            return
        with contextlib.suppress(ChildProcessError):
            while (end := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if end.si_pid in self._statuses or end.si_pid in self._servers:  # it ended after `super()._reap`
                    return
                os.waitpid(end.si_pid, 0)

    def _end(self) -> None:
        """Ends all fork servers with their workers, and the processes that imports have started."""
        self._kill_workers()
        for process in self._others:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        controls = [known.control for known in self._known.values() if known.control is not None]
        for known in self._known.values():
            if known.imports and known.pid:
                _kill(known.pid)
        for control in controls:
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _END_TIMEOUT_S
        for control in controls:
            control.settimeout(max(0.01, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                while control.recv(1 << 16):
                    pass
        os.killpg(0, signal.SIGKILL)


def _wake(*_: object) -> None:
    """Does nothing. Without a handler, the signal would not be written to the wake-up descriptor."""


def _modules() -> frozenset[str]:
    """Returns the names of the imported modules."""
    return frozenset(name for name in sys.modules if type(name) is str)


def _identity(control: int) -> list[Any]:
    """Returns what an import must not change: the standard streams, a socket, and the limit of descriptors."""
    found: list[Any] = [resource.getrlimit(resource.RLIMIT_NOFILE)[1]]
    for fd in (0, 1, 2, control):
        with contextlib.suppress(OSError):
            status = os.fstat(fd)
            found.append((fd, status.st_dev, status.st_ino))
    return found


# -- processes --------------------------------------------------------------------------------------


def _spawn(command: list[str], worker_fds: list[int]) -> int:
    for fd in worker_fds:
        os.set_inheritable(fd, True)
    return os.posix_spawn(command[0], command, os.environ, setpgroup=0)


def worker_main(commands: int, replies: int, memory: int, parent: int) -> None:
    """Runs a worker process, and then exits.

    Args:
        commands, replies: descriptors to read from and to write to.
        memory: descriptor of the shared memory.
        parent: the process id of its fork server.
    """
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _end_with_parent(parent)
        for number, action in ((signal.SIGINT, signal.SIG_IGN), (signal.SIGCHLD, signal.SIG_DFL)):
            signal.signal(number, action)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        from .process_worker import serve

        for fd in (commands, replies, memory):  # processes that simulators start must not inherit them
            os.set_inheritable(fd, False)
        serve(commands, replies, memory)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends."""
    _set_process_option(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _set_process_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def threads_running() -> bool:
    """Returns whether this process has more than one thread."""
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        import threading

        return threading.active_count() > 1


def _status(pid: int, *, group: bool) -> int | None:
    """Returns the exit status of a process, or None if it runs. Kills what is left of its group, if it has one."""
    if hasattr(os, "waitid"):  # see it before it is reaped: until then, no other process group can get its id
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        if group:
            _kill_group(pid)
    done, status = os.waitpid(pid, os.WNOHANG)
    if done and group and not hasattr(os, "waitid"):
        _kill_group(pid)
    return status if done else None


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
