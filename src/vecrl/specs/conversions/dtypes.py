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
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise SpaceError(f"Expected a dtype that tensors can have, but {dtype!r} came.")
    return found


def numpy_dtype(dtype: torch.dtype | None) -> np.dtype[Any]:
    """The dtype of NumPy for one of torch.

    >>> numpy_dtype(torch.uint8)
    dtype('uint8')
    """
    try:
        found = np.dtype(str(dtype).removeprefix("torch."))
    except TypeError:
        found = None
    if found is None or found.kind not in "biufc":  # where JAX is imported, NumPy knows bfloat16 by name, and no more
        raise SpaceError(f"NumPy has no {dtype}: cast the spec, for instance with spec.to(torch.float32).")
    return found
