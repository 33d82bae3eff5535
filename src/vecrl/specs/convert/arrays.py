"""Converts array specs of dm_env, Jumanji, gymnax and JAX to tensor specs.

The specs are recognized by their attributes: none of these libraries is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import SpaceError
from .. import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, NonTensor, OneHot, TensorSpec, Unbounded
from ..base import Device
from ..dtypes import scalar_if_uniform, torch_dtype


def spec_from_dm(spec: Any, *, device: Device = None, categorical: bool = False) -> TensorSpec:
    """Converts a dm_env spec, or a nested structure of them, to a tensor spec.

    `Array` becomes `Unbounded`, `BoundedArray` `Bounded`, `DiscreteArray` `OneHot` (or `Categorical`), `StringArray`
    `NonTensor`. A mapping becomes a Composite with its keys, a named tuple one with its fields, another sequence one
    with the keys "0", "1", ….

    Args:
        spec: an object with the attributes of dm_env's specs, or a structure of them.
        device: of the result; None for torch's default device.
        categorical: choices as indices instead of one-hot rows.
    """
    parts = _named_parts(spec)
    if parts is not None:
        entries = {name: spec_from_dm(part, device=device, categorical=categorical) for name, part in parts.items()}
        return Composite(entries, device=device)
    if not (hasattr(spec, "shape") and hasattr(spec, "dtype")):
        raise SpaceError(f"Expected a spec with a shape and a dtype, or a structure of them, got {spec!r:.80}.")
    if hasattr(spec, "string_type") or np.dtype(spec.dtype).kind in "OSU":
        return NonTensor(tuple(spec.shape), device, example_data="")
    if getattr(spec, "num_values", None) is not None:
        return _choice_spec(np.asarray(spec.num_values), spec, device, categorical)
    dtype, shape = torch_dtype(spec.dtype), tuple(spec.shape)
    low, high = getattr(spec, "minimum", None), getattr(spec, "maximum", None)
    if low is None or high is None:
        return Unbounded(shape, device, dtype)
    low, high = (np.broadcast_to(np.asarray(bound), shape) for bound in (low, high))
    if dtype == torch.bool or (dtype.is_floating_point and np.isneginf(low).all() and np.isposinf(high).all()):
        return Unbounded(shape, device, dtype)
    return Bounded(scalar_if_uniform(low), scalar_if_uniform(high), shape, device, dtype)


def spec_from_jax(spec: Any, *, device: Device = None, categorical: bool = False) -> TensorSpec:
    """Converts a `jax.ShapeDtypeStruct`, a Jumanji spec, a gymnax space, or a nested structure, to a tensor spec.

    Args:
        spec: what is converted. Jumanji's specs are those of dm_env, and `MultiDiscreteArray` (becomes `MultiOneHot`,
            or `MultiCategorical`) and specs that contain others; gymnax has `Discrete`, `Box`, `Dict` and `Tuple`.
        device: of the result; None for torch's default device.
        categorical: choices as indices instead of one-hot rows.
    """
    kind = type(spec).__name__
    if kind == "Discrete" and hasattr(spec, "n"):
        return _choice_spec(np.asarray(spec.n), spec, device, categorical)
    if kind == "Box" and hasattr(spec, "low"):
        spec = _Box(spec)
    if kind in {"Dict", "Tuple"} and hasattr(spec, "spaces"):
        spec = spec.spaces
    parts = _named_parts(spec)
    if parts is None:
        return spec_from_dm(spec, device=device, categorical=categorical)
    entries = {name: spec_from_jax(part, device=device, categorical=categorical) for name, part in parts.items()}
    return Composite(entries, device=device)


class _Box:
    """A gymnax Box with the attribute names of dm_env."""

    def __init__(self, box: Any):
        self.shape, self.dtype = tuple(box.shape), box.dtype
        self.minimum, self.maximum = box.low, box.high


def _named_parts(spec: object) -> dict[str, Any] | None:
    """Returns the parts of a structure by name, or None for a leaf."""
    if isinstance(spec, Mapping):
        return {str(name): part for name, part in spec.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if hasattr(spec, "_fields") and isinstance(spec, tuple):
        return spec._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return {str(i): part for i, part in enumerate(spec)}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    subspecs = getattr(spec, "_specs", None)
    return dict(subspecs) if isinstance(subspecs, Mapping) and subspecs else None


def _choice_spec(counts: np.ndarray, spec: object, device: Device, categorical: bool) -> TensorSpec:
    dtype = torch_dtype(getattr(spec, "dtype", np.int64))
    if counts.ndim == 0:
        n = int(counts)
        return Categorical(n, (), device, dtype) if categorical else OneHot(n, None, device)
    nvec = torch.as_tensor(counts.astype(np.int64))
    if categorical or nvec.ndim != 1:
        return MultiCategorical(nvec, None, device, dtype)
    return MultiOneHot(nvec, None, device)
