"""The registry of backends: what vecrl must know of a backend before it imports the backend's class.

`register_backend` adds a backend, and so does an entry point of an installed distribution in the group
"vecrl.backends". The pool, all interfaces above it and the command line read the registry. No other module compares the
names of backends. This module must not import Ray.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Literal

from ...errors import PlatformError, VersionError
from ...registries import Registry
from ..worker import WorkerSpec
from .base import Backend
from .worker_options import WorkerOptions

BackendName = Literal["serial", "threads", "processes", "ray"] | str
MakeBackend = Callable[[Sequence[WorkerSpec], WorkerOptions], Backend]
"""The class of a backend, or a function that returns one. It starts to construct the workers."""


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A registered backend.

    Attributes:
        name: the value of the argument `backend`.
        load: imports the class of the backend and returns it. It is called when a pool with this backend is made.
        in_process: whether the environments are in the caller's process, so that they share its objects and its global
            random generators, and so that a crash of one ends the caller.
        runs_inline: whether `Backend.receive` itself executes the commands, one after another, in the caller's thread.
        steps_inline: whether the backend is a `StepsInline` too. If it has one worker, the pool calls this worker
            instead of sending a command to all, unless steps have a time limit or environments that fail are restarted.
        takes_ray_options: whether `ray_options` may be given.
        takes_python: whether `python` may be given, the interpreter of the workers.
    """

    name: str
    load: Callable[[], MakeBackend]
    in_process: bool = False
    runs_inline: bool = False
    takes_ray_options: bool = False
    takes_python: bool = False
    steps_inline: bool = False

    @property
    def default_workers(self) -> int:
        """The largest number of workers that a pool has by default: one per core, or one if commands run inline."""
        return 1 if self.runs_inline else os.cpu_count() or 1

    def make(self, worker_specs: Sequence[WorkerSpec], options: WorkerOptions) -> Backend:
        """Returns the backend, which starts to construct its workers.

        Raises:
            ValueError: `ray_options` or `python` are given, and the backend does not take them.
            VersionError: a package that the backend needs is not installed.
            TypeError: `load` returns something that cannot be called, or a class that lacks a method of `Backend`.
        """
        for option in ("ray_options", "python"):
            if getattr(options, option) is not None and not getattr(self, f"takes_{option}"):
                names = [e.name for e in _entries.values() if getattr(e, f"takes_{option}")]
                expected = " or ".join(f"backend={name!r}" for name in names)
                raise ValueError(f"Expected {expected} together with {option}, got backend={self.name!r}.")
        make = self.load()
        if not callable(make):
            raise TypeError(
                f"Expected load of the backend {self.name!r} to return the class of the backend, got {make!r:.80}."
            )
        if isinstance(make, type):
            missing = [name for name in _METHODS if not callable(getattr(make, name, None))]
            if missing:
                raise TypeError(
                    f"Expected the backend {self.name!r} to have all methods of vecrl.engine.backends.base.Backend, "
                    f"got {make.__name__} without {', '.join(missing)}. Define what is missing."
                )
        try:
            return make(worker_specs, options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # not from the call itself
                raise
            raise TypeError(
                f"Expected the constructor of the backend {self.name!r} to take (worker_specs, options), got {error}. "
                "Define it with these two arguments."
            ) from error


_METHODS = [name for name in vars(Backend) if not name.startswith("_")]
_entries: Registry[BackendEntry] = Registry("name of a backend", "vecrl.backends")


def register_backend(
    name: str,
    load: Callable[[], MakeBackend],
    *,
    in_process: bool = False,
    runs_inline: bool = False,
    takes_ray_options: bool = False,
    takes_python: bool = False,
    steps_inline: bool = False,
    replace: bool = False,
) -> None:
    """Adds a backend to the registry.

    Args:
        name, load, in_process, runs_inline, takes_ray_options, takes_python, steps_inline: see `BackendEntry`.
        replace: whether to replace the entry of a name that is registered, which may be one of vecrl's own.

    Raises:
        ValueError: the name is empty or registered, `runs_inline` is given without `in_process`, or `steps_inline`
            without `runs_inline`.
        TypeError: `load` is the class itself, or cannot be called without arguments.

    >>> from vecrl.engine import Pool
    >>> from vecrl.engine.backends.serial import SerialBackend
    >>> register_backend("mine", lambda: SerialBackend, in_process=True, runs_inline=True)
    >>> backend_entry("mine").default_workers
    1
    >>> unregister_backend("mine")
    """
    if runs_inline and not in_process:
        raise ValueError(f"Expected in_process=True together with runs_inline=True for the backend {name!r}.")
    if steps_inline and not runs_inline:
        raise ValueError(f"Expected runs_inline=True together with steps_inline=True for the backend {name!r}.")
    if isinstance(load, type) or not callable(load) or not _takes_no_arguments(load):
        raise TypeError(
            f"Expected load of the backend {name!r} to be a function without arguments that returns the class, got "
            f"{load!r:.80}. Give `lambda: TheClass`."
        )
    flags = in_process, runs_inline, takes_ray_options, takes_python, steps_inline
    _entries.add(name, BackendEntry(name, load, *flags), replace)


def _takes_no_arguments(function: Callable[..., object]) -> bool:
    try:
        signature(function).bind()
    except TypeError:
        return False
    return True


def unregister_backend(name: str) -> None:
    """Removes a backend from the registry. Pools that use it are not affected."""
    _entries.pop(name, None)


def backend_names() -> list[str]:
    """Returns the names of all backends: in the order of their registration, then those of installed distributions."""
    return list(_entries.names())


def backend_entry(name: object, *others: str) -> BackendEntry:
    """Returns the entry of a backend.

    Args:
        name: its name.
        others: further values that the caller's argument may have, for the message.

    Raises:
        ValueError: no backend of this name is registered.
        ImportError: the backend is that of an installed distribution, which cannot be imported.

    >>> backend_entry("threads").in_process
    True
    """
    entry = (_entries.get(name) or _entries.find(name)) if isinstance(name, str) else None
    if entry is None:
        *names, last = map(repr, (*_entries.names(), *others))
        raise ValueError(f"Expected backend to be {', '.join(names)} or {last}, got {name!r}.")
    return entry


# -- the backends of vecrl, each imported when a pool needs it ---------------------------------------


def _load_serial() -> MakeBackend:
    from .serial import SerialBackend

    return SerialBackend


def _load_threads() -> MakeBackend:
    from .threads import ThreadBackend

    return ThreadBackend


def _require_posix(backend: str) -> None:
    if not hasattr(os, "posix_spawn"):
        raise PlatformError(
            f"Expected Linux or macOS for backend={backend!r}, got {sys.platform}. Use 'serial' or 'threads', or run "
            "vecrl in WSL."
        )


def _load_processes() -> MakeBackend:
    _require_posix("processes")
    from .processes import ProcessBackend

    return ProcessBackend


def _load_ray() -> MakeBackend:
    _require_posix("ray")
    try:
        from .ray_cluster.backend import RayBackend
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise VersionError("backend='ray' needs Ray: pip install 'vecrl[ray]'.", name="ray") from error
    return RayBackend


register_backend("serial", _load_serial, in_process=True, runs_inline=True, steps_inline=True)
register_backend("threads", _load_threads, in_process=True)
register_backend("processes", _load_processes, takes_python=True)
register_backend("ray", _load_ray, takes_ray_options=True)
