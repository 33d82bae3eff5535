"""dtypes of NumPy as those of torch, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...errors import SpaceError


def torch_dtype(dtype: Any) -> torch.dtype:
    """The dtype of torch that holds what a dtype of NumPy (or JAX) does.

    >>> torch_dtype("uint8"), torch_dtype(np.float64)
    (torch.uint8, torch.float64)
    """
    name = np.dtype(dtype).name if str(dtype) != "bfloat16" else "bfloat16"
    result = getattr(torch, name, None)
    if not isinstance(result, torch.dtype):
        raise SpaceError(f"Expected a dtype that tensors can have, but {dtype!r} came.")
    return result


def numpy_dtype(dtype: torch.dtype | None) -> np.dtype[Any]:
    """The dtype of NumPy for one of torch.

    >>> numpy_dtype(torch.uint8)
    dtype('uint8')
    """
    try:
        result = np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        result = None
    if result is None or result.kind not in "biufc":  # where JAX is imported, NumPy knows bfloat16 by name, and no more
        raise SpaceError(f"NumPy has no {dtype}: cast the spec, for instance with spec.to(torch.float32).")
    return result
