"""Keeps modules that are imported for workers from starting workers themselves, each of which would start others."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

_importing = False  # whether this process imports modules for workers


@contextlib.contextmanager
def importing() -> Generator[None]:
    """A context in which modules are imported for workers, so that they must not start workers themselves."""
    global _importing
    _importing = True
    try:
        yield
    finally:
        _importing = False


def check_not_importing() -> None:
    """Raises a RuntimeError within `importing`, in which each worker would start others, without end."""
    if _importing:
        raise RuntimeError(
            "Expected the import of a module for workers to start no worker processes, got one that does. Start them "
            'under `if __name__ == "__main__":`.'
        )
