"""Defines the options that a pool passes to its backend. It must not import Ray."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ...validation import check_choice, check_flag, check_names, parse_count
from .interpreters import find_python
from .ray_cluster.options import RayOptions
from .waiting import Wait

StartMethod = Literal["forkserver", "spawn"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How workers are started. A backend uses those options that concern its workers.

    Attributes:
        start_method: "forkserver" forks worker processes from a clean process that has imported the factories' modules;
            "spawn" starts a new interpreter per worker, for modules that must not be imported before a fork (CUDA).
            "fork" gives a warning and means "forkserver".
        threads_per_worker: the number of threads that numerical libraries may use in a worker process.
        preload: modules to import once before workers are forked, in addition to those that the factories refer to.
        pin_workers: whether to pin worker i to the i-th group of `threads_per_worker` cores among those that this
            process may use. After the last core, the assignment starts again with the first. Short steps get faster
            if nothing else uses the machine, and slower if two programs choose the same cores.
        ray_options: the Ray to use, and the resources of each worker's actor; only for the backend "ray". The other
            options, except `threads_per_worker`, are for worker processes.
        python: the Python interpreter of the worker processes, 3.7 or newer with NumPy: its path, the folder of its
            virtual environment, or the name of a program. Environments must then be described
            (`vecrl.simulators.foreign.foreign_env`), and `preload` is imported there. None: this interpreter, or the
            one that is named with the environments.
        wait: how the caller and the worker processes wait for each other. "sleep" uses no CPU time, but to wake a
            process takes some 50 microseconds. "spin" polls for up to 20 milliseconds before it sleeps, and "auto" for
            100 microseconds; after each poll, other programs that wait for the core run. With more workers than cores,
            all sleep immediately. Workers on another interpreter always sleep, and so does a caller that waits for any
            environments (`Pool.recv`).

    Raises:
        ValueError: an option has no valid value.
    """

    start_method: StartMethod = "forkserver"
    threads_per_worker: int = 1
    preload: Sequence[str] = ()
    pin_workers: bool = False
    ray_options: RayOptions | None = None
    python: str | None = None
    wait: Wait = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "start_method", parse_start_method(self.start_method))  # the dataclass is frozen
        parse_count("threads_per_worker", self.threads_per_worker)
        check_names("preload", self.preload, "modules")
        check_flag("pin_workers", self.pin_workers)
        check_choice("wait", self.wait, get_args(Wait))
        if self.python is not None:
            object.__setattr__(self, "python", find_python(self.python))


def parse_start_method(
    name: str | None, argument: str = "start_method", default_names: Collection[str | None] = ()
) -> StartMethod:
    """Returns the start method of worker processes.

    Args:
        name: "forkserver", "spawn", or one of `default_names`. "fork" gives a warning and means "forkserver", since a
            fork copies this process with the locks of all its threads, which may never be released.
        argument: the name of the argument in errors.
        default_names: further values that mean "forkserver".

    Raises:
        ValueError: `name` is none of these.

    >>> parse_start_method("fork", "context", (None, "fork"))
    'forkserver'
    """
    if name == "forkserver" or name in default_names:
        return "forkserver"
    if name == "spawn":
        return "spawn"
    if name == "fork":
        text = "A fork copies this process with the locks that its threads hold, so a clean process is forked instead."
        warnings.warn(f"Expected {argument} to be 'forkserver' or 'spawn', got 'fork'. {text}", stacklevel=3)
        return "forkserver"
    raise ValueError(f"Expected {argument} to be 'forkserver' or 'spawn', got {name!r}.")
