"""Helps to construct a pool: describes what failed, and checks that the spaces of all workers fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import Failure, OutOfSpecError, SpaceError, failures_to_error, name_ids
from .pool_options import PoolOptions, Spaces
from .space_layout import Layout
from .worker import WorkerInfo, WorkerSpec


def construction_error(failures: Sequence[Failure], env_id_offset: int) -> Exception:
    """Returns the error for failures during construction: a `SpaceError` or `OutOfSpecError` if all of them are.

    Args:
        failures: the failures.
        env_id_offset: the number of the first environment in messages.
    """
    if not all(isinstance(failure.exception, SpaceError) for failure in failures):
        return failures_to_error(failures)
    ids_by_text: dict[str, list[int]] = {}
    for failure in failures:
        ids_by_text.setdefault(str(failure.exception), []).extend(i + env_id_offset for i in failure.env_ids)
    prefix = "environment "  # in the text of a pool that runs in the worker
    lines = [
        text if text.startswith(prefix) else f"{name_ids(sorted(ids))}: {text}" for text, ids in ids_by_text.items()
    ]
    cls = OutOfSpecError if all(isinstance(failure.exception, OutOfSpecError) for failure in failures) else SpaceError
    return cls("\n".join(lines))


def pool_spaces(infos: Mapping[int, WorkerInfo], worker_specs: Sequence[WorkerSpec], options: PoolOptions) -> Spaces:
    """Returns the spaces for which batch buffers are laid out, from what each worker reports about itself.

    They are those that `options.resolve_spaces` returns. Without it, they are those of the first worker, and the spaces
    of all workers must be equal, or have equal layouts if the options do not ask for equal spaces.

    Raises:
        OutOfSpecError: the spaces differ.
    """
    if options.resolve_spaces is not None:
        return options.resolve_spaces([info for _, info in sorted(infos.items())])
    first_info = infos[0]
    for index, info in sorted(infos.items()):
        pairs = [("action_space", first_info.action_space, info.action_space, options.same_actions)]
        pairs.append(("observation_space", first_info.observation_space, info.observation_space, options.same_spaces))
        for name, expected, actual, equal in pairs:
            same_layout = Layout(expected).leaves == Layout(actual).leaves
            if not same_layout or (equal and expected != actual):
                raise OutOfSpecError(
                    f"environment {worker_specs[index].start}: expected the {name} {expected}, as of the first "
                    f"environment, got {actual}. Use environments with the same spaces."
                )
    return first_info.observation_space, first_info.action_space


def check_distinct_envs(infos: Sequence[WorkerInfo], worker_specs: Sequence[WorkerSpec]) -> None:
    """Raises a `SpaceError` if two rows have one environment, which both would step.

    Args:
        infos: what each worker reports about itself.
        worker_specs: the arguments of the workers.
    """
    first_rows: dict[tuple[int, int], int] = {}
    rows = [
        (row, (info.pid, key))
        for spec, info in zip(worker_specs, infos, strict=True)
        for row, key in zip(spec.ids, info.env_ids, strict=False)  # a simulator may have no objects
    ]
    for row, key in rows:
        if (first := first_rows.setdefault(key, row)) != row:
            raise SpaceError(
                f"environment {row}: Expected functions that make a new environment at each call, got the environment "
                f"{first} again, so that both rows would step it. Make it inside of the function: "
                "`lambda: gymnasium.make(...)` instead of `lambda: env`."
            )
