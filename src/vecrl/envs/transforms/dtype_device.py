"""Transforms of what values are stored as: their dtype, their device, pinned memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite, TensorSpec
from ..spec_container import Key
from .stateless import StatelessTransform


class DTypeCastTransform(StatelessTransform):
    """Casts what is of `dtype_in` inside to `dtype_out` outside, and back on the way in.

    Where no keys are given, all is cast that has the dtype: of an environment its observations and rewards, and on the
    way in its actions and states; of stored data everything.

    Args:
        dtype_in: the dtype inside.
        dtype_out: the dtype outside.
        in_keys, out_keys: what is cast on the way out.
        in_keys_inv, out_keys_inv: what is cast on the way in; nothing where `in_keys` alone are given.

    >>> from tensordict import TensorDict
    >>> cast = DTypeCastTransform(torch.float64, torch.float16)
    >>> cast(TensorDict({"x": torch.zeros(2, dtype=torch.float64), "n": torch.zeros(2)}))["x"].dtype
    torch.float16
    """

    elementwise = True

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Any = None,
        out_keys: Any = None,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
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
        """Cast stored data, in place: the entries `in_keys` of the root, or everything where none are given."""
        if self._in_keys is None and self.container is None:
            return _cast(tensordict, self.dtype_in, self.dtype_out)
        return self._call(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A copy with the entries `out_keys_inv` cast back, or everything where no keys at all are given."""
        if self._in_keys is None and self._in_keys_inv is None and self.container is None:
            return _cast(tensordict.copy(), self.dtype_out, self.dtype_in)
        return super().inv(tensordict)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.dtype_out)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """With bounds that are rounded inwards, so that whatever is in it is still inside once it is cast back."""
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
    for key, value in list(td.items(include_nested=True, leaves_only=True)):
        if isinstance(value, Tensor) and value.dtype == dtype_in:
            td.set(key, value.to(dtype_out))
    return td


class DoubleToFloat(DTypeCastTransform):
    """Casts float64 to float32, and back on the way in; see `DTypeCastTransform`.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: see `DTypeCastTransform`.
    """

    def __init__(self, in_keys: Any = None, out_keys: Any = None, in_keys_inv: Any = None, out_keys_inv: Any = None):
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)


class DeviceCastTransform(StatelessTransform):
    """Moves data to a device on the way out, and to the environment's on the way in.

    Where no keys are given, all is moved, and the environment is on `device` for its user; otherwise only those
    entries are, and what the user sees says nothing of a common device.

    Args:
        device: where data are outside.
        orig_device: where they are inside; by default where the environment has its actions.
        in_keys, out_keys: what is moved on the way out.
        in_keys_inv, out_keys_inv: what is moved on the way in.

    Raises:
        RuntimeError: data come the way in, and nothing says where to.
    """

    preserves_done = False  # the flags of an environment elsewhere are not where those of its user are

    def __init__(
        self,
        device: Any,
        orig_device: Any = None,
        *,
        in_keys: Any = None,
        out_keys: Any = None,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.device = _device(device)
        self._orig_device = None if orig_device is None else _device(orig_device)

    @property
    def orig_device(self) -> torch.device | None:
        """Where data are inside; None where nothing says so."""
        if self._orig_device is not None:
            return self._orig_device
        return self._cached("orig", self._infer_orig_device)

    def _infer_orig_device(self) -> torch.device | None:
        parent = self.parent
        if parent is None or parent.device is not None:
            return None if parent is None else parent.device
        return next((spec.device for spec in _leaves(parent.full_action_spec)), None)

    @property
    def _casts_everything(self) -> bool:
        return self._in_keys is None and self._in_keys_inv is None

    @property
    def elementwise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether it moves single entries; a TensorDict as a whole cannot be moved in place."""
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
            raise RuntimeError("DeviceCastTransform does not know the device inside: give orig_device.")
        return self.orig_device

    @property
    def _has_inverse(self) -> bool:
        return self._casts_everything or bool(self._inverse_key_pairs)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self.device)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value.to(self._require_orig_device())

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The specs of all that comes out, on the device."""
        return (
            output_spec.to(self.device)
            if self._casts_everything
            else super().transform_output_spec(output_spec.clear_device_())
        )

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The specs of all that goes in, on the device."""
        if self._casts_everything:
            return input_spec.to(self.device)
        return super().transform_input_spec(input_spec.clear_device_())

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.device)

    _inv_spec = _spec

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Its own where it moves all, else None."""
        return self.device if self._casts_everything else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(device={self.device}, orig_device={self.orig_device})"


def _device(device: Any) -> torch.device:
    """As tensors have it: the CPU without a number, others with one."""
    device = torch.device(device)
    return torch.device("cpu") if device.type == "cpu" else torch.empty(0, device=device).device


def _leaves(specs: Composite) -> Iterable[TensorSpec]:
    return (spec for spec in specs.values(include_nested=True, leaves_only=True) if spec is not None)


class PinMemoryTransform(StatelessTransform):
    """Puts what comes out into pinned memory, from which copies to a GPU need not wait.

    Where there is no GPU, nothing happens. (TorchRL raises an error.)
    """

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.pin_memory() if torch.cuda.is_available() else next_tensordict
