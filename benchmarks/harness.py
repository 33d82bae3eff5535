"""Runs the implementations of one workload in turns, for several rounds, and returns the time per unit of each.

Knows processes, lines and medians, but no workloads, libraries or targets.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.implementation import ONE_THREAD, Measurement

ROOT = Path(__file__).resolve().parents[1]
REPLY_TIMEOUT_S = 600.0  # 64 actors that import torch are slow to start


@dataclass(frozen=True, slots=True)
class Implementation:
    """One library doing one piece of work.

    Attributes:
        name: its name in the tables.
        environment: the key of its Python environment.
        entry: "module:function" below `benchmarks.implementations`.
        parameters: keyword arguments of that function, in addition to the workload's.
        fresh: whether each round has a new process: for work that a process does only once, and for libraries with
            background processes that cannot be stopped during the turns of others.
        units: the number of units in a turn of such a process; if above 1, it first does as many as a warm-up.
        cores: the number of cores it may use.
        source: the folder from which vecrl is imported.
    """

    name: str
    environment: str
    entry: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    fresh: bool = False
    units: int = 1
    cores: int = 2
    source: Path = ROOT / "src"


@dataclass(slots=True)
class Result:
    """Measurements of one implementation: microseconds per unit, and the load by other programs, for each round."""

    implementation: str
    environment: str
    micros: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.micros)


class ImplementationError(RuntimeError):
    """An implementation failed, crashed or timed out; the message contains the end of its error output."""


class Process:
    """The process group of an implementation, which is stopped except during its turns."""

    def __init__(self, python: Path, implementation: Implementation, parameters: Mapping[str, object]):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`kill` closes it)
        command = [python, "-m", "benchmarks.implementation", f"benchmarks.implementations.{implementation.entry}"]
        self._process = subprocess.Popen(
            [*command, json.dumps({**parameters, **implementation.parameters}), str(implementation.cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=_environment(implementation.source),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._read_reply()

    def run(self, units: int) -> Measurement:
        """Runs `units` units in the process."""
        with suppress(BrokenPipeError):  # if the process ended, `_read_reply` raises
            print(units, file=self._requests, flush=True)
        return Measurement(**self._read_reply())

    def pause(self) -> None:
        """Stops the whole group, including workers that spin."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Lets the process clean up, then kills what is left of the group."""
        if self._log.closed:
            return
        self.resume()
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._requests.close()
            self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """Kills the whole group."""
        if self._log.closed:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._requests, self._replies, self._log):
            with suppress(BrokenPipeError):
                stream.close()

    def _read_reply(self) -> dict[str, float]:
        ready, _, _ = select.select([self._replies], [], [], REPLY_TIMEOUT_S)
        line = self._replies.readline() if ready else ""
        if line:
            return json.loads(line)
        reason = "it ended" if ready else f"no reply within {REPLY_TIMEOUT_S:.0f} s"
        with suppress(subprocess.TimeoutExpired):  # it may still write errors
            self._process.wait(5)
        self._log.seek(0)
        text = self._log.read()[-1500:]
        self.kill()
        raise ImplementationError(f"{reason}\n{text}")


@contextmanager
def running_process(
    python: Path, implementation: Implementation, parameters: Mapping[str, object]
) -> Iterator[Process]:
    """Starts a process for a `with` block. Closes it at the end of the block, and kills it if the block raises."""
    process = Process(python, implementation, parameters)
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    process.close()


def compete(
    implementations: Sequence[tuple[Implementation, Path]],
    parameters: Mapping[str, object],
    rounds: int,
    seconds: float,
) -> list[Result]:
    """Times all implementations in turn, `rounds` times, each turn about `seconds` long.

    If an implementation fails, its result has the error, and the others continue.
    """
    results = {c.name: Result(c.name, c.environment) for c, _ in implementations}
    with ExitStack() as stack:
        turns = []
        for implementation, python in implementations:
            turn = Turn(implementation, python, parameters, seconds)
            with _recording_errors(results[implementation.name]):
                turn.prepare()
                stack.callback(turn.close)
                turns.append((implementation, turn))
        for _ in range(rounds):
            load = foreign_load()
            for implementation, turn in turns:
                result = results[implementation.name]
                if result.error:
                    continue
                with _recording_errors(result):
                    result.micros.append(turn.measure())
                    result.loads.append(load)
    return list(results.values())


class Turn:
    """The turns of one implementation: its process and the number of units."""

    def __init__(self, implementation: Implementation, python: Path, parameters: Mapping[str, object], seconds: float):
        self._start = python, implementation, parameters
        self._seconds = seconds
        self._fresh = implementation.fresh
        self._process: Process | None = None
        self._units = implementation.units

    def prepare(self) -> None:
        """Starts the process, warms up, and determines how many units fill a turn."""
        if self._fresh:
            return
        process = self._process = Process(*self._start)
        process.run(1)
        elapsed = 0.0
        while elapsed < self._seconds / 4:
            start = time.perf_counter()
            process.run(self._units)
            elapsed = time.perf_counter() - start
            grow = self._seconds / max(elapsed, 1e-9)
            self._units = max(1, int(self._units * min(grow, 10.0)))
        process.pause()

    def measure(self) -> float:
        """Runs one turn; returns microseconds per unit."""
        if self._fresh:
            with running_process(*self._start) as process:
                if self._units > 1:
                    process.run(self._units)
                return _micros(process.run(self._units))
        assert self._process is not None
        self._process.resume()
        measurement = self._process.run(self._units)
        self._process.pause()
        return _micros(measurement)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


def foreign_load(window: float = 0.2) -> float:
    """Returns how many cores are busy while all implementations are stopped: the load by other programs."""

    def busy() -> int:
        with open("/proc/stat") as f:
            user, nice, system, _, _, irq, soft, steal = map(int, f.readline().split()[1:9])
        return user + nice + system + irq + soft + steal

    before = busy()
    time.sleep(window)
    return (busy() - before) / os.sysconf("SC_CLK_TCK") / window


def _micros(measurement: Measurement) -> float:
    return measurement.seconds / measurement.units * 1e6


@contextmanager
def _recording_errors(result: Result) -> Iterator[None]:
    try:
        yield
    except ImplementationError as error:
        result.error = str(error)


def _environment(source: Path) -> dict[str, str]:
    """Returns environment variables: one thread per process, vecrl and this repository in the path, and caches."""
    scratch = ROOT / ".scratch"
    quiet = {"SDL_VIDEODRIVER": "dummy", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "bench-inductor"), "JAX_PLATFORMS": "cpu"}
    return {**os.environ, **ONE_THREAD, **quiet, **caches, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
