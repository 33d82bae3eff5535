"""`TensorSpec`: the base class of all specs, with everything that does not depend on the kind of spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import OutOfSpecError, SpaceError
from ..validation import parse_device
from .domains import Anything, Domain, values_equal
from .dtypes import as_dtype, cast_exactly
from .shape_methods import ShapeMethods
from .shape_ops import ShapeLike, ShapeOp, as_size, concrete, has_shape, shape_matches

Device = torch.device | str | int | None


def as_device(device: Device) -> torch.device:
    """Returns `device` as a `torch.device`: torch's default for None, the current index for "cuda" without one."""
    device = parse_device(torch.get_default_device() if device is None else device)
    if device.type == "cuda" and device.index is None:  # pyright: ignore[reportUnnecessaryComparison]
        return torch.device("cuda", torch.cuda.current_device())
    return device


def foreign_spec_hint(value: object) -> str:
    """Returns the end of a message about a value that is no spec: where to import the class of a TorchRL spec from."""
    cls = type(value)
    return (
        f" of {cls.__module__}. Import {cls.__name__} from vecrl.specs" if cls.__module__.startswith("torchrl") else ""
    )


class TensorSpec(ShapeMethods):
    """The shape, dtype and device of a tensor (or another value), and which values it may have.

    Methods return new specs and do not change this one, except `update_mask`, `clear_device_` and the methods of
    `Composite` that change entries. Nothing is cached, so nothing can be stale.
    `torch.stack`, `unsqueeze`, `squeeze`, `flatten`, `unflatten`, `reshape`, `permute`, `index_select`, `unbind`,
    `broadcast_to` and `clone` take specs.

    Attributes:
        shape: of a value, batch dimensions included; -1 where a size is not fixed.
        dtype: of a value; None if values are no tensors.
        device: of a value; None if it is not declared.
        domain: "continuous", "discrete" or None.
    """

    shape: torch.Size
    dtype: torch.dtype | None
    device: torch.device | None
    domain: str | None = None

    _domain: Any = Anything()  # a `Domain`; leaf specs declare which
    _fields: ClassVar[tuple[str, ...]] = ()
    """The attributes that are compared by `==` besides shape, device, dtype and domain."""

    def _current_domain(self) -> Any:
        """Returns which values the elements of a leaf spec may have."""
        return self._domain

    # -- copies with changes

    def _replace(self, **changes: object) -> Self:
        """Returns a copy with other values of these attributes, which are not checked."""
        spec = object.__new__(type(self))
        vars(spec).update(vars(self), **changes)
        return spec

    def _num_movable(self) -> int:
        return self.ndim - self._domain.event_dims

    def _rearrange(self, op: ShapeOp) -> Self:
        domain = self._current_domain()
        leading = op.without_trailing(domain.event_dims) if domain.event_dims else op
        if leading is None:
            error_type = IndexError if op.verb == "index" else SpaceError
            raise error_type(f"Cannot {op.verb} {self!r} in this way: its last dimension is one choice.")
        return self._replace(shape=op.out_shape, _domain=domain.map(leading.apply_checked))

    def _convert(self, dest: torch.device | torch.dtype) -> Self:
        """Returns the spec on another device, or with another dtype."""
        if isinstance(dest, torch.dtype):
            return self._replace(dtype=dest)
        return self._replace(device=dest, _domain=self._current_domain().map(partial(Tensor.to, device=dest)))

    # -- values

    @property
    def space(self) -> Any:
        """The bounds or counts as a record, or None."""
        return None

    def ndimension(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements of one value; dynamic dimensions count as 1."""
        return concrete(self.shape).numel()

    def _sizes(self, shape: ShapeLike | None) -> torch.Size:
        lead = as_size(() if shape is None else shape)
        if -1 in lead:
            raise SpaceError(f"Expected the shape of a batch of values, got {tuple(lead)}. Give all sizes.")
        return torch.Size([*lead, *concrete(self.shape)])

    def rand(self, shape: ShapeLike | None = None, *, generator: Generator | None = None) -> Any:
        """Samples values in the spec; dynamic dimensions have size 1.

        Args:
            shape: batch dimensions in front of the spec's own shape.
            generator: the random number generator; None for torch's global one.
        """
        return self._current_domain().rand(self._sizes(shape), self.dtype, self.device, generator)

    def sample(self, shape: ShapeLike | None = None, *, generator: Generator | None = None) -> Any:
        """The same as `rand`."""
        return self.rand(shape, generator=generator)

    def zero(self, shape: ShapeLike | None = None) -> Any:
        """Returns zeros of the spec's shape, dtype and device, even if zero is not in the spec."""
        return torch.zeros(self._sizes(shape), dtype=self.dtype, device=self.device)

    def zeros(self, shape: ShapeLike | None = None) -> Any:
        """The same as `zero`."""
        return self.zero(shape)

    def one(self, shape: ShapeLike | None = None) -> Any:
        """Returns ones of the spec's shape, dtype and device, even if one is not in the spec."""
        return torch.ones(self._sizes(shape), dtype=self.dtype, device=self.device)

    def ones(self, shape: ShapeLike | None = None) -> Any:
        """The same as `one`."""
        return self.one(shape)

    # -- checks

    def mismatch(self, val: object) -> str | None:
        """Describes why `val` is not in the spec; None if it is. `val` may have batch dimensions in front."""
        if not isinstance(val, Tensor):
            return f"expected a tensor, got {type(val).__name__}"
        if not shape_matches(val.shape, self.shape):
            return f"expected shape {tuple(self.shape)}, got {tuple(val.shape)}"
        if val.dtype != self.dtype:
            return f"expected {self.dtype}, got {val.dtype}"
        return self._current_domain().violation(val)

    def is_in(self, val: object) -> bool:
        """Whether `val` has the spec's shape (after any batch dimensions), its dtype, and allowed values."""
        return self.mismatch(val) is None

    def contains(self, item: object) -> bool:
        """The same as `is_in`."""
        return self.is_in(item)

    def assert_is_in(self, value: object) -> None:
        """Raises an `OutOfSpecError` (an AssertionError) with the reason if `value` is not in the spec."""
        problem = self.mismatch(value)
        if problem is not None:
            raise OutOfSpecError(f"The value is not in {self!r}: {problem}. Use spec.project(value).")

    def type_check(self, value: Tensor, key: object = None) -> None:
        """Raises a `SpaceError` (a TypeError) unless `value` has the spec's dtype."""
        if value.dtype != self.dtype:
            location = "" if key is None else f" at {key!r}"
            raise SpaceError(f"Expected {self.dtype}{location}, got {value.dtype}. Cast it, or change the spec.")

    def project(self, val: object) -> Any:
        """Returns `val` itself if it is in the spec, else the nearest value that is, in the spec's dtype.

        Raises:
            SpaceError: `val` does not have the spec's shape.
        """
        if self.is_in(val):
            return val
        val = torch.as_tensor(val, device=self.device if not isinstance(val, Tensor) else None)
        if not shape_matches(val.shape, self.shape):
            raise SpaceError(f"Expected shape {tuple(self.shape)} to project, got {tuple(val.shape)}.")
        return self._current_domain().project(val, self.dtype)

    # -- conversions from and to the environment's values

    def encode(self, val: object, *, ignore_device: bool = False) -> Any:
        """Converts an environment's value (number, list, array) to a tensor of the spec's shape, dtype and device.

        A value with another shape is reshaped if the number of elements is the same. Use `assert_is_in` to check
        whether the value is allowed: this method does not.

        Raises:
            SpaceError: the number of elements differs from the spec's.
        """
        if isinstance(val, Tensor) and val.dtype == self.dtype and has_shape(val.shape, self.shape):
            return val if ignore_device or self.device in (None, val.device) else val.to(self.device)
        tensor = self._as_tensor(val, self.dtype, ignore_device)
        return tensor if has_shape(tensor.shape, self.shape) else self._to_spec_shape(tensor)

    def _as_tensor(self, val: object, dtype: torch.dtype | None, ignore_device: bool) -> Tensor:
        """Converts `val` to a tensor. Arrays are copied, since their owner may write into them later."""
        device = None if ignore_device else self.device
        if isinstance(val, Tensor):
            return val.to(device=device or val.device, dtype=dtype or val.dtype)
        try:
            return torch.tensor(np.asarray(val), dtype=dtype, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpaceError(f"Expected a value of shape {tuple(self.shape)}, got {val!r:.80}.") from error

    def _to_spec_shape(self, tensor: Tensor) -> Tensor:
        if -1 not in self.shape and tensor.numel() == self.shape.numel():
            return tensor.reshape(self.shape)
        if tensor.ndim + 1 == self.ndim and self.shape[-1] == 1 and shape_matches((*tensor.shape, 1), self.shape):
            return tensor.unsqueeze(-1)
        raise SpaceError(
            f"Expected a value of shape {tuple(self.shape)}, got {tuple(tensor.shape)}. A spec's shape includes "
            f"the batch size."
        )

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Converts a value to the NumPy form that environments take; `safe` checks it with `assert_is_in` first.

        Raises:
            SpaceError: the spec has integers or flags, and the value has numbers that its dtype cannot hold.
        """
        if safe:
            self.assert_is_in(val)
        val = val.detach()
        return (val if self.dtype in (None, val.dtype) else cast_exactly(val, self.dtype)).cpu().numpy()

    def index(self, index: Tensor, tensor_to_index: object) -> Any:
        """Selects from `tensor_to_index` with `index`, a value of this spec. Only categorical specs can do this."""
        raise NotImplementedError(f"Values of {type(self).__name__} specs are no indices.")

    def cardinality(self) -> int | float:
        """Returns the number of values; infinity if the spec is not categorical.

        Batch dimensions do not count: the cardinality of `Categorical(4, (8,))` is 4.
        """
        return self._current_domain().cardinality(self.shape)

    def enumerate(self, use_mask: bool = False) -> Any:
        """Returns all values (with `use_mask`, those that the mask allows), stacked along a new first dimension.

        All elements of a batch have the same value.
        """
        values = self._current_domain().enumerate(self.shape, self.dtype, self.device, use_mask)
        if values is None:
            raise NotImplementedError(f"The values of {self!r} cannot be enumerated.")
        return values

    # -- devices, dtypes, copies

    def to(self, dest: Device | torch.dtype) -> Self:
        """Returns the spec on another device or with another dtype; `self` if nothing changes."""
        if dest is None:
            return self
        if isinstance(dest, torch.dtype):
            return self if dest == self.dtype else self._convert(dest)
        device = as_device(dest)
        return self if device == self.device else self._convert(device)

    def cast(self, dtype: torch.dtype | str) -> Self:
        """Returns the spec with another dtype."""
        return self.to(as_dtype(dtype))

    def cpu(self) -> Self:
        """Returns the spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Device = None) -> Self:
        """Returns the spec on a CUDA device, the current one for None."""
        if isinstance(device, int):
            device = torch.device("cuda", device)
        return self.to("cuda" if device is None else device)

    def clear_device_(self) -> Self:
        """Returns `self` unchanged, since a leaf always has a device. `Composite.clear_device_` overrides this."""
        return self

    def clone(self) -> Self:
        """Returns a copy that shares no tensor with this spec."""
        return self._replace(_domain=self._current_domain().map(Tensor.clone))

    def memoize_encode(self, mode: bool = True) -> None:
        """Has no effect: `encode` keeps no cache. Exists for compatibility with TorchRL."""

    def erase_memoize_cache(self) -> None:
        """Has no effect, as `memoize_encode`."""

    # -- equality and representation

    def _state(self) -> Sequence[object]:
        """Returns what makes specs equal."""
        extra = (getattr(self, name) for name in self._fields)
        return self.shape, self.device, self.dtype, self.domain, self._current_domain(), *extra

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return False
        own_state, other_state = self._state(), other._state()
        return len(own_state) == len(other_state) and all(map(values_equal, own_state, other_state))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self._repr_fields().items())})"

    def _repr_fields(self) -> dict[str, object]:
        return {"shape": tuple(self.shape), "dtype": self.dtype, "device": self.device}


def domain_of(spec: TensorSpec) -> Any:
    """Returns the domain of a leaf spec."""
    return spec._current_domain()


class Leaf(TensorSpec):
    """A spec of tensors: a shape, a dtype, a device and a domain. Subclasses are constructors for domains.

    Args:
        shape: of a value, batch dimensions included; -1 where a size is not fixed.
        device: None for torch's default device.
        dtype: None for torch's default dtype.
        domain: which values the elements may have.
    """

    def __init__(self, shape: ShapeLike, device: Device, dtype: torch.dtype | str | None, domain: Domain):
        self.shape = as_size(shape)
        self.device = as_device(device)
        self.dtype = as_dtype(dtype)
        self._domain = domain

    def _repr_fields(self) -> dict[str, object]:
        domain = self._current_domain()
        parameters = {f.name: _format(getattr(domain, f.name)) for f in fields(domain) if f.repr}
        return {**parameters, **super()._repr_fields()}


def _format(parameter: object) -> object:
    """Returns a parameter of a domain as text: a tensor by its lowest and highest element."""
    if not isinstance(parameter, Tensor):
        return parameter
    if parameter.is_meta or not parameter.numel():
        return "?"
    lowest, highest = parameter.min().item(), parameter.max().item()
    return f"{lowest:g}" if lowest == highest else f"[{lowest:g}…{highest:g}]"
