"""Defines `PoolOptions`, the record of all options of a pool, which checks them for every interface.

This module must not know which interface takes which options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

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
    """The options of a `Pool`, which describes them, as one record for the code that passes them on.

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

    @property
    def worker_options(self) -> WorkerOptions:
        """The options for the backend."""
        return WorkerOptions(**{field.name: getattr(self, field.name) for field in fields(WorkerOptions)})

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as keyword arguments of `Pool`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
