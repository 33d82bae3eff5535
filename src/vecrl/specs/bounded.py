"""Specs of numbers: `Bounded` between two bounds, `Unbounded` over the whole range of the dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeGuard

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from .base import Device, TensorSpec, as_device, as_dtype
from .shape_ops import ShapeLike, as_size, concrete
from .space_records import ContinuousBox, FixedBox

# torch can neither compare, draw nor pickle tensors of these dtypes
_UNSUPPORTED_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_INT64_MAX_FLOAT = 2.0**63 - 1024  # the largest float64 that int64 can hold


def _domain_of(dtype: torch.dtype) -> str:
    return "continuous" if dtype.is_floating_point or dtype.is_complex else "discrete"


def _to_comparable(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int64) if tensor.dtype in _UNSUPPORTED_UNSIGNED else tensor


def dtype_limits(dtype: torch.dtype) -> tuple[Any, Any]:
    """Returns the least and greatest finite number of a dtype, limited to the range of int64."""
    if dtype == torch.bool:
        return False, True
    if dtype.is_floating_point or dtype.is_complex:
        info = torch.finfo(dtype)
        return info.min, info.max
    return torch.iinfo(dtype).min, min(torch.iinfo(dtype).max, 2**63 - 1)


class _Bounds(NamedTuple):
    """The bounds of a `Bounded` as they are used. The tensors are never written to, so they may be expanded views."""

    low: Tensor
    high: Tensor
    scalars: tuple[float, float] | None
    """The bounds as two numbers if all elements have the same."""
    finite: bool

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> _Bounds:
        if low.is_meta or not low.numel():
            return cls(low, high, None, True)
        first_low, first_high = low.reshape(-1)[0], high.reshape(-1)[0]
        uniform = bool((low == first_low).all() and (high == first_high).all())
        scalars = (first_low.item(), first_high.item()) if uniform else None
        return cls(low, high, scalars, bool((low.isfinite() & high.isfinite()).all()))

    def map(self, function: Callable[[Tensor], Tensor]) -> _Bounds:
        low, high = function(self.low), function(self.high)
        is_uniform = self.scalars is not None and low.numel() and not low.is_meta
        return self._replace(low=low, high=high) if is_uniform else _Bounds.of(low, high)


class Bounded(TensorSpec):
    """Numbers between `low` and `high`, both included.

    Integers are drawn uniformly, and floats too if both bounds are finite. As in gymnasium, floats with one finite
    bound are drawn from an exponential distribution that starts there, and floats without one from a normal
    distribution. (TorchRL draws infinities and NaN in these cases.)

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

    _kind = "Bounded"
    _fields = ("shape", "device", "dtype", "domain", "_low", "_high")
    _tensors = ("_low", "_high")
    dtype: torch.dtype
    _bounds: _Bounds
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
        self.dtype = as_dtype(dtype)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.device = as_device(device)
        self.domain = domain or _domain_of(self.dtype)
        bounds = _bound_to_tensor(low), _bound_to_tensor(high)
        if shape is None and bounds[0].ndim == bounds[1].ndim == 0:
            raise SpaceError("Expected a shape, got scalar bounds only. Give shape=() for a scalar.")
        try:
            self.shape = torch.broadcast_shapes(*(b.shape for b in bounds)) if shape is None else as_size(shape)
        except RuntimeError as error:
            raise SpaceError(f"Expected bounds that broadcast to one shape: {error}") from error
        self._bounds = self._checked(*bounds)

    def _checked(self, *bounds: Tensor) -> _Bounds:
        """Returns copies of the bounds in the spec's shape, dtype and device."""
        converted = [self._to_dtype(bound) for bound in bounds]
        try:
            low, high = (bound.expand(concrete(self.shape)) for bound in converted)
        except RuntimeError as error:
            raise SpaceError(f"Expected bounds that broadcast to one shape: {error}") from error
        if not low.is_meta and bool((low > high).any()):
            raise SpaceError("Expected low <= high for every element, got a lower bound above its upper bound.")
        return _Bounds.of(low, high)

    def _current(self) -> _Bounds:
        """Returns the bounds; those of `space` if it was edited."""
        space = self._space
        if space is None or all(map(self._has_value, space, self._bounds[:2])):
            return self._bounds
        self._bounds = low, high, *_ = self._checked(*map(_bound_to_tensor, space))
        if not self._is_own(space.low, low):
            space.low = self._to_own(low)
        if not self._is_own(space.high, high):
            space.high = self._to_own(high)
        return self._bounds

    def _is_own(self, bound: object, used: Tensor) -> TypeGuard[Tensor]:
        """Whether a bound that a user may have set has the spec's dtype, shape and device."""
        if not isinstance(bound, Tensor):
            return False
        return (bound.dtype, bound.shape, bound.device) == (self.dtype, used.shape, used.device)

    def _has_value(self, bound: object, used: Tensor) -> bool:
        return self._is_own(bound, used) and (bound.is_meta or torch.equal(_to_comparable(bound), used))

    def _to_own(self, bound: Tensor) -> Tensor:
        """Returns a copy in the spec's dtype, of which each element can be written to."""
        return bound.to(self.dtype).clone(memory_format=torch.contiguous_format)

    def _to_dtype(self, bound: Tensor) -> Tensor:
        bound = _to_signed(bound)
        self._check_bound(bound)
        if bound.is_floating_point() and not (self.dtype.is_floating_point or self.dtype.is_complex):
            lowest, highest = dtype_limits(self.dtype)
            bound = bound.double().nan_to_num(nan=0.0, posinf=float(highest), neginf=float(lowest))
            integers = torch.where(bound >= float(highest), highest, bound.clamp(max=_INT64_MAX_FLOAT).to(torch.int64))
            bound = torch.where(bound <= float(lowest), torch.as_tensor(lowest), integers)
        dtype = torch.int64 if self.dtype in _UNSUPPORTED_UNSIGNED else self.dtype
        return bound.to(device=self.device, dtype=dtype, copy=True)

    def _check_bound(self, bound: Tensor) -> None:
        """Raises a `SpaceError` if the bound is NaN, or outside the range of an integer dtype."""
        if bound.is_meta or not bound.numel():
            return
        if bool(bound.isnan().any()):
            raise SpaceError("Expected numbers as bounds, got NaN. Give an infinite bound for no bound.")
        if not (self.dtype.is_floating_point or self.dtype.is_complex or bound.is_complex()):
            finite = bound[bound.isfinite()]
            lowest, highest = dtype_limits(self.dtype)
            if bool(((finite < lowest) | (finite > highest)).any()):
                raise SpaceError(
                    f"Expected bounds of {self.dtype} from {int(lowest)} to {int(highest)}, got bounds from "
                    f"{finite.min().item()} to {finite.max().item()}. Give others, infinite ones for no bound, or "
                    "another dtype."
                )

    @property
    def _low(self) -> Tensor:
        return self._current().low

    @property
    def _high(self) -> Tensor:
        return self._current().high

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
        return self._current().finite

    @property
    def space(self) -> ContinuousBox:
        """The bounds, of the spec's shape (dynamic dimensions have size 1). They may be written to or set."""
        if self._space is None:
            self._space = ContinuousBox(self._to_own(self._bounds.low), self._to_own(self._bounds.high))
        return self._space

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_bounds": self._current(), "_space": None}  # copies have bounds of their own

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> dict[str, object]:
        return {"_bounds": self._current().map(function), "_space": None}

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        if isinstance(dest, torch.device):
            return super()._convert(dest)
        return type(self)(low=self._low, high=self._high, shape=self.shape, device=self.device, dtype=dest)

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        if not self.dtype.is_floating_point:
            return self._sample_integers(sizes, generator)
        uniform = torch.rand(sizes, dtype=self.dtype, device=self.device, generator=generator)
        low, high, scalars, is_finite = self._current()
        if scalars is not None and _is_finite_range(*scalars, self.dtype):
            low, high = scalars
            return uniform.mul_(high - low).add_(low).clamp_(low, high)
        interior = low * (1 - uniform) + high * uniform  # since `high - low` may overflow
        if is_finite:
            return torch.clamp(interior, low, high)
        exponential = torch.empty_like(uniform).exponential_(generator=generator)
        normal = torch.randn(sizes, dtype=self.dtype, device=self.device, generator=generator)
        interior = torch.where(
            low.isfinite(), torch.where(high.isfinite(), interior, low + exponential), high - exponential
        )
        return torch.where(low.isfinite() | high.isfinite(), torch.maximum(torch.minimum(interior, high), low), normal)

    def _sample_integers(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        low, high, scalars, _ = self._current()
        if scalars is not None:
            first, last = (int(end) for end in scalars)
            if last - first < 2**63 - 1:
                integers = torch.randint(0, last - first + 1, sizes, device=self.device, generator=generator)
                return integers.add_(first).to(self.dtype)
        low, high = low.to(torch.int64), high.to(torch.int64)
        uniform = torch.rand(sizes, dtype=torch.float64, device=self.device, generator=generator)
        interior = low.double() * (1 - uniform) + (high.double() + 1) * uniform
        interior = interior.floor().clamp(-(2.0**63), _INT64_MAX_FLOAT).to(torch.int64)
        return torch.maximum(torch.minimum(interior, high), low).to(self.dtype)

    def _violation(self, val: Tensor) -> str | None:
        val = _to_comparable(val)
        low, high, *_ = self._current()
        in_bounds = (val >= low.to(val.device)) & (val <= high.to(val.device))
        if bool(in_bounds.all()):
            return None
        first_invalid = val[~in_bounds].reshape(-1)[0].item()
        return (
            f"{int((~in_bounds).sum())} of {val.numel()} elements are out of bounds, the first of them {first_invalid}"
        )

    def _project(self, val: Tensor) -> Tensor:
        low, high = (bound.to(val.device) for bound in self._current()[:2])
        if val.is_floating_point() and not low.is_floating_point():
            val = val.double().nan_to_num(nan=0.0).round().clamp(-(2.0**63), _INT64_MAX_FLOAT).to(torch.int64)
        if val.is_floating_point():
            val = torch.where(val.isnan(), 0, val)
        val = val.to(torch.promote_types(_to_comparable(val).dtype, low.dtype))
        return torch.maximum(torch.minimum(val, high), low).to(self.dtype)

    def _repr_fields(self) -> dict[str, object]:
        bounds = {"low": _format_bound(self._low), "high": _format_bound(self._high)}
        return {**bounds, **super()._repr_fields()}


class BoundedContinuous(Bounded):
    """`Bounded` under TorchRL's name for the spec of floats; equal to a `Bounded`."""


class Unbounded(TensorSpec):
    """Any number of the dtype.

    Floats are drawn from a normal distribution, integers uniformly from the range of the dtype. NaN and infinities are
    in the spec too.

    Args:
        shape: of a value.
        device: None for torch's default device.
        dtype: None for torch's default dtype.

    >>> Unbounded((3,), dtype=torch.int64).zero()
    tensor([0, 0, 0])
    """

    _kind = "Unbounded"
    _fields = ("shape", "device", "dtype", "domain")
    dtype: torch.dtype

    def __init__(
        self,
        shape: ShapeLike = torch.Size([1]),  # noqa: B008
        device: Device = None,
        dtype: torch.dtype | str | None = None,
        *,
        domain: str | None = None,
    ):
        self.shape = as_size(shape)
        self.device = as_device(device)
        self.dtype = as_dtype(dtype)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.domain = domain or _domain_of(self.dtype)

    @property
    def space(self) -> ContinuousBox:
        """The limits of the dtype, as copies. They cannot be set: use `Bounded` for bounds."""
        extremes = (torch.tensor(end, dtype=self.dtype, device=self.device) for end in dtype_limits(self.dtype))
        return FixedBox(*(end.expand(concrete(self.shape)).clone() for end in extremes))

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        if isinstance(dest, torch.device):
            return super()._convert(dest)
        return self._replace(dtype=dest, domain=_domain_of(dest))

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(sizes, dtype=self.dtype, device=self.device, generator=generator)
        low, high = dtype_limits(self.dtype)
        low, high = max(int(low), -(2**63)), min(int(high), 2**63 - 1)
        integers = torch.empty(sizes, dtype=torch.int64, device=self.device)
        if high - low >= 2**63:
            return integers.random_(-(2**63), None, generator=generator)  # pyright: ignore[reportCallIssue, reportArgumentType]
        if high == 2**63 - 1:
            return integers.random_(generator=generator).to(self.dtype)
        return integers.random_(low, high + 1, generator=generator).to(self.dtype)

    def _violation(self, val: Tensor) -> str | None:
        return None

    def _project(self, val: Tensor) -> Tensor:
        if val.is_floating_point() and not (self.dtype.is_floating_point or self.dtype.is_complex):
            low, high = dtype_limits(self.dtype)
            val = val.double().nan_to_num(nan=0.0).round().clamp(float(low), min(float(high), _INT64_MAX_FLOAT))
        return val.to(self.dtype)


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


def _bound_to_tensor(bound: object) -> Tensor:
    if isinstance(bound, Tensor):
        return bound
    try:
        return torch.as_tensor(np.array(bound))  # a copy, since the caller may change the array
    except (TypeError, ValueError) as error:
        raise SpaceError(
            f"Expected numbers as bounds, got {bound!r:.80}. Give numbers below 2**63, or infinite ones for no bound."
        ) from error


def _to_signed(bound: Tensor) -> Tensor:
    """Returns a bound of an unsigned dtype as int64; as float64 if int64 cannot hold it."""
    if bound.dtype == torch.uint64 and not bound.is_meta and bool((bound.view(torch.int64) < 0).any()):
        return bound.double()
    return _to_comparable(bound)


def _is_finite_range(low: float, high: float, dtype: torch.dtype) -> bool:
    return high - low <= torch.finfo(dtype).max


def _format_bound(bound: Tensor) -> str:
    if bound.is_meta or not bound.numel():
        return "?"
    lowest, highest = bound.min().item(), bound.max().item()
    return f"{lowest:g}" if lowest == highest else f"[{lowest:g}…{highest:g}]"
