"""Errors of transforms that cannot handle batches with rows of different shapes. It must not know single transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tensordict import TensorDictBase
from torch import nn

from ...errors import SpaceError, VecrlError
from ...specs import Composite, Stacked, StackedComposite, TensorSpec

Hook = Callable[[TensorDictBase, TensorDictBase], TensorDictBase]


@contextmanager
def heterogeneous_errors(transform: nn.Module, specs: Composite) -> Iterator[None]:
    """Replaces errors of a transform by a `SpaceError` if `specs` are heterogeneous. Used as a context manager.

    Raises:
        SpaceError: the transform failed on rows with different shapes.
    """
    try:
        yield
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        if isinstance(error, VecrlError) or not is_heterogeneous(specs):
            raise
        expected = f"since {transform!r:.120} needs rows of one shape, got"
        if _has_unlike_environments(specs):
            raise SpaceError(
                f"Expected environments with equal specs, {expected} a batch of different ones. Transform each "
                "environment instead: SerialEnv(n, lambda: TransformedEnv(make(), ...))."
            ) from error
        raise SpaceError(
            f"Expected agents with equal specs, {expected} agents of different ones. Transform entries of one "
            "shape, or change the others in the environment."
        ) from error


def with_heterogeneous_errors(hook: Hook, transform: nn.Module, specs: Composite) -> Hook:
    """Returns a hook of a transform with errors as of `heterogeneous_errors`; `hook` itself if `specs` are equal."""
    if not is_heterogeneous(specs):
        return hook

    def checked_hook(input_td: TensorDictBase, output_td: TensorDictBase) -> TensorDictBase:
        with heterogeneous_errors(transform, specs):
            return hook(input_td, output_td)

    return checked_hook


def _has_unlike_environments(specs: Composite) -> bool:
    """Returns whether the rows of a batch have different specs; otherwise it is those of agents that differ."""
    groups: list[Any] = list(specs.values())
    return any(isinstance(full_spec, StackedComposite) for group in groups for full_spec in group.values())


def is_heterogeneous(spec: TensorSpec | None) -> bool:
    """Returns whether any entry of a spec has different specs by row."""
    if isinstance(spec, Composite) and not isinstance(spec, StackedComposite):
        return any(is_heterogeneous(sub_spec) for sub_spec in spec.values())
    return isinstance(spec, Stacked | StackedComposite)
