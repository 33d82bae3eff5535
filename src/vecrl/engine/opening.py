"""How a pool comes to be: its backend, and whether what its workers say of themselves fits together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gymnasium import Space

from ..errors import Failure, SpaceError, VersionError, failures_to_error
from .backends.base import Backend
from .backends.cluster import RayOptions
from .backends.processes import Processes, StartMethod
from .backends.serial import Serial
from .backends.threads import Threads
from .layout import Layout
from .worker import Card, Plan

if TYPE_CHECKING:
    from .backends.actors import Actors

BackendName = Literal["serial", "threads", "processes", "ray"]
Spaces = tuple[Space[Any], Space[Any]]
Agree = Callable[[Sequence[Card]], Spaces]
"""Of what all workers say of themselves: the spaces of observations and of actions that the arena is laid out for."""


def make_backend(
    name: str,
    plans: Sequence[Plan],
    start: StartMethod,
    threads: int,
    preload: Sequence[str],
    pin: bool,
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
        return Serial(plans)
    if name == "threads":
        return Threads(plans)
    if name == "processes":
        return Processes(plans, start, threads, preload, pin)
    if name == "ray":
        return _ray_class()(plans, threads, ray_options)
    raise ValueError(f"Expected backend to be 'serial', 'threads', 'processes' or 'ray', but {name!r} came.")


def _ray_class() -> type[Actors]:
    """The backend that needs Ray, which is imported for it alone."""
    try:
        from .backends.actors import Actors
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise VersionError("backend='ray' needs Ray: pip install 'vecrl[ray]'.", name="ray") from error
    return Actors


def construction_error(failures: Sequence[Failure], first: int) -> Exception:
    """A `SpaceError` where spaces that differ are all that went wrong; `first` is what the first one is called."""
    if not all(isinstance(failure.exception, SpaceError) for failure in failures):
        return failures_to_error(failures)
    texts = [(f"environment {failure.env_ids[0] + first}: ", str(failure.exception)) for failure in failures]
    named = "environment "  # by a pool within the worker
    return SpaceError("\n".join(text if text.startswith(named) else name + text for name, text in texts))


def check_cards(cards: Mapping[int, Card], plans: Sequence[Plan], same_spaces: bool, same_actions: bool) -> Spaces:
    """See that all workers' spaces are equal, or at least lie in memory alike; those of the first worker.

    Raises:
        SpaceError: they do not.
    """
    first = cards[0]
    for index, card in sorted(cards.items()):
        pairs = [("action_space", first.action_space, card.action_space, same_actions)]
        pairs.append(("observation_space", first.observation_space, card.observation_space, same_spaces))
        for name, expected, came, equal in pairs:
            alike = Layout(expected).leaves == Layout(came).leaves
            if not alike or (equal and expected != came):
                raise SpaceError(
                    f"environment {plans[index].start}: its {name} is {came}, but environments of one vector must have "
                    f"the same, here {expected}."
                )
    return first.observation_space, first.action_space
