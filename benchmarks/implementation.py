"""The process of one implementation: builds the work to time, then runs the requested numbers of units.

    python -m benchmarks.implementation benchmarks.implementations.by_hand:loop_cartpole '{"num_envs": 64}' 2

The last number is the number of cores it may use; for some libraries there is no other way to limit their threads. It
writes one JSON line when it is ready. Then it replies to each input line, a number of units, with the seconds that they
took. It must run in any environment, so it imports only the standard library, and nothing of the harness.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}


class Measurement(NamedTuple):
    """The seconds of a run that count, and the units done in them."""

    seconds: float
    units: float


Run = Callable[[int], Measurement | None]
RunFactory = Iterator[Run]
"""The return type of functions in `benchmarks.implementations`, which yield one `Run`."""


def resolve(entry: str) -> Callable[..., RunFactory]:
    """Returns the function "package.module:function"."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def timed(run: Run, units: int) -> Measurement:
    """Runs `units` units and returns their measurement."""
    start = time.perf_counter()
    measurement = run(units)
    seconds = time.perf_counter() - start
    return measurement or Measurement(seconds, units)


def main(entry: str, parameters: str) -> None:
    """Replies until the input ends. Prints of the library go to the error stream, so they do not mix with replies."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        with contextmanager(resolve(entry))(**json.loads(parameters)) as run:
            print(json.dumps({"ready": True}), file=answers, flush=True)
            for line in sys.stdin:
                print(json.dumps(timed(run, int(line))._asdict()), file=answers, flush=True)


if __name__ == "__main__":
    os.environ.update(ONE_THREAD)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(sys.argv[3]) :])
    main(*sys.argv[1:3])
