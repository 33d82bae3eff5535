"""Errors of transforms that cannot handle batches with rows of different shapes. It must not know single transforms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import SpaceError, VecrlError
from ...specs import Composite, Stacked, StackedComposite


@contextmanager
def heterogeneous_errors(transform: Any, specs: Composite) -> Iterator[None]:
    """Replaces errors of a transform by a `SpaceError` if `specs` are heterogeneous. Used as a context manager.

    Raises:
        SpaceError: the transform failed on rows with different shapes.
    """
    try:
        yield
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        if isinstance(error, VecrlError) or not is_heterogeneous(specs):
            raise
        raise SpaceError(
            f"Expected environments with equal specs, since {transform!r:.120} needs rows of one shape, got a batch of "
            "different ones. Transform each environment instead: SerialEnv(n, lambda: TransformedEnv(make(), ...))."
        ) from error


def is_heterogeneous(spec: Any) -> bool:
    """Returns whether any entry of a spec has different specs by row."""
    if isinstance(spec, Composite) and not isinstance(spec, StackedComposite):
        return any(is_heterogeneous(sub_spec) for sub_spec in spec.values())
    return isinstance(spec, Stacked | StackedComposite)
