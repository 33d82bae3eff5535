"""Converts dtypes of NumPy to those of torch, and back; casts that change no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SpaceError


def torch_dtype(dtype: Any) -> torch.dtype:
    """Returns the torch dtype of the same name as a NumPy (or JAX) dtype.

    >>> torch_dtype("uint8"), torch_dtype(np.float64)
    (torch.uint8, torch.float64)
    """
    name = np.dtype(dtype).name if str(dtype) != "bfloat16" else "bfloat16"
    result = getattr(torch, name, None)
    if not isinstance(result, torch.dtype):
        raise SpaceError(f"Expected a dtype that tensors can have, got {dtype!r}.")
    return result


def scalar_if_uniform(bound: np.ndarray) -> object:
    """Returns one number if all elements of the bound are equal, which makes drawing faster; else a copy."""
    if bound.size and bool((bound == bound.flat[0]).all()):
        return bound.flat[0]
    return bound.astype(np.int64) if bound.dtype.kind == "u" else np.array(bound)


def numpy_dtype(dtype: torch.dtype | None) -> np.dtype[Any]:
    """Returns the NumPy dtype of the same name as a torch dtype.

    >>> numpy_dtype(torch.uint8)
    dtype('uint8')
    """
    try:
        result = np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        result = None
    if result is None or result.kind not in "biufc":  # if JAX is imported, np.dtype finds bfloat16, an extension type
        raise SpaceError(f"NumPy has no {dtype}. Cast the spec, for instance with spec.to(torch.float32).")
    return result


def is_integral(dtype: torch.dtype) -> bool:
    """Returns whether values of a dtype are integers or flags."""
    return not (dtype.is_floating_point or dtype.is_complex)


def cast_exactly(value: Tensor, dtype: torch.dtype, name: object = None) -> Tensor:
    """Converts a tensor to a dtype of integers or flags.

    Args:
        value: numbers that the dtype can hold. A tensor that requires gradients is returned unchanged, because no
            other dtype has gradients.
        dtype: the dtype; if it is no dtype of integers or flags, `value` is returned unchanged.
        name: the name of the value in errors, such as its key.

    Raises:
        SpaceError: values are no whole numbers, or the dtype cannot hold them.

    >>> cast_exactly(torch.tensor([1.0, 0.0]), torch.int8)
    tensor([1, 0], dtype=torch.int8)
    """
    if value.dtype == dtype or not is_integral(dtype) or value.requires_grad:
        return value
    cast = value.to(dtype)
    changed = cast.to(value.dtype) != value
    if changed.any():
        place = "" if name is None else f" at {name!r}"
        raise SpaceError(
            f"Expected whole numbers that {dtype} can hold{place}, got {value[changed].flatten()[0].item()} of "
            f"{value.dtype}. Round or clip the values."
        )
    return cast
