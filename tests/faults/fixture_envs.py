"""Faulty environments: each counts correctly until it commits one fault at one place."""

import ctypes
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces

import vecrl
from vecrl.engine.pool import Pool
from vecrl.simulators.gymnasium import GymnasiumSimulator

BACKENDS = ("serial", "threads", "processes")
PLACES = ("construct", "reset", "step", "render", "peek", "close")
Fault = Callable[["Counting"], Any]


class Counting(gymnasium.Env):
    """Observes `[env_id, episode, count]` as float64, with the count as reward, and never ends; at `place` it calls
    `fault`.

    It calls it once, in the first episode with count `at`. If the fault returns a value other than None, the place
    returns that value.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, env_id: int = 0, place: str = "", fault: Fault | None = None, at: int = 0, length: int = 0):
        self.env_id, self.place, self.fault, self.at, self.length = env_id, place, fault, at, length
        self.render_mode = "rgb_array"
        self.pid = os.getpid()
        self.episode, self.count, self.closed = -1, 0, 0
        self._commit("construct")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        committed = self._commit("reset")
        return (self._observe(), {"env_id": self.env_id}) if committed is None else committed

    def step(self, action: Any) -> Any:
        self.count += 1
        committed = self._commit("step")
        if committed is not None:
            return committed
        return self._observe(), float(self.count), self.count == self.length, False, {"count": self.count}

    def render(self) -> Any:
        committed = self._commit("render")
        return np.full((2, 2, 3), self.env_id, np.uint8) if committed is None else committed

    def peek(self) -> Any:
        """A method for `call`."""
        committed = self._commit("peek")
        return self.env_id if committed is None else committed

    def close(self) -> None:
        self.closed += 1
        self._commit("close")

    def _observe(self) -> np.ndarray:
        return np.array([self.env_id, self.episode, self.count], np.float64)

    def _commit(self, place: str) -> Any:
        if place != self.place or self.fault is None or self.count < self.at:
            return None
        fault, self.fault = self.fault, None
        return fault(self)


class Gated(Counting):
    """Number 1 creates the file `inside` in its first step, which lasts until the file `gate` exists."""

    def __init__(self, env_id: int, folder: Path):
        super().__init__(env_id)
        self.folder = folder

    def step(self, action: Any) -> Any:
        if self.env_id == 1:
            (self.folder / "inside").touch()
            wait_until((self.folder / "gate").exists, 60.0)
        return super().step(action)


class UnprintableError(Exception):
    """Cannot be rebuilt from its own `args`."""

    def __init__(self, number: int, reason: str):
        super().__init__(f"odd {number}: {reason}")


class UnpicklableError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked in")
        self.lock = threading.Lock()


class SilentError(Exception):
    """Raises if it is converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unpicklable:
    """Raises if it is pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("stays where it is")


class Unrebuildable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ImportError("never to be rebuilt")


# -- faults that raise -----------------------------------------------------------------------------


def raises(env: Counting) -> None:
    raise ArithmeticError("went wrong on purpose")


def raises_unprintable(env: Counting) -> None:
    raise UnprintableError(7, "two arguments")


def raises_unpicklable(env: Counting) -> None:
    raise UnpicklableError


def raises_silent(env: Counting) -> None:
    raise SilentError


def exits_by_sys(env: Counting) -> None:
    sys.exit("had enough")


RAISING = {
    raises: "ArithmeticError: went wrong on purpose",
    raises_unprintable: "UnprintableError: odd 7: two arguments",
    raises_unpicklable: "UnpicklableError: locked in",
    raises_silent: "SilentError (its __str__ raised)",
    exits_by_sys: "SystemExit: had enough",
}

# -- faults that end the process -------------------------------------------------------------------


def exits(env: Counting) -> None:
    os._exit(3)


def is_killed(env: Counting) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfaults(env: Counting) -> None:
    ctypes.string_at(0)


DEADLY = {exits: "exited with code 3", is_killed: "killed by SIGKILL", segfaults: "killed by SIGSEGV"}

# -- other faults ----------------------------------------------------------------------------------


def sleeps(env: Counting, seconds: float = 0.3) -> None:
    time.sleep(seconds)


def sleeps_forever(env: Counting) -> None:
    sleeps_once(env, 1000)


def sleeps_once(env: Counting, seconds: float = 0.6) -> None:
    """Creates a file, then sleeps."""
    os.write(1, b"asleep\n")
    time.sleep(seconds)


def writes_much(env: Counting) -> None:
    sys.stdout.write("o" * 1_000_000)
    sys.stdout.flush()
    sys.stderr.write("e" * 1_000_000)


def starts_children(env: Counting) -> None:
    subprocess.Popen(["sleep", "1000"])
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()


def starts_thread(env: Counting) -> None:
    threading.Thread(target=time.sleep, args=(1000,)).start()


def returns_value(value: Any) -> Fault:
    """Returns a fault that returns `value`."""
    return partial(_return_value, value)


def _return_value(value: Any, env: Counting) -> Any:
    return value


# -- Ctrl-C -----------------------------------------------------------------------------------------

ROOT = str(Path(vecrl.__file__).parent)
SIMULATORS = ("simulators", "worker.py")  # skips code of serial workers and worker threads: it is not part of the call


class Interrupt:
    """Raises KeyboardInterrupt once, before the `at`-th line (or bytecode) of vecrl within the block.

    Attributes:
        left: the number of lines still to come; 0 or less after it was raised.
    """

    def __init__(self, at: int, bytecodes: bool = False):
        self.left = at
        self.event = "opcode" if bytecodes else "line"

    def __enter__(self) -> None:
        sys.settrace(self._enter_frame)

    def __exit__(self, kind: Any, *_: object) -> bool:
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _enter_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        frame.f_trace_opcodes = self.event == "opcode"
        return self._count if name.startswith(ROOT) and not any(part in name for part in SIMULATORS) else None

    def _count(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == self.event:
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._count


# -- pools -----------------------------------------------------------------------------------------


def make_pool(env_fns: Sequence[Callable[[], gymnasium.Env]], backend: str, workers: int = 2, **options: Any) -> Pool:
    """Returns a pool of these environments over some workers; consecutive environments share a worker."""
    bounds = np.linspace(0, len(env_fns), workers + 1).round().astype(int).tolist()
    parts = [list(env_fns[a:b]) for a, b in itertools.pairwise(bounds)]
    return Pool([(partial(GymnasiumSimulator, part), len(part)) for part in parts], backend, **options)


def env_fns_with_fault(
    place: str, fault: Fault, at: int = 0, bad: int = 1, count: int = 3, **options: Any
) -> list[Any]:
    """Returns factories of `count` environments, of which number `bad` commits a fault."""
    return [
        partial(Counting, i, place, fault, at, **options) if i == bad else partial(Counting, i, **options)
        for i in range(count)
    ]


def wait_until(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    """Waits until a condition is true or the deadline passes, and returns its last value."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return value


def arrived(pool: Pool, count: int) -> bool:
    """Returns whether the replies of this many workers have arrived and are unread."""
    backend: Any = pool._backend
    if pool.backend_name == "threads":
        return backend._replies.qsize() >= count
    if pool.backend_name == "ray":
        import ray

        calls = list(backend._pending_calls)
        return not calls or len(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) >= count
    return sum(each.is_readable(each.replies_fd) for each in backend._connections) >= count


def workers_alive() -> list[psutil.Process]:
    """Returns all processes below this one except fork servers."""
    fork_servers = psutil.Process().children()
    found: list[psutil.Process] = []
    for fork_server in fork_servers:
        try:
            found += [p for p in fork_server.children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            continue
    return found
