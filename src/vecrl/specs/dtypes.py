"""Dtypes of torch and NumPy: their names, their limits, and casts that change no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import SpaceError

# torch can neither compare, sample nor pickle tensors of these dtypes
UNSUPPORTED_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
INT64_MAX_FLOAT = 2.0**63 - 1024  # the largest float64 that int64 can hold


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
    """Returns one number if all elements of the bound are equal, which makes sampling faster; else a copy."""
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


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    """Returns `dtype`, which may be given by its name, as a `torch.dtype`; torch's default for None."""
    if dtype is None:
        return torch.get_default_dtype()
    if isinstance(dtype, torch.dtype):
        return dtype
    torch_dtype = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(torch_dtype, torch.dtype):
        raise SpaceError(f"Expected a dtype, such as torch.float32 or 'float32', got {dtype!r}.")
    return torch_dtype


def dtype_limits(dtype: torch.dtype) -> tuple[Any, Any]:
    """Returns the least and greatest finite number of a dtype, limited to the range of int64."""
    if dtype == torch.bool:
        return False, True
    if dtype.is_floating_point or dtype.is_complex:
        info = torch.finfo(dtype)
        return info.min, info.max
    return torch.iinfo(dtype).min, min(torch.iinfo(dtype).max, 2**63 - 1)


def to_comparable(tensor: Tensor) -> Tensor:
    """Returns a tensor of a dtype with which torch can compute: int64 for an unsigned dtype that it only stores."""
    return tensor.to(torch.int64) if tensor.dtype in UNSUPPORTED_UNSIGNED else tensor


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
