"""`TensorSpec`: what every spec can do, over the few things that each of them says for itself.

A leaf says which tensors lie along its shape (`_moved`), how values are drawn, checked and brought back (`_sample`,
`_violation`, `_project`), and how it is made anew with other arguments (`_arguments`). All else is here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import OutOfSpecError, SpaceError
from . import shape_ops, torch_functions
from .shape_methods import ShapeMethods

Device = torch.device | str | int | None


def device_of(device: torch.device | str | int) -> torch.device:
    """The device of a name.

    Raises:
        SpaceError: there is no such kind of device.
    """
    try:
        return torch.device(device)
    except RuntimeError as error:
        hint = " A shape of several dimensions is a tuple." if isinstance(device, int) else ""
        raise SpaceError(f"Expected a device, such as 'cpu' or 'cuda:0', but {device!r} came.{hint}") from error


def as_device(device: Device) -> torch.device:
    """The device that is meant; torch's default one for None."""
    if device is None:
        return torch.get_default_device()
    device = device_of(device)
    if device.type == "cuda" and device.index is None:  # pyright: ignore[reportUnnecessaryComparison]
        return torch.device("cuda", torch.cuda.current_device())
    return device


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """The dtype that is meant, also by its name; torch's default one for None."""
    if dtype is None:
        return torch.get_default_dtype()
    if isinstance(dtype, torch.dtype):
        return dtype
    torch_dtype = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(torch_dtype, torch.dtype):
        raise SpaceError(f"Expected a dtype, such as torch.float32 or 'float32', but {dtype!r} came.")
    return torch_dtype


class TensorSpec(ShapeMethods):
    """What a tensor (or another value) looks like: its shape, dtype and device, and which values it may have.

    Specs are values: every method returns a new one and leaves this one as it is, but for `update_mask`,
    `clear_device_` and what the mapping `Composite` does under its lock. Nothing is cached, so nothing can be stale.
    `torch.stack`, `unsqueeze`, `squeeze`, `flatten`, `unflatten`, `reshape`, `unbind` and `broadcast_to` take specs.

    Attributes:
        shape: of a value, batch dimensions included; -1 where a size is not fixed.
        dtype: of a value; None for what is no tensor.
        device: where values live; None where that is not said.
        domain: "continuous", "discrete" or None.
    """

    shape: torch.Size
    dtype: torch.dtype | None
    device: torch.device | None
    domain: str | None = None

    _kind: ClassVar[str] = "TensorSpec"
    """What decides, beside the contents, whether two specs are equal: a class and its shorthands are one kind."""

    # -- what a spec says for itself

    def _arguments(self) -> dict[str, Any]:
        """The arguments of the constructor that make an equal spec."""
        raise NotImplementedError

    def _sample(self, sizes: torch.Size, generator: Generator | None) -> Any:
        """Random values of `sizes`, which ends with this shape."""
        raise NotImplementedError

    def _violation(self, val: Any) -> str | None:
        """Why `val`, whose shape and dtype fit, is not in the spec."""
        raise NotImplementedError

    def _project(self, val: Tensor) -> Any:
        """The value in the spec for `val`, whose shape fits; of the spec's dtype."""
        raise NotImplementedError

    def _with(self, **changes: Any) -> Self:
        return type(self)(**{**self._arguments(), **changes})

    # -- values

    @property
    def space(self) -> Any:
        """The bounds or counts as a record, or None."""
        return None

    def ndimension(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements of one value, dynamic dimensions counted as one."""
        return shape_ops.concrete(self.shape).numel()

    def _sizes(self, shape: Any) -> torch.Size:
        lead = shape_ops.as_size(() if shape is None else shape)
        if -1 in lead:
            raise SpaceError(f"Expected the shape of a batch of values, but {tuple(lead)} came: give all sizes.")
        return torch.Size([*lead, *shape_ops.concrete(self.shape)])

    def rand(self, shape: Any = None, *, generator: Generator | None = None) -> Any:
        """Random values in the spec; dynamic dimensions have size 1.

        Args:
            shape: of a batch in front of the spec's own shape.
            generator: where the randomness comes from; None for torch's global generator.
        """
        return self._sample(self._sizes(shape), generator)

    def sample(self, shape: Any = None, *, generator: Generator | None = None) -> Any:
        """The same as `rand`."""
        return self.rand(shape, generator=generator)

    def zero(self, shape: Any = None) -> Any:
        """Zeros of the spec's shape, dtype and device: a filler, whether or not zero is in the spec."""
        return torch.zeros(self._sizes(shape), dtype=self.dtype, device=self.device)

    def zeros(self, shape: Any = None) -> Any:
        """The same as `zero`."""
        return self.zero(shape)

    def one(self, shape: Any = None) -> Any:
        """Ones of the spec's shape, dtype and device: a filler, whether or not one is in the spec."""
        return torch.ones(self._sizes(shape), dtype=self.dtype, device=self.device)

    def ones(self, shape: Any = None) -> Any:
        """The same as `one`."""
        return self.one(shape)

    # -- checks

    def mismatch(self, val: Any) -> str | None:
        """Why `val` is not in the spec, in words; None if it is. A batch may stand in front of the spec's shape."""
        if not isinstance(val, Tensor):
            return f"expected a tensor, but {type(val).__name__} came"
        if not self._shape_matches(val.shape):
            return f"expected shape {tuple(self.shape)}, but {tuple(val.shape)} came"
        if val.dtype != self.dtype:
            return f"expected {self.dtype}, but {val.dtype} came"
        return self._violation(val)

    def _shape_matches(self, shape: Sequence[int]) -> bool:
        return shape_ops.shape_matches(shape, self.shape)

    def is_in(self, val: Any) -> bool:
        """Whether `val` has the spec's shape (behind a batch, if any) and dtype, and a value that is allowed."""
        return self.mismatch(val) is None

    def contains(self, item: Any) -> bool:
        """The same as `is_in`."""
        return self.is_in(item)

    def assert_is_in(self, value: Any) -> None:
        """Raise an `OutOfSpecError` (an AssertionError) that says why `value` is not in the spec."""
        problem = self.mismatch(value)
        if problem is not None:
            raise OutOfSpecError(f"The value is not in {self!r}: {problem}. spec.project(value) makes it fit.")

    def type_check(self, value: Tensor, key: Any = None) -> None:
        """Raise a `SpaceError` (a TypeError) unless `value` has the spec's dtype."""
        if value.dtype != self.dtype:
            location = "" if key is None else f" at {key!r}"
            raise SpaceError(f"Expected {self.dtype}{location}, but {value.dtype} came. Cast it, or change the spec.")

    def project(self, val: Any) -> Any:
        """`val` itself where it is in the spec, else the nearest value that is, in the spec's dtype.

        Raises:
            SpaceError: for another shape than the spec's.
        """
        if self.is_in(val):
            return val
        val = torch.as_tensor(val, device=self.device if not isinstance(val, Tensor) else None)
        if not self._shape_matches(val.shape):
            raise SpaceError(f"Expected shape {tuple(self.shape)} to project, but {tuple(val.shape)} came.")
        return self._project(val)

    # -- ways in and out

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """A value as an environment gives it (number, list, array) as a tensor of the spec's shape, dtype and device.

        As many elements in another arrangement are reshaped. Whether the value is allowed is not checked: that is
        what `assert_is_in` is for.

        Raises:
            SpaceError: for another number of elements.
        """
        if isinstance(val, Tensor) and val.dtype == self.dtype and self._is_shape(val.shape):
            return val if ignore_device or self.device in (None, val.device) else val.to(self.device)
        tensor = self._as_tensor(val, self.dtype, ignore_device)
        return tensor if self._is_shape(tensor.shape) else self._to_spec_shape(tensor)

    def _is_shape(self, shape: torch.Size) -> bool:
        return shape == self.shape or (len(shape) == self.ndim and self._shape_matches(shape))

    def _is_row(self, tensor: Tensor) -> bool:
        """Whether a tensor given to a one-hot spec is one-hot already rather than indices."""
        if tensor.dtype == torch.bool:
            return self._shape_matches(tensor.shape)
        return self._is_shape(tensor.shape) and self.is_in(tensor.to(self.dtype))

    def _as_tensor(self, val: Any, dtype: torch.dtype | None, ignore_device: bool) -> Tensor:
        """`val` as a tensor that shares no memory with an array, which its owner may write into later."""
        device = None if ignore_device else self.device
        if isinstance(val, Tensor):
            return val.to(device=device or val.device, dtype=dtype or val.dtype)
        try:
            return torch.tensor(np.asarray(val), dtype=dtype, device=device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpaceError(f"Expected a value of shape {tuple(self.shape)}, but {val!r:.80} came.") from error

    def _to_spec_shape(self, tensor: Tensor) -> Tensor:
        if -1 not in self.shape and tensor.numel() == self.shape.numel():
            return tensor.reshape(self.shape)
        if tensor.ndim + 1 == self.ndim and self.shape[-1] == 1 and self._shape_matches((*tensor.shape, 1)):
            return tensor.unsqueeze(-1)
        raise SpaceError(
            f"Expected a value of shape {tuple(self.shape)}, but {tuple(tensor.shape)} came. A spec's shape includes "
            f"the batch size."
        )

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """A value as an environment wants it, in NumPy; with `safe`, checked with `assert_is_in` before."""
        if safe:
            self.assert_is_in(val)
        return val.detach().cpu().numpy()

    def index(self, index: Any, tensor_to_index: Any) -> Any:
        """What the value `index` of this spec chooses from `tensor_to_index`. Only choices can index."""
        raise NotImplementedError(f"{type(self).__name__} specs choose nothing, so their values index nothing.")

    def cardinality(self) -> int | float:
        """How many values there are; infinity where they are not a choice.

        Batch dimensions do not count: `Categorical(4, (8,))` is eight times a choice among four.
        """
        return float("inf")

    def enumerate(self, use_mask: bool = False) -> Any:
        """All values (with `use_mask`, all allowed ones), stacked in front; batch dimensions run together."""
        raise NotImplementedError(f"The values of {self!r} cannot be enumerated.")

    # -- devices, dtypes, copies

    def to(self, dest: Any) -> Self:
        """The spec on another device or with another dtype; `self` where nothing changes."""
        if dest is None:
            return self
        if isinstance(dest, torch.dtype):
            return self if dest == self.dtype else self._with(dtype=dest)
        device = as_device(dest)
        return self if device == self.device else self._with(device=device)

    def cast(self, dtype: torch.dtype | str) -> Self:
        """The spec with another dtype."""
        return self.to(as_dtype(dtype))

    def cpu(self) -> Self:
        """The spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Device = None) -> Self:
        """The spec on a CUDA device, the current one for None."""
        if isinstance(device, int):
            device = torch.device("cuda", device)
        return self.to("cuda" if device is None else device)

    def clear_device_(self) -> Self:
        """Nothing for a leaf, whose device is always known; see `Composite.clear_device_`."""
        return self

    def clone(self) -> Self:
        """A copy that shares no tensor with this one."""
        return self._with(
            **{name: arg.clone() for name, arg in self._arguments().items() if isinstance(arg, Tensor)},
        )

    def memoize_encode(self, mode: bool = True) -> None:
        """Accepted and without effect: encoding keeps nothing, so there is nothing that could be stale."""

    def erase_memoize_cache(self) -> None:
        """Accepted and without effect, as `memoize_encode`."""

    # -- as a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec) or self._kind != other._kind:
            return False
        own_arguments, other_arguments = self._arguments(), other._arguments()
        return own_arguments.keys() == other_arguments.keys() and all(
            _values_equal(value, other_arguments[name]) for name, value in own_arguments.items()
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self._repr_fields().items())})"

    def _repr_fields(self) -> dict[str, Any]:
        return {"shape": tuple(self.shape), "dtype": self.dtype, "device": self.device}

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return torch_functions.dispatch(func, args, kwargs or {})

    @classmethod
    def implements_for_spec(cls, torch_function: Callable[..., Any]) -> Callable[[Any], Any]:
        """Decorator that makes the decorated function what `torch_function` does with specs."""
        return torch_functions.register_torch_function(torch_function)


def _values_equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and _equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):  # in whatever order
        return a.keys() == b.keys() and all(_values_equal(value, b[key]) for key, value in a.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    try:
        equal = a == b
        return equal if isinstance(equal, bool) else bool(np.all(equal))
    except ValueError:  # an object that holds arrays, and compares them as if they were numbers
        return pickle.dumps(a) == pickle.dumps(b)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.device.type == "meta" or torch.equal(a, b)
