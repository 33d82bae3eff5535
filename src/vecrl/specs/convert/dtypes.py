"""Converts dtypes of NumPy to those of torch, and back, and bounds to arguments of specs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...errors import SpaceError


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
