"""Copies many NumPy arrays to one in one transfer, because each transfer has a fixed launch cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch

from ..engine.space_layout import Tree
from .arrays import convert_to_torch

_ALIGN = 64  # bytes: enough for every dtype and for vectorized loads


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Returns `tree` with every numeric array converted to a tensor on `device`.

    Args:
        tree: arrays nested in dicts, tuples and one-dimensional object arrays. Other values are not changed.
        device: the target. CPU tensors share the arrays' memory; for other devices all arrays are copied in one
            transfer.

    >>> to_device({"x": np.zeros(2), "name": ["a", None]}, torch.device("cpu"))
    {'x': tensor([0., 0.], dtype=torch.float64), 'name': ['a', None]}
    """
    if device.type == "cpu":
        return _map(tree, convert_to_torch)
    arrays: list[np.ndarray] = []
    _map(tree, arrays.append)
    tensors = iter(copy_to_device(arrays, device))
    return _map(tree, lambda _: next(tensors))


def copy_to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copies `arrays` to `device` as one block, and returns one tensor per array, each a view of that block."""
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in arrays)]).tolist()
    staging_buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    staging_bytes = staging_buffer.numpy()
    for start, array in zip(starts, arrays, strict=False):
        staging_bytes[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # torch reuses pinned memory only after the copy has finished, so this function need not wait for the copy.
    block = staging_buffer.to(device, non_blocking=True)
    dtypes = [torch.from_numpy(np.empty(0, array.dtype)).dtype for array in arrays]
    return [
        block[start : start + array.nbytes].view(dtype).view(array.shape)
        for start, array, dtype in zip(starts, arrays, dtypes, strict=False)
    ]


def _map(tree: Tree, convert: Callable[[np.ndarray], object]) -> Tree:
    """Returns `tree` with `convert` applied to its numeric arrays, always in the same order."""
    if isinstance(tree, dict):
        return {key: _map(value, convert) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map(value, convert) for value in tree)
    if not isinstance(tree, np.ndarray):
        return tree
    if tree.dtype == object:
        converted = np.full(tree.shape, None, object)
        for index, value in enumerate(tree):
            converted[index] = _map(value, convert)
        return converted
    return convert(tree) if _has_torch_dtype(tree.dtype) else tree


@lru_cache
def _has_torch_dtype(dtype: np.dtype[np.generic]) -> bool:
    """Returns whether torch has this dtype; it has no text, no times and no foreign byte order."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True
