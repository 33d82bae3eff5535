"""Transforms of the dtype, the device and the memory of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite, TensorSpec
from ..entries.keys import Key, split_key
from .base import StatelessTransform
from .keyed_module import Keys
from .ragged_entries import part_leaves

__all__ = ["DTypeCastTransform", "DeviceCastTransform", "DoubleToFloat", "PinMemoryTransform"]


class DTypeCastTransform(StatelessTransform):
    """Casts outputs from `dtype_in` to `dtype_out`, and inputs from `dtype_out` to `dtype_in`.

    Without keys, all entries of the dtype are cast: observations, rewards, actions and states of an environment, or all
    entries of stored data.

    Args:
        dtype_in: the dtype in the environment.
        dtype_out: the dtype that the user sees.
        in_keys, out_keys: the keys of outputs to cast.
        in_keys_inv, out_keys_inv: the keys of inputs to cast; none if only `in_keys` are given.

    >>> from tensordict import TensorDict
    >>> cast = DTypeCastTransform(torch.float64, torch.float16)
    >>> cast(TensorDict({"x": torch.zeros(2, dtype=torch.float64), "n": torch.zeros(2)}))["x"].dtype
    torch.float16
    """

    elementwise = True
    _takes_records = True
    _takes_parts = True

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        for name, dtype in (("dtype_in", dtype_in), ("dtype_out", dtype_out)):
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"Expected {name} to be a torch.dtype, got {dtype!r:.80}.")
        self.dtype_in = dtype_in
        self.dtype_out = dtype_out

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return [] if parent is None else self._keys_of_dtype(parent.full_observation_spec, parent.full_reward_spec)

    def _default_in_keys_inv(self) -> list[Key]:
        parent = self.parent
        if parent is None or self._in_keys is not None:
            return []
        return self._keys_of_dtype(parent.full_action_spec, parent.full_state_spec)

    def _keys_of_dtype(self, *specs: Composite) -> list[Key]:
        leaves = [item for part in specs for item in part.items(include_nested=True, leaves_only=True)]
        return [key for key, spec in leaves if spec is not None and spec.dtype == self.dtype_in]

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_out)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_in)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Casts stored data in place and returns it: the entries `in_keys`, or all entries without keys."""
        if self._in_keys is None and self.container is None:
            return _cast(tensordict, self.dtype_in, self.dtype_out)
        return self._call(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns a copy with the entries `out_keys_inv`, or all entries without keys, cast back to `dtype_in`."""
        if self._in_keys is None and self._in_keys_inv is None and self.container is None:
            return _cast(tensordict.copy(), self.dtype_out, self.dtype_in)
        return super().inv(tensordict)

    def _forward_spec(self, specs: Composite) -> Composite:
        if self._in_keys is None and self.container is None:
            return self._cast_specs(specs, self._spec)
        return super()._forward_spec(specs)

    def _inverse_spec(self, specs: Composite) -> Composite:
        if self._in_keys is None and self._in_keys_inv is None and self.container is None:
            return self._cast_specs(specs, self._inv_spec)
        return super()._inverse_spec(specs)

    def _cast_specs(self, specs: Composite, cast: Callable[[TensorSpec], TensorSpec]) -> Composite:
        for key in self._keys_of_dtype(specs):
            specs[key] = cast(specs[key])
        return specs

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.dtype_out)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """Returns the outer spec. Its bounds are rounded inwards, so that values stay in bounds after the cast back."""
        is_float = self.dtype_in.is_floating_point and self.dtype_out.is_floating_point
        if not isinstance(spec, Bounded) or not is_float:
            return spec.to(self.dtype_out)
        low, high = spec.low.to(self.dtype_out), spec.high.to(self.dtype_out)
        low = torch.where(low.to(self.dtype_in) < spec.low, low.nextafter(torch.full_like(low, torch.inf)), low)
        high = torch.where(high.to(self.dtype_in) > spec.high, high.nextafter(torch.full_like(high, -torch.inf)), high)
        return Bounded(low, high, spec.shape, dtype=self.dtype_out, device=spec.device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dtype_in={self.dtype_in}, dtype_out={self.dtype_out}, keys={self.in_keys})"


def _cast(td: TensorDictBase, dtype_in: torch.dtype, dtype_out: torch.dtype) -> TensorDictBase:
    for part, key, value in part_leaves(td):
        if isinstance(value, Tensor) and value.dtype == dtype_in:
            part.set(split_key(key)[1], value.to(dtype_out))
    return td


class DoubleToFloat(DTypeCastTransform):
    """Casts outputs from float64 to float32, and inputs from float32 to float64.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: as in `DTypeCastTransform`.
    """

    def __init__(
        self, in_keys: Keys = None, out_keys: Keys = None, in_keys_inv: Keys = None, out_keys_inv: Keys = None
    ):
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)


class DeviceCastTransform(StatelessTransform):
    """Moves outputs to a device, and inputs to the device of the environment.

    Without keys, all entries are moved, and `device` is the device of the transformed environment. With keys, only
    these entries are moved, and the device of the transformed environment is None. Stored data may lack some of them.

    Args:
        device: the device of data that the user sees.
        orig_device: the device of data in the environment; by default the device of the environment or of its actions.
        in_keys, out_keys: the keys of outputs to move.
        in_keys_inv, out_keys_inv: the keys of inputs to move.

    Raises:
        RuntimeError: on use with inputs, if `orig_device` is neither given nor known.
    """

    _takes_parts = True
    preserves_done = False  # done flags may be on another device than the ones that the user sees

    def __init__(
        self,
        device: Any,
        orig_device: Any = None,
        *,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.device = _device(device)
        self._orig_device = None if orig_device is None else _device(orig_device)

    @property
    def orig_device(self) -> torch.device | None:
        """The device of data in the environment, or None if unknown."""
        if self._orig_device is not None:
            return self._orig_device
        return self._parent_device

    @cached_property
    def _parent_device(self) -> torch.device | None:
        parent = self.parent
        if parent is None or parent.device is not None:
            return None if parent is None else parent.device
        return next((spec.device for spec in _leaves(parent.full_action_spec)), None)

    @property
    def _casts_everything(self) -> bool:
        return self._in_keys is None and self._in_keys_inv is None

    @property
    def elementwise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether only entries of given keys are moved. A whole TensorDict cannot be moved in place."""
        return not self._casts_everything

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self._casts_everything:
            return next_tensordict.to(self.device)
        return super()._call(next_tensordict.clear_device_())

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._casts_everything:
            return super()._inv_call(tensordict.clear_device_())
        return tensordict.to(self._require_orig_device())

    def _require_orig_device(self) -> torch.device:
        if self.orig_device is None:
            raise RuntimeError(
                "Expected DeviceCastTransform to have an orig_device for inputs, got none. Give orig_device."
            )
        return self.orig_device

    @property
    def _has_inverse(self) -> bool:
        return self._casts_everything or bool(self._inverse_key_pairs)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Moves the entries of stored data and returns it."""
        return self._tolerant(self._call, tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns a copy of the input of the environment, or of the data to store, with the entries moved."""
        return self._tolerant(super().inv, tensordict) if self.container is None else super().inv(tensordict)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.device)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self._require_orig_device())

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Moves the specs of outputs to the device and returns them."""
        return (
            output_spec.to(self.device)
            if self._casts_everything
            else super().transform_output_spec(output_spec.clear_device_())
        )

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Moves the specs of inputs to the device and returns them."""
        if self._casts_everything:
            return input_spec.to(self.device)
        return super().transform_input_spec(input_spec.clear_device_())

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.device)

    _inv_spec = _spec

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Returns the device of the transform if all entries are moved, else None."""
        return self.device if self._casts_everything else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(device={self.device}, orig_device={self.orig_device})"


def _device(device: Any) -> torch.device:
    """Returns a device in the form that tensors report: the CPU without an index, others with one."""
    device = torch.device(device)
    return torch.device("cpu") if device.type == "cpu" else torch.empty(0, device=device).device


def _leaves(specs: Composite) -> Iterable[TensorSpec]:
    return (spec for spec in specs.values(include_nested=True, leaves_only=True) if spec is not None)


class PinMemoryTransform(StatelessTransform):
    """Moves outputs to pinned memory, from which copies to a GPU can be asynchronous.

    Without a GPU it changes nothing, and neither do outputs on a GPU change. (TorchRL raises an error.)
    """

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if not torch.cuda.is_available():
            return next_tensordict
        return next_tensordict.apply(lambda value: value.pin_memory() if value.is_cpu else value)
