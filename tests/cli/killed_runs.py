"""Runs of `vecrl evolve` that are killed and resumed. Program arguments: FOLDER SEED NUMBER ARGUMENT…

Every run is a fork of this process, which has already imported all it needs. A run is ended by SIGKILL: before the n-th
file operation in its folder, or after a number of milliseconds. Prints one line per run: how it was killed.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from vecrl.cli import evolve as command
from vecrl.cli.app import app

WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"}


def _die_at(number: int, folder: str) -> None:
    """Kills this process before the n-th file operation in the folder."""
    remaining = [number]

    def look(event: str, args: tuple) -> None:
        if event in WRITES and folder in str(args[0]):
            remaining[0] -= 1
            if remaining[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def _die_after(seconds: float) -> None:
    def wait() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def run(arguments: list[str], folder: str, die: tuple[str, float] | None) -> int:
    """Does one run in a process of its own and returns its exit code, which is negative if the run was killed."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        torch.set_num_threads(1)
        command.SAVE_INTERVAL_S = 0.0
        if die is not None:
            _die_at(int(die[1]), folder) if die[0] == "file" else _die_after(die[1])
        app(arguments, standalone_mode=False)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def main(parent: str, seed: str, number: str, *arguments: str) -> None:
    """Kills a run up to `number` times, at points drawn with `seed`, then lets it finish."""
    draw = random.Random(int(seed))
    folder = Path(parent) / arguments[0].replace("::", "-")
    folder = folder.with_name(f"{folder.name}-1")
    for _ in range(int(number)):
        die = ("file", draw.randint(1, 60)) if draw.random() < 0.7 else ("time", draw.uniform(0.0, 0.3))
        started = (folder / "config.yaml").exists()
        if not started:  # there is no state to resume from: the run was killed before it started
            folder = Path(parent) / f"{folder.name.rpartition('-')[0]}-{len(list(Path(parent).iterdir())) + 1}"
        repeated = ["evolve", "--resume", str(folder)] if started else ["evolve", *arguments, "--out", parent]
        print(*die, run(repeated, parent, die), folder.name, flush=True)
    started = (folder / "config.yaml").exists()
    repeated = ["evolve", "--resume", str(folder)] if started else ["evolve", *arguments, "--out", parent]
    if not started:
        folder = Path(parent) / f"{folder.name.rpartition('-')[0]}-{len(list(Path(parent).iterdir())) + 1}"
    print("end", run(repeated, parent, None), folder.name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
