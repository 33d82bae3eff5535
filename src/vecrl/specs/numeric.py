"""Specs of numbers: `Bounded` between two bounds, `Unbounded` over the whole range of the dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ..errors import SpaceError
from ..validation import check_choice
from .base import Device, Leaf, as_device
from .domains import Anything, Interval, bound_to_tensor
from .dtypes import as_dtype, dtype_limits, is_integral, to_comparable
from .shape_ops import ShapeLike, as_size, concrete


@dataclass(slots=True, eq=False)
class ContinuousBox:
    """The bounds of a numeric spec, inclusive. Those of a `Bounded` may be written to or set, which changes the spec.

    Attributes:
        low, high: tensors of the spec's shape (dynamic dimensions have size 1).
    """

    low: Tensor
    high: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield self.low
        yield self.high


class FixedBox(ContinuousBox):
    """The limits of a spec without bounds of its own, which cannot be set."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise SpaceError(f"Expected a Bounded spec for a new {name!r}, got an Unbounded. Make a Bounded.")
        ContinuousBox.__setattr__(self, name, value)


def _kind_of(dtype: torch.dtype) -> str:
    return "discrete" if is_integral(dtype) else "continuous"


def _parse_domain(domain: str | None, dtype: torch.dtype) -> str:
    """Returns a domain; that of the dtype for None."""
    if domain is None:
        return _kind_of(dtype)
    check_choice("domain", domain, ("discrete", "continuous"))
    return domain


class Bounded(Leaf):
    """Numbers between `low` and `high`, both included.

    Integers are sampled uniformly, and floats too if both bounds are finite. As in gymnasium, floats with one finite
    bound are sampled from an exponential distribution that starts there, and floats without one from a normal
    distribution. (TorchRL samples infinities and NaN in these cases.)

    Args:
        low, high: numbers, arrays or tensors that broadcast to `shape`; infinite for no bound. Bounds of integers are
            truncated toward 0, as torch casts values. A number that is too large for a float dtype becomes infinite.
        shape: of a value. Defaults to the common shape of the bounds, one of which must then have dimensions.
        device: None for torch's default device.
        dtype: None for torch's default dtype. Bounds of uint64 are at most 2**63 - 1.

    The bounds are copied. `space.low` and `space.high` may be written to or set, which changes this spec and no other.

    Raises:
        SpaceError: a bound or the shape is missing, the bounds do not broadcast to it, a `low` is above its `high`, or
            a bound is NaN or outside the range of an integer dtype; for bounds that were changed, at the next use of
            the spec.

    >>> spec = Bounded(low=-1, high=1, shape=(2, 3))
    >>> spec.is_in(spec.rand()), spec.project(torch.full((2, 3), 7.0)).max()
    (True, tensor(1.))
    >>> Bounded(0, 255, (4,), dtype=torch.uint8).domain
    'discrete'
    """

    dtype: torch.dtype  # pyright: ignore[reportIncompatibleVariableOverride]
    _domain: Interval
    _space: ContinuousBox | None = None
    """The record that `space` has returned. Its tensors may have been written to since."""

    def __init__(
        self,
        low: object = None,
        high: object = None,
        shape: ShapeLike | None = None,
        device: Device = None,
        dtype: torch.dtype | str | None = None,
        *,
        domain: str | None = None,
    ):
        if low is None or high is None:
            raise SpaceError(f"Expected two bounds, got low={low} and high={high}. Use Unbounded for none.")
        bounds = bound_to_tensor(low), bound_to_tensor(high)
        if shape is None and bounds[0].ndim == bounds[1].ndim == 0:
            raise SpaceError("Expected a shape, got scalar bounds only. Give shape=() for a scalar.")
        try:
            shape = torch.broadcast_shapes(*(b.shape for b in bounds)) if shape is None else as_size(shape)
        except RuntimeError as error:
            raise SpaceError(f"Expected bounds that broadcast to one shape: {error}") from error
        dtype, device = as_dtype(dtype), as_device(device)
        super().__init__(shape, device, dtype, Interval.of(*bounds, shape, dtype, device))
        self.domain = _parse_domain(domain, dtype)

    def _current_domain(self) -> Interval:
        """Returns the interval; that of `space` if it was edited."""
        space, interval = self._space, self._domain
        if space is None or (self._has_value(space.low, interval.low) and self._has_value(space.high, interval.high)):
            return interval
        assert self.device is not None
        self._domain = interval = Interval.of(space.low, space.high, self.shape, self.dtype, self.device)
        if not self._is_own(space.low):
            space.low = self._to_own(interval.low)
        if not self._is_own(space.high):
            space.high = self._to_own(interval.high)
        return interval

    def _is_own(self, bound: object) -> bool:
        """Whether a bound that a user may have set is a tensor of the spec's dtype, shape and device."""
        form = (self.dtype, concrete(self.shape), self.device)
        return isinstance(bound, Tensor) and (bound.dtype, bound.shape, bound.device) == form

    def _has_value(self, bound: Tensor, used: Tensor) -> bool:
        return self._is_own(bound) and (bound.is_meta or torch.equal(to_comparable(bound), used))

    def _to_own(self, bound: Tensor) -> Tensor:
        """Returns a copy in the spec's dtype, of which each element can be written to."""
        return bound.to(self.dtype).clone(memory_format=torch.contiguous_format)

    @property
    def low(self) -> Tensor:
        """The same as `space.low`."""
        return self.space.low

    @property
    def high(self) -> Tensor:
        """The same as `space.high`."""
        return self.space.high

    @property
    def is_finite(self) -> bool:
        """Whether all bounds are finite."""
        return self._current_domain().is_finite

    @property
    def space(self) -> ContinuousBox:
        """The bounds, of the spec's shape (dynamic dimensions have size 1). They may be written to or set."""
        if self._space is None:
            self._space = ContinuousBox(self._to_own(self._domain.low), self._to_own(self._domain.high))
        return self._space

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_domain": self._current_domain(), "_space": None}  # copies have bounds of their own

    def _replace(self, **changes: object) -> Self:
        return super()._replace(**{"_domain": self._current_domain(), "_space": None, **changes})

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        if isinstance(dest, torch.device):
            return super()._convert(dest)
        low, high = self._current_domain().low, self._current_domain().high
        return type(self)(low=low, high=high, shape=self.shape, device=self.device, dtype=dest)


class BoundedContinuous(Bounded):
    """`Bounded` under TorchRL's name for the spec of floats; equal to a `Bounded`."""


class Unbounded(Leaf):
    """Any number of the dtype.

    Floats are sampled from a normal distribution, integers uniformly from the range of the dtype. NaN and infinities
    are in the spec too.

    Args:
        shape: of a value.
        device: None for torch's default device.
        dtype: None for torch's default dtype.

    >>> Unbounded((3,), dtype=torch.int64).zero()
    tensor([0, 0, 0])
    """

    dtype: torch.dtype  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        shape: ShapeLike = torch.Size([1]),  # noqa: B008
        device: Device = None,
        dtype: torch.dtype | str | None = None,
        *,
        domain: str | None = None,
    ):
        super().__init__(shape, device, dtype, Anything())
        self.domain = _parse_domain(domain, self.dtype)

    @property
    def space(self) -> ContinuousBox:
        """The limits of the dtype, as copies. They cannot be set: use `Bounded` for bounds."""
        extremes = (torch.tensor(end, dtype=self.dtype, device=self.device) for end in dtype_limits(self.dtype))
        return FixedBox(*(end.expand(concrete(self.shape)).clone() for end in extremes))

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        spec = super()._convert(dest)
        return spec if isinstance(dest, torch.device) else spec._replace(domain=_kind_of(dest))


class UnboundedContinuous(Unbounded):
    """`Unbounded` under TorchRL's name for the spec of floats; equal to an `Unbounded`."""


class UnboundedDiscrete(Unbounded):
    """`Unbounded` with the default dtype int64; equal to `Unbounded(shape, dtype=torch.int64)`."""

    def __init__(
        self,
        shape: ShapeLike = torch.Size([1]),  # noqa: B008
        device: Device = None,
        dtype: torch.dtype | str | None = torch.int64,
        *,
        domain: str | None = None,
    ):
        super().__init__(shape, device, dtype, domain=domain)
