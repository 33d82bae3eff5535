"""Helps to construct a pool: describes what failed, and checks that the spaces of all workers fit together.

It must not know rows or how commands are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium import Space

from ..errors import Failure, SpaceError, failures_to_error
from .space_layout import Layout
from .worker import WorkerInfo, WorkerSpec

Spaces = tuple[Space[Any], Space[Any]]
ResolveSpaces = Callable[[Sequence[WorkerInfo]], Spaces]
"""Returns, from the infos of all workers, the observation and action spaces for which batch buffers are laid out."""


def construction_error(failures: Sequence[Failure], env_id_offset: int) -> Exception:
    """Returns the error for failures during construction: a `SpaceError` if all of them are of this class.

    Args:
        failures: the failures.
        env_id_offset: the number of the first environment in messages.
    """
    if not all(isinstance(failure.exception, SpaceError) for failure in failures):
        return failures_to_error(failures)
    texts = [(f"environment {failure.env_ids[0] + env_id_offset}: ", str(failure.exception)) for failure in failures]
    prefix = "environment "  # in the text of a pool that runs in the worker
    return SpaceError("\n".join(text if text.startswith(prefix) else name + text for name, text in texts))


def check_worker_infos(
    infos: Mapping[int, WorkerInfo], worker_specs: Sequence[WorkerSpec], same_spaces: bool, same_actions: bool
) -> Spaces:
    """Checks that the spaces of all workers have equal layouts, or are equal, and returns those of the first worker.

    Raises:
        SpaceError: the spaces differ.
    """
    first_info = infos[0]
    for index, info in sorted(infos.items()):
        pairs = [("action_space", first_info.action_space, info.action_space, same_actions)]
        pairs.append(("observation_space", first_info.observation_space, info.observation_space, same_spaces))
        for name, expected, actual, equal in pairs:
            same_layout = Layout(expected).leaves == Layout(actual).leaves
            if not same_layout or (equal and expected != actual):
                raise SpaceError(
                    f"environment {worker_specs[index].start}: expected the {name} {expected}, as of the first "
                    f"environment, got {actual}. Use environments with the same spaces."
                )
    return first_info.observation_space, first_info.action_space
