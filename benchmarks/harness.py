"""Runs the contestants of one workload in turn, round after round, and says what a unit of the work cost each.

It knows processes, lines and medians, and nothing of what is timed, of libraries or of targets.
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
from typing import Any

from benchmarks.contestant import ONE_THREAD, Lap

ROOT = Path(__file__).resolve().parents[1]
LONGEST_ANSWER = 600.0  # seconds: 64 actors that import torch take their time


@dataclass(frozen=True, slots=True)
class Contestant:
    """One library doing one piece of work.

    Attributes:
        name: how the tables call it.
        environment: the key of its Python environment.
        entry: "module:function" below `benchmarks.contestants`.
        parameters: keyword arguments of that function, beside the workload's own.
        fresh: a process of its own each round, for work that is only done once in a process and for libraries
            whose background processes cannot be stopped while others are timed.
        units: how many of them such a process does in its turn; if more than one, after as many to warm up.
        cores: how many cores it may use.
        source: the folder that vecrl is imported from.
    """

    name: str
    environment: str
    entry: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False
    units: int = 1
    cores: int = 2
    source: Path = ROOT / "src"


@dataclass(slots=True)
class Result:
    """What one contestant took: microseconds a unit, one number a round, and how busy others kept the machine."""

    contestant: str
    environment: str
    micros: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.micros)


class ContestantError(RuntimeError):
    """A contestant failed, died or did not answer in time; the message carries the end of its error output."""


class Process:
    """A contestant's process and all that it starts: one process group, stopped except when it is its turn."""

    def __init__(self, python: Path, contestant: Contestant, parameters: Mapping[str, Any]):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed when the process is)
        command = [python, "-m", "benchmarks.contestant", f"benchmarks.contestants.{contestant.entry}"]
        self._process = subprocess.Popen(
            [*command, json.dumps({**parameters, **contestant.parameters}), str(contestant.cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=_environment(contestant.source),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._told = self._process.stdin, self._process.stdout
        self._answer()

    def run(self, units: int) -> Lap:
        """Do so many units."""
        with suppress(BrokenPipeError):  # where it is dead, the missing answer tells why
            print(units, file=self._asked, flush=True)
        return Lap(**self._answer())

    def pause(self) -> None:
        """Stop the whole group, spinning workers included."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Let it tidy up, then make sure that nothing of it is left."""
        if self._log.closed:
            return
        self.resume()
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._asked.close()
            self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """End the whole group at once."""
        if self._log.closed:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._asked, self._told, self._log):
            with suppress(BrokenPipeError):
                stream.close()

    def _answer(self) -> dict[str, Any]:
        ready, _, _ = select.select([self._told], [], [], LONGEST_ANSWER)
        line = self._told.readline() if ready else ""
        if line:
            return json.loads(line)
        why = "it ended" if ready else f"no answer within {LONGEST_ANSWER:.0f} s"
        with suppress(subprocess.TimeoutExpired):  # its last words come after its last answer
            self._process.wait(5)
        self._log.seek(0)
        text = self._log.read()[-1500:]
        self.kill()
        raise ContestantError(f"{why}\n{text}")


@contextmanager
def started(python: Path, contestant: Contestant, parameters: Mapping[str, Any]) -> Iterator[Process]:
    """A process that is closed in the end, and killed where something else goes wrong."""
    process = Process(python, contestant, parameters)
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    process.close()


def compete(
    contestants: Sequence[tuple[Contestant, Path]], parameters: Mapping[str, Any], rounds: int, seconds: float
) -> list[Result]:
    """Time all contestants in turn, `rounds` times, each turn about `seconds` long.

    A contestant that fails leaves its error in its result, and the others go on.
    """
    results = {c.name: Result(c.name, c.environment) for c, _ in contestants}
    with ExitStack() as stack:
        turns = []
        for contestant, python in contestants:
            turn = Turn(contestant, python, parameters, seconds)
            with _noting(results[contestant.name]):
                turn.prepare()
                stack.callback(turn.close)
                turns.append((contestant, turn))
        for _ in range(rounds):
            load = foreign_load()
            for contestant, turn in turns:
                result = results[contestant.name]
                if result.error:
                    continue
                with _noting(result):
                    result.micros.append(turn.take())
                    result.loads.append(load)
    return list(results.values())


class Turn:
    """How one contestant is asked: how many units, and in which process."""

    def __init__(self, contestant: Contestant, python: Path, parameters: Mapping[str, Any], seconds: float):
        self._start = python, contestant, parameters
        self._seconds = seconds
        self._fresh = contestant.fresh
        self._process: Process | None = None
        self._units = contestant.units

    def prepare(self) -> None:
        """Start, warm up, and find how many units fill a turn."""
        if self._fresh:
            return
        process = self._process = Process(*self._start)
        process.run(1)
        spent = 0.0
        while spent < self._seconds / 4:
            start = time.perf_counter()
            process.run(self._units)
            spent = time.perf_counter() - start
            grow = self._seconds / max(spent, 1e-9)
            self._units = max(1, int(self._units * min(grow, 10.0)))
        process.pause()

    def take(self) -> float:
        """One turn: microseconds a unit."""
        if self._fresh:
            with started(*self._start) as process:
                if self._units > 1:
                    process.run(self._units)
                return _micros(process.run(self._units))
        assert self._process is not None
        self._process.resume()
        lap = self._process.run(self._units)
        self._process.pause()
        return _micros(lap)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


def foreign_load(window: float = 0.2) -> float:
    """How many cores are busy while all contestants are stopped: what others take from the run."""

    def busy() -> int:
        with open("/proc/stat") as f:
            user, nice, system, _, _, irq, soft, steal = map(int, f.readline().split()[1:9])
        return user + nice + system + irq + soft + steal

    before = busy()
    time.sleep(window)
    return (busy() - before) / os.sysconf("SC_CLK_TCK") / window


def _micros(lap: Lap) -> float:
    return lap.seconds / lap.units * 1e6


@contextmanager
def _noting(result: Result) -> Iterator[None]:
    try:
        yield
    except ContestantError as error:
        result.error = str(error)


def _environment(source: Path) -> dict[str, str]:
    """One thread a process, vecrl and this repository on the path, and caches that outlive the process."""
    scratch = ROOT / ".scratch"
    quiet = {"SDL_VIDEODRIVER": "dummy", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(scratch / "bench-inductor"), "JAX_PLATFORMS": "cpu"}
    return {**os.environ, **ONE_THREAD, **quiet, **caches, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
