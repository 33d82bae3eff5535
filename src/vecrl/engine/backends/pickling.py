"""Pickles worker specs for worker processes, and finds the modules to import before a process is forked.

It must not know how the bytes are sent.
"""

from __future__ import annotations

import contextlib
import pickletools
import sys
from collections.abc import Iterator

import cloudpickle
import gymnasium

from ...errors import SerializationError, name_ids
from ..worker import WorkerSpec


def pickle_worker_spec(worker_spec: WorkerSpec) -> bytes:
    """Pickles a worker spec with cloudpickle: objects of `__main__` by value.

    Raises:
        SerializationError: it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(worker_spec)
    except Exception as error:
        raise SerializationError(
            f"Expected a factory of {name_ids(worker_spec.ids)} that can be pickled and sent to a worker process, got "
            f"{type(error).__name__}: {error}. Make objects that cannot be pickled (locks, open files, windows, …) "
            'inside the factory, or use backend="threads".'
        ) from error


def modules_in(payload: bytes) -> set[str]:
    """Returns the imported modules that a pickle refers to, and the modules of gymnasium ids in it."""
    names: set[str] = set()
    for text in _texts_in(payload):
        names.update(name for name in text.split(" ")[:1] if name in sys.modules)
        spec = gymnasium.registry.get(text)
        if spec is not None and isinstance(spec.entry_point, str):
            names.add(spec.entry_point.partition(":")[0])
    return {name for name in names if name != "__main__" and not name.startswith("_")}


def pickle_specs(payload: bytes) -> bytes:
    """Pickles the gymnasium registrations of the ids in a pickle, except gymnasium's own ids.

    A worker process needs them, because the code that registered these ids may not run there.
    """
    specs = [gymnasium.registry[text] for text in set(_texts_in(payload)) if text in gymnasium.registry]
    custom_specs = [spec for spec in specs if not str(spec.entry_point).startswith("gymnasium.envs.")]
    try:
        return cloudpickle.dumps(custom_specs)
    except Exception:  # the worker then reports the missing id
        return cloudpickle.dumps([])


def _texts_in(payload: bytes) -> Iterator[str]:
    for _, text, _ in pickletools.genops(payload):
        if isinstance(text, str):
            yield text
        elif isinstance(text, bytes) and text[:1] == b"\x80":  # a pickle inside the pickle, as cloudpickle makes
            with contextlib.suppress(ValueError):
                yield from _texts_in(text)
