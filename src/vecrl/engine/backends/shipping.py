"""How what makes a simulator gets to a worker process, and what the process should have imported before."""

from __future__ import annotations

import contextlib
import pickletools
import sys
from collections.abc import Iterator

import cloudpickle
import gymnasium

from ...errors import ShipError
from ..worker import Plan


def pickle_plan(plan: Plan) -> bytes:
    """A plan in bytes, by value where it must be.

    Raises:
        ShipError: where it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(plan)
    except Exception as error:
        raise ShipError(
            f"The factory of environments {plan.start} to {plan.start + plan.num_envs - 1} cannot be pickled, so no "
            f"worker process can have it: {type(error).__name__}: {error}. Make what cannot be pickled (locks, open "
            'files, windows, …) inside the factory, or use backend="threads".'
        ) from error


def modules_in(payload: bytes) -> set[str]:
    """The modules that a pickle refers to, as far as this process has imported them; for gymnasium's ids, theirs."""
    found: set[str] = set()
    for text in _texts_in(payload):
        found.update(name for name in text.split(" ")[:1] if name in sys.modules)
        spec = gymnasium.registry.get(text)
        if spec is not None and isinstance(spec.entry_point, str):
            found.add(spec.entry_point.partition(":")[0])
    return {name for name in found if name != "__main__" and not name.startswith("_")}


def pickle_specs(payload: bytes) -> bytes:
    """The registrations of the ids that a pickle names, for a worker in which nobody made them; not gymnasium's own."""
    specs = [gymnasium.registry[text] for text in set(_texts_in(payload)) if text in gymnasium.registry]
    foreign = [spec for spec in specs if not str(spec.entry_point).startswith("gymnasium.envs.")]
    try:
        return cloudpickle.dumps(foreign)
    except Exception:  # the worker says which id it lacks
        return cloudpickle.dumps([])


def _texts_in(payload: bytes) -> Iterator[str]:
    for _, text, _ in pickletools.genops(payload):
        if isinstance(text, str):
            yield text
        elif isinstance(text, bytes) and text[:1] == b"\x80":  # a pickle in a pickle: cloudpickle nests them
            with contextlib.suppress(ValueError):
                yield from _texts_in(text)
