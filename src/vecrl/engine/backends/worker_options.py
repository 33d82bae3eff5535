"""Defines the options that a pool passes to its backend, and those of `backend="ray"`, without an import of Ray."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ...validation import check_choice, check_flag, check_names, parse_count
from .interpreters import find_python

PlacementStrategy = Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"]


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The Ray to use, and the resources and placement of its actors. There is one actor per worker.

    >>> RayOptions(address="auto", placement_strategy="SPREAD", resources={"simulators": 1}).num_gpus
    0.0

    Args:
        address: the address of a cluster: "auto" for the one that runs on this machine, "host:port", or "local" for a
            private Ray. The default is `RAY_ADDRESS`, or "local" if that is not set. If this process has initialized
            Ray, that one is used unchanged. A private Ray logs nothing, uses the loopback address only, and ends with
            the last pool that uses it.
        num_cpus: logical cores that an actor requests. The default is 1, or 0 on a private Ray, where there may be more
            workers than cores.
        num_gpus: GPUs, or the fraction of one, that an actor requests.
        resources: custom resources that an actor requests, by name.
        placement_strategy: the first placement of actors: "SPREAD" over nodes or "PACK" onto few, as far as possible,
            "STRICT_SPREAD" on one node each, "STRICT_PACK" all on one node. The default is Ray's own placement.
        runtime_env: Ray's runtime environment of the actors: environment variables, packages, a folder to upload. Ray
            uploads folders only when this process connects. If it is connected already, pass them to `ray.init`.
        start_timeout: seconds in which an actor must start. After that, it is an error. The default leaves Ray time to
            replace a process that did not register within 60 s, as on busy machines.
        object_store_memory: size of the object store of a private Ray, in bytes. The default is Ray's.

    Raises:
        ValueError: an argument has no valid value.
    """

    address: str | None = None
    num_cpus: float | None = None
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    placement_strategy: PlacementStrategy | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start_timeout: float = 180.0
    object_store_memory: int | None = None

    def __post_init__(self) -> None:
        amounts = {"num_cpus": self.num_cpus or 0.0, "num_gpus": self.num_gpus, **self.resources}
        for name, value in amounts.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected {name} of 0 or more, got {value!r}.")
        if not self.start_timeout > 0:
            raise ValueError(f"Expected start_timeout to be seconds above 0, got {self.start_timeout!r}.")
        strategies = get_args(PlacementStrategy)
        if self.placement_strategy not in (None, *strategies):
            raise ValueError(f"Expected placement_strategy to be one of {strategies}, got {self.placement_strategy!r}.")
        if self.placement_strategy and self.num_cpus == 0 and not any([self.num_gpus, *self.resources.values()]):
            raise ValueError(
                "Expected actors that request resources, as Ray needs them for a placement_strategy, got none. "
                "Give num_cpus above 0."
            )
        if (self.address or "").startswith("ray://"):
            raise ValueError(
                f"Expected an address of the cluster, got the client address {self.address!r}, which would send rows "
                "one by one. Run on a node of the cluster, with address='auto'."
            )


StartMethod = Literal["forkserver", "spawn"]
Wait = Literal["sleep", "auto", "spin"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How workers are started. A backend uses those options that concern its workers.

    Attributes:
        start_method: "forkserver" forks worker processes from a clean process that has imported the factories' modules;
            "spawn" starts a new interpreter per worker, for modules that must not be imported before a fork (CUDA).
            "fork" gives a warning and means "forkserver". On macOS, all mean "spawn".
        threads_per_worker: the number of threads that numerical libraries may use in a worker process.
        preload: modules that workers import before they make environments, in addition to those that the factories
            refer to; once for all, before workers are forked. They must not start workers when they are imported.
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
            100 microseconds; after each poll, other programs that wait for the core run, and if one does, nothing polls
            for a second. With more workers than cores, all sleep immediately. Workers on another interpreter always
            sleep, and so does a caller that waits for any environments (`Pool.recv`).

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
