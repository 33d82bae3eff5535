"""How what makes a simulator gets to a worker process, and what the process should have imported before."""

from __future__ import annotations

import contextlib
import pickletools
import sys

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
    for _, text, _ in pickletools.genops(payload):
        if isinstance(text, str):
            found.update(name for name in text.split(" ")[:1] if name in sys.modules)
            spec = gymnasium.registry.get(text)
            if spec is not None and isinstance(spec.entry_point, str):
                found.add(spec.entry_point.partition(":")[0])
        elif isinstance(text, bytes) and text[:1] == b"\x80":  # a pickle in a pickle: cloudpickle nests them
            with contextlib.suppress(ValueError):
                found |= modules_in(text)
    return {name for name in found if name != "__main__" and not name.startswith("_")}
