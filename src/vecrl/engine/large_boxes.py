"""Spaces of large observations, without the arrays of equal numbers that a `Box` has for its bounds.

A `Box` holds four arrays of the size of its elements. To compare, send and batch them would take longer, and more
memory, than the observations. Bounds that are one number are sent as this number, of which the receiver has read-only
views.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space as gymnasium_batch_space

from .space_layout import AnySpace

LARGE = 2**20  # bytes of an array


def equal_spaces(one: Any, other: Any) -> bool:
    """Returns `one == other` for two spaces; fast where large bounds are equal to the bit."""
    if one is other:
        return True
    if type(one) is type(other) is spaces.Box and one.low.nbytes >= LARGE:
        facts = [(space.shape, space.dtype) for space in (one, other)]
        if facts[0] == facts[1] and _equal(one.low, other.low) and _equal(one.high, other.high):
            return True
    if type(one) is type(other) is spaces.Dict:
        return one.keys() == other.keys() and all(equal_spaces(one[key], other[key]) for key in one)
    if type(one) is type(other) is spaces.Tuple:
        return len(one) == len(other) and all(map(equal_spaces, one, other))
    return one == other


def batch_space(space: Any, num_envs: int) -> AnySpace:
    """Returns the space of `num_envs` values, as gymnasium's function of this name; bounds of a large one are views."""
    if is_large(space, num_envs):
        return batch_box(space, num_envs)
    if type(space) is spaces.Dict:
        parts = {key: batch_space(part, num_envs) for key, part in space.items()}
        return spaces.Dict(parts, seed=copy.deepcopy(space.np_random))
    if type(space) is spaces.Tuple:
        return spaces.Tuple([batch_space(part, num_envs) for part in space], seed=copy.deepcopy(space.np_random))
    return gymnasium_batch_space(space, num_envs)


def is_large(space: Any, num_envs: int) -> bool:
    """Returns whether `space` is a `Box` of which `num_envs` copies of a bound take much memory."""
    return type(space) is spaces.Box and space.low.nbytes * num_envs >= LARGE


def batch_box(space: Any, num_envs: int) -> Any:
    """Returns a copy of a `Box` of which all arrays are views with one more axis."""
    batched = copy.copy(space)
    shape = (num_envs, *space.shape)
    for name, value in vars(space).items():
        if isinstance(value, np.ndarray) and value.shape == space.shape:
            setattr(batched, name, np.broadcast_to(value, shape))
    batched._shape, batched._np_random = shape, copy.deepcopy(space.np_random)
    return batched


def dump_by_value(value: object) -> bytes:
    """Pickles spaces for a worker with cloudpickle, bounds that are one number as this number."""
    file = io.BytesIO()
    _CloudPickler(file).dump(value)
    return file.getvalue()


def dump_by_reference(value: object) -> bytes:
    """Pickles spaces for the caller with pickle, bounds that are one number as this number.

    Raises:
        Exception: any exception from pickling the value.
    """
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: object) -> Any:
        return _reduce(obj)


class _CloudPickler(cloudpickle.Pickler):
    def reducer_override(self, obj: object) -> Any:
        reduced = _reduce(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _reduce(obj: object) -> Any:
    if type(obj) is np.ndarray and obj.nbytes >= LARGE and obj.dtype.kind in "biuf":
        array: np.ndarray = obj
        first = array.flat[0]
        if not any(array.strides) or (array == first).all():
            return _constant, (first, array.shape)
    return NotImplemented


def _constant(value: np.generic, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.asarray(value), shape)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if not any(one.strides) and not any(other.strides):
        return bool(one.flat[0] == other.flat[0])
    return np.array_equal(one, other)
