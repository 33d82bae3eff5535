"""Clips values, and finds the specs of monotonic functions from their bounds. It must not know transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...specs import Bounded, TensorSpec, Unbounded

Numbers = Tensor | np.ndarray | Sequence[float] | float
"""What `torch.as_tensor` takes."""


def clip_to(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Returns values clipped to [low, high], in their dtype, or in torch's default one if theirs cannot hold them."""
    if not (value.dtype.is_floating_point or _can_represent(value.dtype, low, high)):
        value = value.to(torch.get_default_dtype())
    elif not (value.dtype.is_floating_point or value.dtype is torch.bool):
        low, high = _clamp_to_dtype(low, value.dtype), _clamp_to_dtype(high, value.dtype)
    return torch.maximum(torch.minimum(value, high), low).to(value.dtype)


def _can_represent(dtype: torch.dtype, low: Tensor, high: Tensor) -> bool:
    """Returns whether an integer or bool dtype can represent its values clipped to [low, high]."""
    minimum, maximum = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    is_integer = all(bool((bound == bound.round()).all()) for bound in (low, high))
    return is_integer and bool((low <= maximum).all()) and bool((high >= minimum).all())


def _clamp_to_dtype(bound: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the integer bounds clamped to the range of an integer dtype, in that dtype."""
    limits = torch.iinfo(dtype)
    clamped = (bound.double() if bound.is_floating_point() else bound).clamp(limits.min, limits.max)
    return torch.where(clamped >= limits.max, limits.max, clamped.to(dtype))


def map_bounds(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Returns the spec of a monotonic function of values of `spec`. The function is applied to the bounds."""
    zero = spec.zero()
    value = function(zero)
    shape = spec.shape if value.shape == zero.shape else value.shape
    if not isinstance(spec, Bounded):
        return Unbounded(shape, dtype=value.dtype, device=spec.device)
    mapped_bounds = [function(bound) for bound in (spec.low, spec.high)]
    low, high = (
        bound.nan_to_num(fill, posinf=torch.inf, neginf=-torch.inf)
        for bound, fill in ((torch.minimum(*mapped_bounds), -torch.inf), (torch.maximum(*mapped_bounds), torch.inf))
    )
    return Bounded(low, high, shape, dtype=value.dtype, device=spec.device)


def clip_bounds_of(
    spec: TensorSpec, function: Callable[[Tensor], Tensor], low: Tensor | float, high: Tensor | float
) -> TensorSpec:
    """Returns the spec of a monotonic function of values of `spec` with results in [low, high]."""
    if isinstance(spec, Bounded):
        return map_bounds(spec, function)
    value = function(spec.zero())
    if not (value.dtype.is_floating_point or value.dtype is torch.bool):  # integers have no infinite bounds
        limits = torch.iinfo(value.dtype)
        low, high = (function(torch.full_like(value, bound)) for bound in (limits.min, limits.max))
    return Bounded(low, high, spec.shape, dtype=value.dtype, device=spec.device)
