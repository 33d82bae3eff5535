"""Converts tensor specs to gymnasium spaces, with one function per spec."""

from __future__ import annotations

from functools import singledispatch
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
    Stacked,
    StackedComposite,
    TensorSpec,
    Unbounded,
)
from ..base import domain_of
from ..composite import entries_of
from ..dtypes import numpy_dtype

Space = spaces.Space[Any]

_BOOL: Any = np.bool_  # typed as Any: gymnasium takes it, but its annotations do not include it


@singledispatch
def space_from_spec(spec: object) -> Space:
    """Converts a spec to the gymnasium space of what its `to_numpy` returns, so one-hot rows become indices.

    A Composite with the keys "0", "1", … becomes a Tuple, any other a Dict. Masks are dropped, since gymnasium's
    `sample` takes them as an argument. A NonTensor can be converted only if it has a space.

    Raises:
        SpaceError: no space can represent the spec, for instance one with dynamic dimensions.

    >>> space_from_spec(OneHot(4, min=1))
    Discrete(4, start=1)
    """
    raise SpaceError(f"gymnasium has no space for {spec!r:.200}.")


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    if -1 in spec.shape:
        raise SpaceError(f"Expected fixed sizes, as gymnasium's spaces have, got dynamic ones (-1) in {spec!r}.")
    return tuple(spec.shape)


@space_from_spec.register
def _bounded(spec: Bounded) -> spaces.Box:
    dtype = numpy_dtype(spec.dtype)
    low, high = (bound.to(torch.float64) if dtype.kind == "f" else bound for bound in (spec.low, spec.high))
    shape = _shape(spec)
    return spaces.Box(low.cpu().numpy().astype(dtype), high.cpu().numpy().astype(dtype), shape, dtype.type)


@space_from_spec.register
def _unbounded(spec: Unbounded) -> spaces.Box:
    dtype = numpy_dtype(spec.dtype)
    shape = _shape(spec)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, _BOOL)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    info = np.iinfo(dtype)
    return spaces.Box(info.min, info.max, shape, dtype.type)


@space_from_spec.register
def _binary(spec: Binary) -> spaces.Box | spaces.MultiBinary:
    if spec.dtype == torch.bool:
        return spaces.Box(0, 1, _shape(spec), _BOOL)
    return spaces.MultiBinary(_shape(spec)) if spec.ndim != 1 else spaces.MultiBinary(_shape(spec)[0])


@space_from_spec.register
def _categorical(spec: Categorical) -> Space:
    if spec.n < 1:
        raise SpaceError("gymnasium has no space for a choice among an unknown number of options.")
    return _choice_space(spec.n, spec.min, _shape(spec), spec.dtype)


def _choice_space(n: int, start: int, shape: tuple[int, ...], dtype: torch.dtype | None) -> Space:
    space_dtype = np.dtype(np.int64) if dtype == torch.bool else numpy_dtype(dtype)
    if not shape:
        return spaces.Discrete(n, start=start, dtype=space_dtype.type)
    return spaces.MultiDiscrete(np.full(shape, n), space_dtype.type, start=np.full(shape, start))


@space_from_spec.register
def _multi_categorical(spec: MultiCategorical) -> Space:
    _shape(spec)
    nvec, start = domain_of(spec).counts.cpu().numpy(), spec.min.cpu().numpy()
    if not spec.ndim:
        return _choice_space(int(nvec), int(start), (), spec.dtype)
    return spaces.MultiDiscrete(nvec, numpy_dtype(spec.dtype).type, start=start)


@space_from_spec.register
def _one_hot(spec: OneHot | MultiOneHot) -> Space:
    return space_from_spec(spec.to_categorical_spec())


@space_from_spec.register
def _non_tensor(spec: NonTensor) -> Space:
    if not isinstance(spec.space, spaces.Space):
        raise SpaceError("Expected a NonTensor with a space, got one without. Build it with space=….")
    space: Space = spec.space
    for size in reversed(_shape(spec)):
        space = spaces.Tuple((space,) * size)
    return space


@space_from_spec.register
def _composite(spec: Composite) -> Space:
    entries = {name: space_from_spec(entry) for name, entry in entries_of(spec).items() if entry is not None}
    if entries and list(entries) == [str(i) for i in range(len(entries))]:
        return spaces.Tuple(tuple(entries.values()))
    return spaces.Dict(entries)


@space_from_spec.register
def _stacked(spec: Stacked | StackedComposite) -> Space:
    return spaces.Tuple(tuple(space_from_spec(row) for row in spec.specs))
