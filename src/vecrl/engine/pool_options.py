"""Defines `PoolOptions`, the record of all options of a pool, which documents and checks them for every interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from ..registries import check_name
from ..validation import check_choice, check_seconds, parse_count
from .backends.registry import BackendName, backend_entry
from .backends.worker_options import WorkerOptions
from .space_layout import AnySpace
from .worker import WorkerInfo

OnFailure = Literal["raise", "restart", "mask"]
Spaces = tuple[AnySpace, AnySpace]
"""An observation space and an action space."""


ResolveSpaces = Callable[[Sequence[WorkerInfo]], Spaces]
"""Returns, from the infos of all workers, the spaces for which batch buffers are laid out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions(WorkerOptions):
    """The options of a `Pool`. The interfaces above it take those that concern their users, under the same names.

    Attributes:
        backend: "serial" steps in the caller's thread, "threads" in threads of this process (for simulators that
            release the interpreter lock), "processes" in worker processes, "ray" in actors of a Ray cluster. Other
            names must be registered, see `register_backend`.
        infos: whether to return infos; if not, they cost nothing. "dicts": always as dicts, never as columns, so that
            numbers keep their types.
        check_nan: whether a NaN in an observation or a reward is a failure of its environment. Arrays are searched;
            parts of observations that are objects (of the spaces Text, Sequence, Graph and OneOf) are not.
        step_timeout: seconds that a reset, step or call may take before `StepTimeout` is raised, which names the
            environments that did not reply; None for no limit.
        on_failure: what happens to environments that raise, crash or time out. "raise" raises an error. "restart" ends
            their episodes as truncated, with `failed` and `error` in the info, and restarts them. "mask" ends their
            episodes in the same way and excludes them from then on: their rows do not change, see `Pool.alive`.
        restarts_per_hour: how many failures are handled in this way within an hour; any further failure is raised.
        start_method, threads_per_worker, preload, pin_workers, ray_options, python, wait: how workers are started and
            waited for, see `vecrl.engine.backends.worker_options.WorkerOptions`.
        same_spaces, same_actions: whether observation and action spaces must be equal; if not, only their memory
            layouts must be.
        resolve_spaces: if the spaces of the workers differ: returns the spaces for which the batch buffers are laid
            out, instead of this check. They are passed to each simulator that has `set_spaces`.
        env_id_offset: the number of the first environment in messages, if this pool has a part of the environments.

    Raises:
        ValueError: an option has no valid value.
    """

    backend: BackendName = "serial"
    infos: bool | Literal["dicts"] = True
    check_nan: bool = False
    step_timeout: float | None = None
    on_failure: OnFailure = "raise"
    restarts_per_hour: int = 100
    same_spaces: bool = True
    same_actions: bool = True
    resolve_spaces: ResolveSpaces | None = None
    env_id_offset: int = 0

    def __post_init__(self) -> None:
        WorkerOptions.__post_init__(self)  # `super()` does not work in dataclasses with slots
        check_seconds("step_timeout", self.step_timeout)
        check_choice("on_failure", self.on_failure, get_args(OnFailure))
        check_choice("check_nan", self.check_nan, (True, False))
        parse_count("restarts_per_hour", self.restarts_per_hour)
        backend_entry(self.backend)

    @classmethod
    def from_keywords(cls, **options: Any) -> PoolOptions:
        """Returns the options with these values.

        Raises:
            TypeError: there is no option of a name.
            ValueError: an option has no valid value.
        """
        names = [field.name for field in fields(cls)]
        for name in options:
            check_name("an option of workers", name, names, TypeError)
        return cls(**options)

    @property
    def worker_options(self) -> WorkerOptions:
        """The options for the backend."""
        return WorkerOptions(**{field.name: getattr(self, field.name) for field in fields(WorkerOptions)})

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as keyword arguments of `Pool`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
