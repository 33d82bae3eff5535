"""Which library computes the rows of a task: NumPy or torch, with the same functions of the task.

A call of NumPy takes a third of the time of a call of torch, which decides in small batches. torch has devices,
threads, gradients and a compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..engine.simulator import Array, BatchStep
from ..engine.trees import map_tree

ArrayLibrary = Literal["numpy", "torch"]

NUMPY_ROWS = 65536
"""The number of rows from which torch is as fast as NumPy on one thread of a CPU, and faster on several."""


def namespace_of(array: Array) -> Any:
    """Returns the module `torch` for a tensor and `numpy` for an array; the tasks use functions that both define.

    >>> namespace_of(torch.zeros(1)) is torch, namespace_of(np.zeros(1)) is np
    (True, True)
    """
    return torch if isinstance(array, Tensor) else np


def constants_like(array: Array, values: tuple[float, ...]) -> tuple[Any, ...]:
    """Returns constants for arithmetic with `array`: for NumPy as arrays, which halves the time of small operations."""
    return values if isinstance(array, Tensor) else _as_arrays(values, array.dtype)


@cache
def _as_arrays(values: tuple[float, ...], dtype: np.dtype[Any]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(value, dtype) for value in values)


def stack(arrays: Sequence[Array]) -> Array:
    """Stacks arrays `[n]` or tensors `[n]` along a first dimension (`np.stack` takes four times as long)."""
    return torch.stack(list(arrays)) if isinstance(arrays[0], Tensor) else np.array(arrays)


def choose_library(requested: str | None, num_envs: int, can_use_numpy: bool) -> ArrayLibrary:
    """Returns the library that is requested, or by default the faster one for batches of `num_envs` rows.

    Raises:
        ValueError: there is no such library, or NumPy is requested where only torch computes.

    >>> choose_library(None, 64, can_use_numpy=True), choose_library(None, 64, can_use_numpy=False)
    ('numpy', 'torch')
    """
    if requested is None:
        return "numpy" if can_use_numpy and num_envs < NUMPY_ROWS else "torch"
    if requested == "torch" or (requested == "numpy" and can_use_numpy):
        return requested
    advice = "" if requested != "numpy" else " NumPy computes tasks that support it, on a CPU and without compile."
    raise ValueError(f"Expected arrays 'numpy', 'torch' or None, got {requested!r}.{advice}")


def to_numpy_dtype(dtype: torch.dtype) -> type[np.floating[Any]]:
    """Returns NumPy's name of `torch.float32` or `torch.float64`."""
    return np.float64 if dtype == torch.float64 else np.float32


def to_tensors(arrays: Sequence[Array]) -> Iterable[Tensor]:
    """Returns tensors that share the memory of NumPy arrays; tensors unchanged."""
    return arrays if isinstance(arrays[0], Tensor) else map(torch.from_numpy, arrays)


def step_in_tensors(step: BatchStep) -> BatchStep:
    """Returns a step of NumPy arrays as tensors that share their memory."""
    obs, info = (map_tree(torch.from_numpy, tree) for tree in (step.next_obs, step.info))
    reward, terminated, truncated = to_tensors((step.reward, step.terminated, step.truncated))
    return BatchStep(obs, reward, terminated, truncated, info)


def on_host(tensor: Tensor) -> np.ndarray:
    """Returns a tensor as an array, which shares its memory on the CPU (`force` alone takes 3 microseconds)."""
    return tensor.numpy(force=not tensor.is_cpu or tensor.requires_grad)
