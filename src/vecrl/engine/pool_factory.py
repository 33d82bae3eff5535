"""How a pool comes to be: its backend, and whether what its workers say of themselves fits together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gymnasium import Space

from ..errors import Failure, SpaceError, VersionError, failures_to_error
from .backends.base import Backend
from .backends.processes import ProcessBackend, StartMethod
from .backends.ray_cluster.options import RayOptions
from .backends.serial import SerialBackend
from .backends.threads import ThreadBackend
from .space_layout import Layout
from .worker import WorkerInfo, WorkerSpec

if TYPE_CHECKING:
    from .backends.ray_cluster.backend import RayBackend

BackendName = Literal["serial", "threads", "processes", "ray"]
Spaces = tuple[Space[Any], Space[Any]]
ResolveSpaces = Callable[[Sequence[WorkerInfo]], Spaces]
"""Of what all workers say of themselves: the spaces of observations and of actions that the arena is laid out for."""


def make_backend(
    name: str,
    worker_specs: Sequence[WorkerSpec],
    start_method: StartMethod,
    num_threads: int,
    preload: Sequence[str],
    pin_workers: bool,
    ray_options: RayOptions | None = None,
) -> Backend:
    """The backend of that name, which begins to construct what the plans say.

    Raises:
        ValueError: an unknown name, or options for Ray without it.
        VersionError: Ray is wanted and is not installed.
    """
    if ray_options is not None and name != "ray":
        raise ValueError(f"Expected backend='ray' beside ray_options, but backend={name!r} came.")
    if name == "serial":
        return SerialBackend(worker_specs)
    if name == "threads":
        return ThreadBackend(worker_specs)
    if name == "processes":
        return ProcessBackend(worker_specs, start_method, num_threads, preload, pin_workers)
    if name == "ray":
        return _ray_class()(worker_specs, num_threads, ray_options)
    raise ValueError(f"Expected backend to be 'serial', 'threads', 'processes' or 'ray', but {name!r} came.")


def _ray_class() -> type[RayBackend]:
    """The backend that needs Ray, which is imported for it alone."""
    try:
        from .backends.ray_cluster.backend import RayBackend
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise VersionError("backend='ray' needs Ray: pip install 'vecrl[ray]'.", name="ray") from error
    return RayBackend


def construction_error(failures: Sequence[Failure], env_id_offset: int) -> Exception:
    """A `SpaceError` where spaces that differ are all that went wrong; `first` is what the first one is called."""
    if not all(isinstance(failure.exception, SpaceError) for failure in failures):
        return failures_to_error(failures)
    texts = [(f"environment {failure.env_ids[0] + env_id_offset}: ", str(failure.exception)) for failure in failures]
    prefix = "environment "  # by a pool within the worker
    return SpaceError("\n".join(text if text.startswith(prefix) else name + text for name, text in texts))


def check_worker_infos(
    infos: Mapping[int, WorkerInfo], worker_specs: Sequence[WorkerSpec], same_spaces: bool, same_actions: bool
) -> Spaces:
    """See that all workers' spaces are equal, or at least lie in memory alike; those of the first worker.

    Raises:
        SpaceError: they do not.
    """
    first_info = infos[0]
    for index, info in sorted(infos.items()):
        pairs = [("action_space", first_info.action_space, info.action_space, same_actions)]
        pairs.append(("observation_space", first_info.observation_space, info.observation_space, same_spaces))
        for name, expected, actual, equal in pairs:
            same_layout = Layout(expected).leaves == Layout(actual).leaves
            if not same_layout or (equal and expected != actual):
                raise SpaceError(
                    f"environment {worker_specs[index].start}: its {name} is {actual}, but environments of one vector "
                    f"must have "
                    f"the same, here {expected}."
                )
    return first_info.observation_space, first_info.action_space
