"""`cast_exactly`: conversions to integers and flags that change no value. It must not know specs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import SpaceError


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
