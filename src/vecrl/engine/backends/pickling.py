"""How what makes a simulator gets to a worker process, and what the process should have imported before."""

from __future__ import annotations

import contextlib
import pickletools
import sys
from collections.abc import Iterator

import cloudpickle
import gymnasium

from ...errors import SerializationError
from ..worker import WorkerSpec


def pickle_plan(worker_spec: WorkerSpec) -> bytes:
    """A plan in bytes, by value where it must be.

    Raises:
        SerializationError: where it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(worker_spec)
    except Exception as error:
        raise SerializationError(
            f"The factory of environments {worker_spec.start} to {worker_spec.start + worker_spec.num_envs - 1} cannot "
            f"be pickled, so no "
            f"worker process can have it: {type(error).__name__}: {error}. Make what cannot be pickled (locks, open "
            'files, windows, …) inside the factory, or use backend="threads".'
        ) from error


def modules_in(payload: bytes) -> set[str]:
    """The modules that a pickle refers to, as far as this process has imported them; for gymnasium's ids, theirs."""
    names: set[str] = set()
    for text in _texts_in(payload):
        names.update(name for name in text.split(" ")[:1] if name in sys.modules)
        spec = gymnasium.registry.get(text)
        if spec is not None and isinstance(spec.entry_point, str):
            names.add(spec.entry_point.partition(":")[0])
    return {name for name in names if name != "__main__" and not name.startswith("_")}


def pickle_specs(payload: bytes) -> bytes:
    """The registrations of the ids that a pickle names, for a worker in which nobody made them; not gymnasium's own."""
    specs = [gymnasium.registry[text] for text in set(_texts_in(payload)) if text in gymnasium.registry]
    custom_specs = [spec for spec in specs if not str(spec.entry_point).startswith("gymnasium.envs.")]
    try:
        return cloudpickle.dumps(custom_specs)
    except Exception:  # the worker says which id it lacks
        return cloudpickle.dumps([])


def _texts_in(payload: bytes) -> Iterator[str]:
    for _, text, _ in pickletools.genops(payload):
        if isinstance(text, str):
            yield text
        elif isinstance(text, bytes) and text[:1] == b"\x80":  # a pickle in a pickle: cloudpickle nests them
            with contextlib.suppress(ValueError):
                yield from _texts_in(text)
