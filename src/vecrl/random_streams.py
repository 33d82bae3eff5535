"""Random streams of a worker: the global generators of `random`, NumPy and torch, seeded and switched together.

Policies and environments draw from global generators. These have equal states in forked processes, and workers in one
process share them. `seed_streams` seeds those of a process; `RandomStreams` replaces them for a block of code. This
module does not import torch: torch's generators are included if torch is already imported. Knows no workers and no
policies.
"""

from __future__ import annotations

import random
import sys
from typing import Any

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
        self._states: list[Any] | None = None  # of the streams, from the end of the last block
        self._process_states: list[Any] = []  # of the process, while a block runs

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
        _set_states(self._process_states)


def _torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "manual_seed") else None  # absent while another thread is importing torch


def _get_states() -> list[Any]:
    """Returns the states of all global generators: `random`, NumPy (its bit generator), torch on CPU and CUDA."""
    states: list[Any] = [random.getstate(), get_bit_generator()]
    if (torch := _torch()) is not None:
        states.append(torch.get_rng_state())
        if torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state_all())
    return states


def _set_states(states: list[Any]) -> None:
    """Restores what `_get_states` returned; generators that did not exist then stay unchanged."""
    random.setstate(states[0])
    set_bit_generator(states[1])
    if len(states) > 2:
        _torch().set_rng_state(states[2])
    if len(states) > 3:
        _torch().cuda.set_rng_state_all(states[3])
