"""`consolidate_spec`: gives all specs of a lazy stack the same keys. It knows Composites and their stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..errors import SpaceError
from .base import TensorSpec
from .bounded import Unbounded
from .composite import Composite
from .non_tensor import NonTensor
from .stacked import StackedComposite

S = TypeVar("S", bound=TensorSpec)


def consolidate_spec(spec: S, recurse_through_entries: bool = True, recurse_through_stack: bool = True) -> S:
    """Returns a copy in which all specs of a lazy stack have the same keys, so that no entry is exclusive.

    A missing entry becomes one of the same kind with sizes of 0. Entries without dimensions, and objects, are copied.

    Args:
        spec: the spec; a spec without lazy stacks is only copied.
        recurse_through_entries: whether to treat lazy stacks in the entries of Composites too.
        recurse_through_stack: whether to treat lazy stacks in the specs of a lazy stack too.

    >>> import torch
    >>> spec = torch.stack([Composite(a=Unbounded((3,))), Composite(a=Unbounded((4,)), b=Unbounded((2,)))])
    >>> consolidated = consolidate_spec(spec)
    >>> list(consolidated.keys()), consolidated[0]["b"].shape, list(spec.keys())
    (['a', 'b'], torch.Size([0]), ['a'])
    """
    copied = spec.clone()
    if isinstance(copied, StackedComposite):
        parts: list[Composite] = list(copied.specs)
        if recurse_through_stack:
            parts = [consolidate_spec(part, recurse_through_entries, True) for part in parts]
        _add_missing(parts)
        return type(copied)(*parts, dim=copied.dim)
    if isinstance(copied, Composite) and recurse_through_entries:
        for name, entry in list(copied.items()):
            if isinstance(entry, Composite):
                copied[name] = consolidate_spec(entry, True, recurse_through_stack)
    return copied


def _add_missing(parts: Sequence[Composite]) -> None:
    """Adds the entries that some Composites lack, in place."""
    names = dict.fromkeys(str(name) for part in parts for name in part.keys())  # noqa: SIM118 - a Composite is no dict
    for name in names:
        examples = [part[name] for part in parts if name in part.keys()]  # noqa: SIM118
        for part in parts:
            if name not in part.keys():  # noqa: SIM118
                part[name] = _empty_spec(examples[0], part.ndim)
        nested = [entry for part in parts if isinstance(entry := part[name], Composite)]
        if len(nested) == len(parts):
            _add_missing(nested)


def _empty_spec(spec: TensorSpec | None, batch_dims: int) -> TensorSpec | None:
    """Returns a spec of the same kind with sizes of 0 after the batch dimensions; None for None."""
    if spec is None:
        return None
    if isinstance(spec, Composite):
        entries = {str(name): _empty_spec(entry, batch_dims) for name, entry in spec.items()}
        return Composite(entries, shape=spec.shape[:batch_dims], device=spec.device)
    feature_dims = spec.ndim - batch_dims
    if feature_dims == 0 or isinstance(spec, NonTensor):
        return spec.clone()
    try:
        return spec[(slice(None),) * batch_dims + (slice(0, 0),) * feature_dims]
    except (SpaceError, IndexError):  # a dimension encodes one choice
        return Unbounded((*spec.shape[:batch_dims], *[0] * feature_dims), spec.device, spec.dtype)
