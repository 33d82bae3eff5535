"""Specs of numbers: `Bounded` between two bounds, `Unbounded` over the whole range of the dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import SpaceError
from .base import Device, TensorSpec, as_device, as_dtype
from .shape_ops import ShapeLike, as_size, concrete
from .space_records import ContinuousBox

# torch can neither compare, draw nor pickle tensors of these dtypes
_UNSUPPORTED_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


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


class Bounded(TensorSpec):
    """Numbers between `low` and `high`, both included.

    Integers are drawn uniformly, and floats too if both bounds are finite. As in gymnasium, floats with one finite
    bound are drawn from an exponential distribution that starts there, and floats without one from a normal
    distribution. (TorchRL draws infinities and NaN in these cases.)

    Args:
        low, high: numbers, arrays or tensors that broadcast to `shape`; infinite for no bound.
        shape: of a value. Defaults to the common shape of the bounds, one of which must then have dimensions.
        device: None for torch's default device.
        dtype: None for torch's default dtype.

    Raises:
        SpaceError: a bound or the shape is missing, the bounds do not broadcast to it, or a `low` is above its `high`.

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
    _scalar_bounds: tuple[float, float] | None
    _finite: bool

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
            shape = torch.broadcast_shapes(*(b.shape for b in bounds)) if shape is None else as_size(shape)
            self._low, self._high = (self._to_dtype(bound, concrete(shape)) for bound in bounds)
        except RuntimeError as error:
            raise SpaceError(f"Expected bounds that broadcast to one shape: {error}") from error
        if not self._low.is_meta and bool((self._low > self._high).any()):
            raise SpaceError("Expected low <= high for every element, got a lower bound above its upper bound.")
        self.shape = shape
        vars(self).update(self._summary(self._low, self._high))

    def _to_dtype(self, bound: Tensor, shape: torch.Size) -> Tensor:
        self._check_bound(bound)
        if bound.is_floating_point() and not (self.dtype.is_floating_point or self.dtype.is_complex):
            lowest, highest = dtype_limits(self.dtype)
            bound = bound.double().nan_to_num(nan=0.0, posinf=float(highest), neginf=float(lowest))
            integers = torch.where(bound >= float(highest), highest, bound.clamp(max=2.0**62).to(torch.int64))
            bound = torch.where(bound <= float(lowest), torch.as_tensor(lowest), integers)
        dtype = torch.int64 if self.dtype in _UNSUPPORTED_UNSIGNED else self.dtype
        return bound.to(device=self.device, dtype=dtype).expand(shape)

    def _check_bound(self, bound: Tensor) -> None:
        """Raises a `SpaceError` if the dtype cannot hold the bound, which would change its value."""
        if bound.is_meta or bound.dtype in _UNSUPPORTED_UNSIGNED or not bound.numel():
            return
        if bool(bound.isnan().any()):
            raise SpaceError("Expected numbers as bounds, got NaN. Give an infinite bound for no bound.")
        if not (self.dtype.is_floating_point or self.dtype.is_complex or bound.is_complex()):
            finite = bound[bound.isfinite()]
            lowest, highest = dtype_limits(self.dtype)
            if bool(((finite < lowest) | (finite > highest)).any()):
                raise SpaceError(
                    f"Expected bounds that {self.dtype} can hold, from {int(lowest)} to {int(highest)}, got bounds "
                    f"from {finite.min().item()} to {finite.max().item()}. Give others, or another dtype."
                )

    @staticmethod
    def _summary(low: Tensor, high: Tensor) -> dict[str, object]:
        """Returns the bounds as two numbers if all elements have the same (else None), and whether all are finite."""
        if low.is_meta or not low.numel():
            return {"_scalar_bounds": None, "_finite": True}
        first_low, first_high = low.reshape(-1)[0], high.reshape(-1)[0]
        uniform = bool((low == first_low).all() and (high == first_high).all())
        return {
            "_scalar_bounds": (first_low.item(), first_high.item()) if uniform else None,
            "_finite": bool((low.isfinite() & high.isfinite()).all()),
        }

    @property
    def low(self) -> Tensor:
        """The least values, of the spec's shape (dynamic dimensions have size 1)."""
        return self._low.to(self.dtype)

    @property
    def high(self) -> Tensor:
        """The greatest values, of the spec's shape (dynamic dimensions have size 1)."""
        return self._high.to(self.dtype)

    @property
    def space(self) -> ContinuousBox:
        return ContinuousBox(self.low, self.high)

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> dict[str, object]:
        low, high = function(self._low), function(self._high)
        if self._scalar_bounds is not None and low.numel() and not low.is_meta:
            return {"_low": low, "_high": high}
        return {"_low": low, "_high": high, **self._summary(low, high)}

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        if isinstance(dest, torch.device):
            return super()._convert(dest)
        return type(self)(low=self._low, high=self._high, shape=self.shape, device=self.device, dtype=dest)

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        if not self.dtype.is_floating_point:
            return self._sample_integers(sizes, generator)
        uniform = torch.rand(sizes, dtype=self.dtype, device=self.device, generator=generator)
        if self._scalar_bounds is not None and _is_finite_range(*self._scalar_bounds, self.dtype):
            low, high = self._scalar_bounds
            return uniform.mul_(high - low).add_(low).clamp_(low, high)
        low, high = self._low, self._high
        interior = low * (1 - uniform) + high * uniform  # since `high - low` may overflow
        if self._finite:
            return torch.clamp(interior, low, high)
        exponential = torch.empty_like(uniform).exponential_(generator=generator)
        normal = torch.randn(sizes, dtype=self.dtype, device=self.device, generator=generator)
        interior = torch.where(
            low.isfinite(), torch.where(high.isfinite(), interior, low + exponential), high - exponential
        )
        return torch.where(low.isfinite() | high.isfinite(), torch.maximum(torch.minimum(interior, high), low), normal)

    def _sample_integers(self, sizes: torch.Size, generator: Generator | None) -> Tensor:
        if self._scalar_bounds is not None:
            low, high = (int(end) for end in self._scalar_bounds)
            if high - low < 2**63 - 1:
                integers = torch.randint(0, high - low + 1, sizes, device=self.device, generator=generator)
                return integers.add_(low).to(self.dtype)
        low, high = self._low.to(torch.int64), self._high.to(torch.int64)
        uniform = torch.rand(sizes, dtype=torch.float64, device=self.device, generator=generator)
        interior = low.double() * (1 - uniform) + (high.double() + 1) * uniform
        interior = interior.floor().clamp(-(2.0**63), 2.0**63 - 1024).to(torch.int64)
        return torch.maximum(torch.minimum(interior, high), low).to(self.dtype)

    def _violation(self, val: Tensor) -> str | None:
        val = _to_comparable(val)
        in_bounds = (val >= self._low.to(val.device)) & (val <= self._high.to(val.device))
        if bool(in_bounds.all()):
            return None
        first_invalid = val[~in_bounds].reshape(-1)[0].item()
        return (
            f"{int((~in_bounds).sum())} of {val.numel()} elements are out of bounds, the first of them {first_invalid}"
        )

    def _project(self, val: Tensor) -> Tensor:
        low, high = self._low.to(val.device), self._high.to(val.device)
        if val.is_floating_point() and not low.is_floating_point():
            val = val.double().nan_to_num(nan=0.0).round().clamp(-(2.0**63), 2.0**63 - 1024).to(torch.int64)
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
        extremes = (torch.tensor(end, dtype=self.dtype, device=self.device) for end in dtype_limits(self.dtype))
        return ContinuousBox(*(end.expand(concrete(self.shape)) for end in extremes))

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
            val = val.double().nan_to_num(nan=0.0).round().clamp(float(low), min(float(high), 2.0**63 - 1024))
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
        raise SpaceError(f"Expected numbers as bounds, got {bound!r:.80}.") from error


def _is_finite_range(low: float, high: float, dtype: torch.dtype) -> bool:
    return high - low <= torch.finfo(dtype).max


def _format_bound(bound: Tensor) -> str:
    if bound.is_meta or not bound.numel():
        return "?"
    lowest, highest = bound.min().item(), bound.max().item()
    return f"{lowest:g}" if lowest == highest else f"[{lowest:g}…{highest:g}]"
