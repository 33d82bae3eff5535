"""The fork server: the process from which worker processes are forked.

It has imported the modules that workers need and does nothing else: it has no threads, simulators or graphics contexts.
So a fork of it is as safe as a new interpreter, and takes about a millisecond. The caller's `__main__` is not run
in a worker (factories are pickled by value), so scripts need no main guard. One fork server starts the workers of all
pools of a process with the same number of threads.

It sends the caller the process id of each worker and, when the worker ends, its exit status (as from `waitpid`). It
kills a worker's whole process group when the worker ends, and all workers when the caller ends. If an import has
started threads, forking is not safe any more. Then workers are new interpreters.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback
from typing import Any

NUMBER = struct.Struct("<q")
LENGTH = struct.Struct("<I")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def thread_environment(threads: int) -> dict[str, str]:
    """Returns the environment variables that limit the threads of numerical libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def main(control_fd: int) -> None:
    """Starts workers as the caller at the other end of `control_fd` requests, until the caller ends."""
    importlib.import_module(".process_worker", __package__)  # once here, and not in each worker after its fork

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _wake)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    os.set_inheritable(control_fd, False)
    control = socket.socket(fileno=control_fd)
    children: dict[int, int] = {}  # process id: the descriptor to which its exit status is written
    poll = select.poll()
    poll.register(control_fd, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _reap(children)
        if control_fd in ready:
            request, fds = _receive(control)
            if request is None:
                for pid in children:
                    _kill_group(pid)
                return
            *worker_fds, status = fds
            try:
                pid = _start(request, worker_fds, [control_fd, wake_read, wake_write, status, *children.values()])
            except OSError:  # no process could be created: for the caller, this worker has crashed
                traceback.print_exc()
                os.close(status)
            else:
                children[pid] = status
                with contextlib.suppress(OSError):  # the caller may have closed this worker already
                    os.write(status, NUMBER.pack(pid))
            finally:
                for fd in worker_fds:
                    os.close(fd)


def _wake(*_: object) -> None:
    """Does nothing. Without a handler, the signal would not be written to the wake-up descriptor."""


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    data, fds, _, _ = socket.recv_fds(control, LENGTH.size, 4)
    if len(data) < LENGTH.size:
        return None, []
    size = LENGTH.unpack(data)[0]
    body = b""
    while len(body) < size:
        body += control.recv(size - len(body))
    for fd in fds:
        os.set_inheritable(fd, False)
    return pickle.loads(body), fds


def _start(request: dict[str, Any], worker_fds: list[int], close: list[int]) -> int:
    """Starts a worker process with the descriptors `worker_fds` and without `close`. Returns its process id."""
    if request["program"]:  # that of a worker on another interpreter
        return _spawn([*request["program"], *map(str, worker_fds)], worker_fds)
    sys.path[:] = request["path"]
    if request["fork"]:
        for name in request["preload"]:
            with contextlib.suppress(Exception, SystemExit):  # the worker raises the same error and reports it
                importlib.import_module(name)
    if not request["fork"] or _threads_running():
        code = (
            f"import sys; sys.path[:] = {request['path']!r}; from {__name__} import worker_main; "
            f"worker_main(*{worker_fds!r})"
        )
        return _spawn([sys.executable, "-c", code], worker_fds)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    signal.set_wakeup_fd(-1)
    for fd in close:
        os.close(fd)
    worker_main(*worker_fds)
    return 0  # never reached


def _spawn(command: list[str], worker_fds: list[int]) -> int:
    for fd in worker_fds:
        os.set_inheritable(fd, True)
    return os.posix_spawn(command[0], command, os.environ, setpgroup=0)


def worker_main(commands: int, replies: int, memory: int) -> None:
    """Runs a worker process, and then exits.

    Args:
        commands, replies: descriptors to read from and to write to.
        memory: descriptor of the shared memory.
    """
    code = 1
    try:
        _enter_own_group()
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


def _enter_own_group() -> None:
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    if sys.platform == "linux":  # the kernel kills this process when the fork server ends
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _threads_running() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        import threading

        return threading.active_count() > 1


def _reap(children: dict[int, int]) -> None:
    for pid in list(children):
        # Check without reaping: while the process is a zombie, no other process group can get its id.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        fd = children.pop(pid)
        with contextlib.suppress(OSError):
            os.write(fd, NUMBER.pack(status))
        os.close(fd)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
