"""The process of one contestant: builds what is timed, then does as many units of it as it is asked for.

    python -m benchmarks.implementation benchmarks.implementations.by_hand:loop_cartpole '{"num_envs": 64}' 2

The last number is that of the cores it may use: the only word for it that some libraries take. It says one JSON
line when it is ready, then answers each line of its input, a number of units, with the seconds they took. It must
run in any environment: standard library only, and nothing of the harness.
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

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Measurement(NamedTuple):
    """What a run took: the seconds that count and the units done in them."""

    seconds: float
    units: float


Run = Callable[[int], Measurement | None]
RunFactory = Iterator[Run]
"""What the functions in `benchmarks.implementations` return: they yield one `Run`."""


def resolve(entry: str) -> Callable[..., RunFactory]:
    """The function that "package.module:function" names."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def timed(run: Run, units: int) -> Measurement:
    """Do `units` of the work and say what they took."""
    start = time.perf_counter()
    measurement = run(units)
    seconds = time.perf_counter() - start
    return measurement or Measurement(seconds, units)


def main(entry: str, parameters: str) -> None:
    """Answer until the input ends. What the library prints goes to the error stream, never among the answers."""
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
