"""Transforms over batches whose environments differ: what is told where one cannot take rows of unlike shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import SpaceError, VecrlError
from ...specs import Composite, Stacked, StackedComposite


@contextmanager
def heterogeneous_errors(transform: Any, specs: Composite) -> Iterator[None]:
    """While a transform sees rows that differ, as `specs` say that they do, its errors are those of this module.

    Raises:
        SpaceError: what it does is not done to such rows.
    """
    try:
        yield
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        if isinstance(error, VecrlError) or not is_heterogeneous(specs):
            raise
        raise SpaceError(
            f"Expected environments that are alike, since {transform!r:.120} takes rows of one shape, but those of "
            "this batch differ. Transform each of them instead: SerialEnv(n, lambda: TransformedEnv(make(), ...))."
        ) from error


def is_heterogeneous(spec: Any) -> bool:
    """Whether rows differ anywhere."""
    if isinstance(spec, Composite) and not isinstance(spec, StackedComposite):
        return any(is_heterogeneous(sub_spec) for sub_spec in spec._entries().values())
    return isinstance(spec, Stacked | StackedComposite)
