"""Converts gymnasium spaces to tensor specs, with one function per space.

`spec_from_gym.register(MySpace)` registers another one: a function of the space and of the `ConversionOptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ...errors import SpaceError
from .. import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from ..base import Device
from ..dtypes import scalar_if_uniform, torch_dtype
from ..non_tensor import Sampler


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """The options of `spec_from_gym`, which the functions of the spaces receive.

    Attributes:
        device: of the specs.
        categorical: choices as indices instead of one-hot rows.
        dtype: of the choices, None for the space's own.
        merge_equal: several choices of equally many options as one spec.
    """

    device: Device
    categorical: bool
    dtype: torch.dtype | None
    merge_equal: bool = False


Converter = Callable[[Any, ConversionOptions], TensorSpec]

_CONVERTERS: dict[type | str, Converter] = {}


def spec_from_gym(
    space: object,
    *,
    device: Device = None,
    categorical: bool = False,
    dtype: torch.dtype | None = None,
    merge_equal: bool = False,
) -> TensorSpec:
    """Converts a gymnasium space to a spec of the same structure.

    Spaces of the old gym are recognized by the names of their classes.

    | space | spec |
    |---|---|
    | Box | `Bounded`, or `Unbounded` if the bounds allow all values of the dtype |
    | Discrete | `OneHot`, or `Categorical`; `start` becomes `min` |
    | MultiDiscrete | `MultiOneHot`, or `MultiCategorical`; always the latter if it has several dimensions |
    | MultiBinary | `Binary` |
    | Dict | `Composite` |
    | Tuple | `Composite` with the keys "0", "1", … |
    | Text, Sequence, Graph, OneOf and any other | `NonTensor` that samples from the space |

    Args:
        space: the space to convert.
        device: of the spec; None for torch's default device.
        categorical: choices as indices instead of one-hot rows.
        dtype: of the choices; None for the space's own.
        merge_equal: convert a MultiDiscrete in which all choices have n options to a `OneHot` of shape `[*shape, n]`
            or a `Categorical` of shape `[*shape]`, as TorchRL does.

    >>> spec_from_gym(spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.Box(-1, 1, (2,))), categorical=True)
    Composite(
        a: Categorical(n=3, shape=(), dtype=torch.int64, device=cpu, min=1),
        b: Bounded(low=-1, high=1, shape=(2,), dtype=torch.float32, device=cpu),
        shape=(), device=None)
    """
    return convert(space, ConversionOptions(device, categorical, dtype, merge_equal))


def register_space(space_type: type | str) -> Callable[[Converter], Converter]:
    """Decorator that registers a function of a space and a `ConversionOptions` for spaces of `space_type`.

    `space_type` is a class or its name, with or without the module.
    """

    def add(converter: Converter) -> Converter:
        _CONVERTERS[space_type] = converter
        return converter

    return add


spec_from_gym.register = register_space  # pyright: ignore[reportFunctionMemberAccess]


def convert(space: Any, options: ConversionOptions) -> TensorSpec:
    """Converts a space by its class, else by the name of its class, which supports spaces of the old gym."""
    names = {cls.__name__: converter for cls, converter in _CONVERTERS.items() if isinstance(cls, type)}
    for cls in type(space).__mro__:
        for type_key in (cls, f"{cls.__module__}.{cls.__qualname__}", cls.__name__):
            if type_key in _CONVERTERS:
                return _CONVERTERS[type_key](space, options)
    for cls in type(space).__mro__:
        if cls.__name__ in names and cls.__module__.startswith("gym"):
            return names[cls.__name__](space, options)
    if all(hasattr(space, name) for name in ("sample", "seed", "contains")):
        return NonTensor((), options.device, example_data=_example(space), space=space)
    raise SpaceError(f"Expected a space, got {space!r:.80}. Register other classes with spec_from_gym.register(type).")


def _example(space: Sampler) -> object:
    """Samples one element of a space, always the same, without a change to its random number generator."""
    import copy

    space = copy.deepcopy(space)
    space.seed(0)
    return space.sample()


@register_space(spaces.Box)
def _box(space: spaces.Box, options: ConversionOptions) -> TensorSpec:
    dtype = torch_dtype(space.dtype)
    low, high = np.asarray(space.low), np.asarray(space.high)
    if dtype == torch.bool:
        unbounded = True
    elif dtype.is_floating_point:
        unbounded = bool(np.isneginf(low).all() and np.isposinf(high).all())
    else:
        info = torch.iinfo(dtype)
        unbounded = bool((low == info.min).all() and (high == info.max).all())
    if unbounded:
        return Unbounded(space.shape, options.device, dtype)
    if dtype == torch.uint64:
        low, high = (np.minimum(bound, 2**63 - 1).astype(np.int64) for bound in (low, high))
    return Bounded(scalar_if_uniform(low), scalar_if_uniform(high), space.shape, options.device, dtype)


@register_space(spaces.Discrete)
def _discrete(space: spaces.Discrete, options: ConversionOptions) -> TensorSpec:
    n, start = int(space.n), int(getattr(space, "start", 0))
    if options.categorical:
        return Categorical(n, (), options.device, options.dtype or torch_dtype(space.dtype), min=start)
    return OneHot(n, None, options.device, options.dtype or torch_dtype(space.dtype), min=start)


@register_space(spaces.MultiDiscrete)
def _multi_discrete(space: spaces.MultiDiscrete, options: ConversionOptions) -> TensorSpec:
    nvec = np.array(space.nvec, dtype=np.int64)
    start = np.array(getattr(space, "start", np.zeros_like(nvec)), dtype=np.int64)
    dtype = options.dtype or torch_dtype(space.dtype)
    if options.merge_equal and nvec.size > 1 and not (np.ptp(nvec) or np.ptp(start)):
        n, minimum = int(nvec.flat[0]), int(start.flat[0])
        if options.categorical:
            return Categorical(n, nvec.shape, options.device, dtype, min=minimum)
        return OneHot(n, (*nvec.shape, n), options.device, dtype, min=minimum)
    spec_type = MultiCategorical if options.categorical or nvec.ndim != 1 else MultiOneHot
    return spec_type(torch.as_tensor(nvec), None, options.device, dtype, min=torch.as_tensor(start))


@register_space(spaces.MultiBinary)
def _multi_binary(space: spaces.MultiBinary, options: ConversionOptions) -> TensorSpec:
    return Binary(shape=space.shape, device=options.device, dtype=torch_dtype(space.dtype))


@register_space(spaces.Dict)
def _dict(space: spaces.Dict, options: ConversionOptions) -> TensorSpec:
    return Composite(
        {str(name): convert(subspace, options) for name, subspace in space.spaces.items()}, device=options.device
    )


@register_space(spaces.Tuple)
def _tuple(space: Any, options: ConversionOptions) -> TensorSpec:
    return Composite(
        {str(i): convert(subspace, options) for i, subspace in enumerate(space.spaces)}, device=options.device
    )
