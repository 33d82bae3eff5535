"""Makes calls with hostile input in processes of their own, with limits for memory and time. Runs as a program:

    python limited_calls.py    reads one request as JSON per line, and prints one line with the outcomes

The program imports vecrl once. Calls run in a fork of it. A call that fills the memory, runs without end or ends the
fork affects no other call and no test: the next call runs in a new fork.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

CPU_LIMIT_S, WALL_LIMIT_S = 2.0, 15.0  # a call that needs more is ended
MEMORY_LIMIT_MB = 600  # the address space that a call may add; more is a MemoryError


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        error: the class of the exception and its bases, by name; empty if there was none.
        message: the text of the exception.
        output: what the call printed.
        result: what the call returned, as text.
        status: the exit status of its process, negative for a signal.
        seconds: the time of the CPU.
        memory_mb: how much its memory grew, at most.
        imported: the packages that it imported.
    """

    error: list[str]
    message: str
    output: str
    result: str
    status: int
    seconds: float
    memory_mb: float
    imported: list[str]

    def __str__(self) -> str:
        if self.status:
            end = f"the process ended with status {self.status}"
        else:
            end = f"{self.error[0]}: {self.message:.200}" if self.error else f"result {self.result:.80}"
        return f"{end} ({self.seconds:.2f} s, {self.memory_mb:.0f} MB)"


class LimitedCalls:
    """The program in this file, as a process.

    Args:
        folder: its working folder, which is also on its import path. Its variable `MARKER` names a file in it.
    """

    def __init__(self, folder: Path):
        self.marker = folder / "marker"
        paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        env = {**os.environ, "MARKER": str(self.marker), "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=env, text=True
        )

    def __call__(
        self,
        name: str,
        cases: Iterable[Any],
        *,
        memory_mb: int = MEMORY_LIMIT_MB,
        cpu_s: float = CPU_LIMIT_S,
        wall_s: float = WALL_LIMIT_S,
    ) -> list[Outcome]:
        """Calls the function of this name in `CALLS` for each case, which is its argument."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"name": name, "cases": list(cases), "limits": (memory_mb, cpu_s, wall_s)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        assert reply, f"the program ended with status {self._process.wait()}"
        return [Outcome(**outcome) for outcome in json.loads(reply)]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


# -- the program


def _load(path: str) -> str:
    from vecrl import checkpoint

    return str(list(checkpoint.load(path)))


def _load_into(case: list[str]) -> str:
    """Restores an entry of a file into the object of that name, and uses it."""
    import gymnasium
    import numpy as np

    from vecrl import checkpoint

    path, name = case
    objects: dict[str, Any] = {
        "env": gymnasium.make("CartPole-v1"),
        "MT19937": np.random.Generator(np.random.MT19937(0)),
        "Philox": np.random.Generator(np.random.Philox(0)),
        "RandomState": np.random.RandomState(0),
    }
    objects["env"].reset(seed=0)
    value = checkpoint.load(path, **{name: objects[name]})[name]
    return str(value.step(0)[1] if name == "env" else value.random(2000).mean())


def _load_policy(path: str) -> str:
    from vecrl.policy.saved_policy import SavedPolicy

    return str(SavedPolicy.load(path).module()).partition("\n")[0]


def _parse_network(text: str) -> str:
    from vecrl.policy import str_to_net

    return type(str_to_net(text, obs_length=4, act_length=2)).__name__


def _run_command(arguments: list[str]) -> str:
    """Runs the command `vecrl`; the first argument is the working folder."""
    from vecrl.cli import main

    folder, *sys.argv[1:] = arguments
    os.chdir(folder)
    main()
    return ""


def _save(case: dict[str, Any]) -> str:
    """Writes with the writer of this name in `WRITERS` to a path.

    Other entries of the case: `max_bytes`, the largest file that can be written, as on a disk that is full then;
    `user`, the number of the user that writes; `without_folder`, to remove the folder of the path once the writer is
    open.
    """
    path = Path(case["path"])
    if case.get("user") is not None:
        os.setgroups([])
        os.setgid(case["user"])
        os.setuid(case["user"])
    writer = WRITERS[case["writer"]](path)
    next(writer)
    if case.get("without_folder"):
        shutil.rmtree(path.parent)
    if "max_bytes" in case:
        resource.setrlimit(resource.RLIMIT_FSIZE, (case["max_bytes"],) * 2)
    next(writer, None)
    return ""


CALLS: dict[str, Callable[[Any], str]] = {
    "load": _load,
    "load into": _load_into,
    "policy": _load_policy,
    "network": _parse_network,
    "command": _run_command,
    "save": _save,
}


IRREVERSIBLE = ("save",)  # calls that change their process

# Generators that import and prepare, then write about 100 kB to a path.


def _write_checkpoint(path: Path) -> Iterator[None]:
    import numpy as np

    from vecrl import checkpoint

    yield
    checkpoint.save(path, x=np.zeros(25_000))


def _write_policy(path: Path) -> Iterator[None]:
    import torch

    from vecrl.policy.saved_policy import SavedPolicy

    saved = SavedPolicy("Some-v1", "Linear(250, 100)", {}, torch.zeros(25_100))
    yield
    saved.save(path)


def _write_video(path: Path) -> Iterator[None]:
    import numpy as np

    from vecrl.record.video import VideoWriter

    frames = np.random.default_rng(0).integers(256, size=(8, 64, 64, 3), dtype=np.uint8)
    yield
    with VideoWriter(path) as video:
        for frame in frames:
            video.write(frame)


def _write_open_video(path: Path) -> Iterator[None]:
    """Gives the path of a video only when it is complete, as loggers do."""
    import numpy as np

    from vecrl.record.video import VideoWriter

    video = VideoWriter(suffix=path.suffix, folder=path.parent)
    video.write(np.zeros((256, 256, 3), np.uint8))
    yield
    video.close(path)


def _write_recording(path: Path) -> Iterator[None]:
    import torch
    from tensordict import TensorDict

    from vecrl.record.recorder import TensorDictRecorder

    recorder = TensorDictRecorder(str(path).removesuffix("_tensordict.t"), skip=1)
    recorder._call(TensorDict({"x": torch.zeros(25_000)}))
    yield
    recorder.dump()


def _csv_logger(path: Path) -> Any:
    """Returns a logger of the experiment in the folder above that of the path."""
    from vecrl.record.loggers.csv import CSVLogger

    return CSVLogger(path.parents[1].name, log_dir=str(path.parents[2]))


def _write_scalars(path: Path) -> Iterator[None]:
    logger = _csv_logger(path)
    yield
    for _ in range(2000):
        logger.log_scalar(path.stem, 0.123456789)


def _write_text(path: Path) -> Iterator[None]:
    logger = _csv_logger(path)
    yield
    logger.log_str(path.stem.removesuffix("_0"), "text" * 25_000, step=0)


def _write_histogram(path: Path) -> Iterator[None]:
    logger = _csv_logger(path)
    yield
    logger.log_histogram(path.stem.removesuffix("_0"), [0.0, 1.0, 2.0], step=0, bins=5000)


def _write_settings(path: Path) -> Iterator[None]:
    logger = _csv_logger(path)
    yield
    logger.log_hparams({"text": "text" * 25_000})


def _write_logged_video(path: Path) -> Iterator[None]:
    import numpy as np

    logger = _csv_logger(path)
    yield
    logger.log_video(path.stem.removesuffix("_0"), np.zeros((2, 3, 128, 128), np.uint8), step=0)


def _write_config(path: Path) -> Iterator[None]:
    from vecrl.cli.run_folder import RunFolder

    yield
    RunFolder(path.parent).write_config({"network": "Tanh() >> " * 10_000})


def _write_metrics(path: Path) -> Iterator[None]:
    from vecrl.cli.run_folder import METRIC_COLUMNS, RunFolder

    yield
    for generation in range(2000):
        RunFolder(path.parent).append({**dict.fromkeys(METRIC_COLUMNS, 0.123456789), "generation": generation})


def _write_curve(path: Path) -> Iterator[None]:
    from vecrl.cli.media import draw_curve
    from vecrl.cli.run_folder import METRIC_COLUMNS

    rows = [{**dict.fromkeys(METRIC_COLUMNS, 0.5), "generation": generation} for generation in range(5)]
    draw_curve(rows, path.with_name("other.png"), "Some-v1", None)  # loads fonts
    path.with_name("other.png").unlink()
    yield
    draw_curve(rows, path, "Some-v1", None)


WRITERS: dict[str, Callable[[Path], Iterator[None]]] = {
    "checkpoint": _write_checkpoint,
    "policy": _write_policy,
    "video": _write_video,
    "open video": _write_open_video,
    "recording": _write_recording,
    "scalars": _write_scalars,
    "text": _write_text,
    "histogram": _write_histogram,
    "settings": _write_settings,
    "logged video": _write_logged_video,
    "config": _write_config,
    "metrics": _write_metrics,
    "curve": _write_curve,
}


def _memory_mb(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def _call(name: str, case: Any) -> dict[str, Any]:
    modules, output = set(sys.modules), io.StringIO()
    error: BaseException | None = None
    result = ""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the memory starts at its present size
    started, memory = time.process_time(), _memory_mb("VmRSS")
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            result = CALLS[name](case)
        except BaseException as raised:
            error = raised
    return {
        "error": [] if error is None else [cls.__name__ for cls in type(error).__mro__],
        "message": "" if error is None else str(error)[:2000],
        "output": output.getvalue()[:8000],
        "result": result,
        "seconds": time.process_time() - started,
        "memory_mb": max(0.0, _memory_mb("VmHWM") - memory),
        "imported": sorted({name.partition(".")[0] for name in set(sys.modules) - modules} - modules),
        "status": 0,
    }


def _call_all(name: str, cases: list[Any], limits: list[float], writer: int) -> None:
    """Makes the calls of one fork, and writes a line for each."""
    memory_mb, cpu_s, wall_s = limits
    size = int((_memory_mb("VmSize") + memory_mb) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(writer, "w") as pipe:
        for case in cases:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)  # the signals end the process, also within a call of C
            signal.setitimer(signal.ITIMER_REAL, wall_s)
            outcome = _call(name, case)
            for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                signal.setitimer(timer, 0)
            pipe.write(json.dumps(outcome) + "\n")
            pipe.flush()


def _fork(name: str, cases: list[Any], limits: list[float]) -> list[dict[str, Any]]:
    """Makes calls in a fork of this process; returns their outcomes, up to the first call that ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _call_all(name, cases, limits, writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        outcomes = [json.loads(line) for line in pipe.read().splitlines()]
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if len(outcomes) < len(cases):
        numbers = {"seconds": 0.0, "memory_mb": 0.0, "imported": [], "status": status}
        outcomes.append({"error": [], "message": "", "output": "", "result": "", **numbers})
    return outcomes


LOADED = ("vecrl.cli.app", "vecrl.cli.evolve", "vecrl.cli.rollout", "vecrl.record.loggers.csv", "vecrl.record.recorder")
LOADED += ("matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.style")


def _serve() -> None:
    del sys.path[0]  # the folder of this file
    for name in LOADED:
        import_module(name)
    import gymnasium
    import torch

    torch.set_num_threads(1)
    gymnasium.make("CartPole-v1").reset(seed=0)
    gc.collect()
    gc.freeze()  # later collections skip what exists now
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a call prints is no reply
    for line in sys.stdin:
        request = json.loads(line)
        name, cases, limits = request["name"], request["cases"], request["limits"]
        outcomes: list[dict[str, Any]] = []
        while len(outcomes) < len(cases):
            left = cases[len(outcomes) :]
            outcomes += _fork(name, left[:1] if name in IRREVERSIBLE else left, limits)
        replies.write(json.dumps(outcomes) + "\n")
        replies.flush()


if __name__ == "__main__":
    _serve()
