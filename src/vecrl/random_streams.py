"""Random streams of a worker: the global generators of `random`, NumPy and torch, seeded and switched together.

Policies and environments draw from global generators. These have equal states in forked processes, and workers in one
process share them. `seed_streams` seeds those of a process; `RandomStreams` replaces them for a block of code. This
module does not import torch: torch's generators are included if torch is already imported. Knows no workers and no
policies.
"""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from .seeding import stream_for


def seed_streams(seed: int) -> None:
    """Seeds the global generators of `random`, NumPy and torch (all its devices), each with a different seed.

    Args:
        seed: 0 <= seed < 2**64. Equal seeds give equal numbers, whatever was drawn before.

    >>> seed_streams(1)
    >>> first = random.random(), np.random.random()
    >>> seed_streams(1)
    >>> (random.random(), np.random.random()) == first
    True
    """
    random.seed(stream_for(seed, "random"))
    np.random.seed(np.frombuffer(stream_for(seed, "numpy").to_bytes(8, "little"), np.uint32))  # noqa: NPY002
    if (torch := _torch()) is not None:
        torch.manual_seed(stream_for(seed, "torch") >> 1)  # it takes 63 bits


class RandomStreams:
    """Replaces the global generators within a `with` block, and restores those of the process after it.

    The next block continues where the last one ended. Blocks of different objects may be nested. If torch is first
    imported within a block, its generators stay seeded after it. Only one thread at a time may be in such a block,
    since the generators belong to the process.

    >>> streams = RandomStreams(1)
    >>> with streams:
    ...     first = random.random()
    >>> with streams:
    ...     second = random.random()
    >>> seed_streams(1)
    >>> (random.random(), random.random()) == (first, second)
    True

    Args:
        seed: the seed of the streams, 0 <= seed < 2**64; see `seed_streams`.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self._bit_generator = np.random.MT19937(0)  # switched as an object, which is faster than copying its state
        self._states: _States | None = None  # of the streams, from the end of the last block
        self._process_states: _States | None = None  # of the process, while a block runs

    def __enter__(self) -> RandomStreams:
        self._process_states = _get_states()
        if self._states is None:
            set_bit_generator(self._bit_generator)
            seed_streams(self._seed)
        else:
            _set_states(self._states)
        return self

    def __exit__(self, *_: object) -> None:
        self._states = _get_states()
        if self._process_states is not None:
            _set_states(self._process_states)


class _States(NamedTuple):
    """The states of the global generators: `random`, NumPy (its bit generator), torch on CPU and CUDA, if loaded."""

    python: tuple[Any, ...]
    numpy: np.random.BitGenerator
    torch: object
    cuda: object


def _torch() -> ModuleType | None:
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "manual_seed") else None  # absent while another thread is importing torch


def _get_states() -> _States:
    torch, on_cpu, on_cuda = _torch(), None, None
    if torch is not None:
        on_cpu = torch.get_rng_state()
        on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return _States(random.getstate(), get_bit_generator(), on_cpu, on_cuda)


def _set_states(states: _States) -> None:
    """Restores what `_get_states` returned; generators that did not exist then stay unchanged."""
    random.setstate(states.python)
    set_bit_generator(states.numpy)
    torch = _torch()
    if torch is not None and states.torch is not None:
        torch.set_rng_state(states.torch)
        if states.cuda is not None:
            torch.cuda.set_rng_state_all(states.cuda)
