"""Random numbers as a pure function of (seed, episode, draw), so that a row's start states depend on nothing else.

With a stateful generator, they would depend on the other rows and on the order of resets; with a hash of a counter,
they do not. All arithmetic is on wrapping 32-bit integers, which CPUs and GPUs compute in vectors with equal results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.simulator import Array

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, the increment of splitmix64
# 2**32 over the golden ratio, the multipliers of "lowbias32" of C. Wellons' hash prospector, and numbers of bits
_CONSTANTS = (0x9E3779B9, 0x7FEB352D, 0x846CA68B, 8, 15, 16)
_UNSIGNED = tuple(np.array(word, np.uint32) for word in _CONSTANTS)
_SIGNED = tuple(int(word.view(np.int32)) for word in _UNSIGNED)  # for torch, which has no arithmetic on uint32


def keys_of(seeds: np.ndarray) -> np.ndarray:
    """Computes two 32-bit keys for each 64-bit seed, with the finalizer of splitmix64 (Steele, Lea and Flood, 2014).

    Args:
        seeds: `[n]` uint64.

    Returns:
        `[2, n]` int32. Different seeds have different pairs of keys.
    """
    z = seeds + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    low, high = z & np.uint64(0xFFFFFFFF), z >> np.uint64(32)
    return np.stack([low, high]).astype(np.uint32).view(np.int32)


def uniform(keys: Tensor, episodes: Tensor, num_draws: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Samples numbers in [0, 1), multiples of 2**-24, which are the same in every dtype and on every device.

    Args:
        keys: `[2, n]` int32, from `keys_of`.
        episodes: `[n]` int32, the episode number of each row.
        num_draws: how many numbers an episode needs.
        dtype: a floating-point dtype.

    Returns:
        `[num_draws, n]` of `dtype` on the keys' device.
    """
    index = torch.arange(num_draws, dtype=torch.int32, device=keys.device)
    return _words(keys, episodes, index).to(dtype) * 2.0**-24


def uniform_numpy(
    keys: np.ndarray, episodes: np.ndarray, num_draws: int, dtype: type[np.floating[Any]] = np.float32
) -> np.ndarray:
    """Samples the same numbers as `uniform` from NumPy arrays, faster for few rows: calls of NumPy take less time."""
    index = np.arange(num_draws, dtype=np.uint32)
    return _words(keys.view(np.uint32), episodes.view(np.uint32), index).astype(dtype) * 2.0**-24


def _words(keys: Array, episodes: Array, index: Array) -> Array:
    """Computes 24 random bits for each draw, `[num_draws, n]`, from tensors of int32 or NumPy arrays of uint32."""
    constants: Any = _SIGNED if isinstance(keys, Tensor) else _UNSIGNED
    stride, first, second, bits8, bits15, bits16 = constants
    shift: Any = _shift if isinstance(keys, Tensor) else np.right_shift

    def mix(word: Array) -> Array:
        """Applies a bijection of words in which every bit of the output depends on every bit of the input."""
        word = (word ^ shift(word, bits16)) * first
        word = (word ^ shift(word, bits15)) * second
        return word ^ shift(word, bits16)

    counter = episodes * len(index) + index[:, None]
    return shift(mix(mix(keys[0] + counter * stride) ^ keys[1]), bits8)


def _shift(word: Tensor, num_bits: int) -> Tensor:
    return (word >> num_bits) & ((1 << (32 - num_bits)) - 1)  # the mask removes the sign bits that the shift inserts
