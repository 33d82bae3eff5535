"""Seeds as a pure function of (root, environment, episode), so that results depend on nothing else.

They must not depend on the number of workers, the worker that runs an environment, the order in which workers finish,
or the number of other environments. So the seeds are not drawn from a generator: each is a hash of (root, environment,
episode). There is no default seed: None means entropy from the operating system.

A `SeedRule` determines the seed of each episode: `OwnSeeds`, `SharedSeeds`, `ListedSeeds` or `SeedSet`. Knows NumPy
and `validation` only.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .validation import check_seed

Numbers: TypeAlias = int | Sequence[int] | np.ndarray
Seeds: TypeAlias = NDArray[np.uint32] | NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, the increment of splitmix64
_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 2**64 - 1


def seed_for(root: int, env_id: int, episode: int = 0) -> int:
    """Returns the seed of one episode of one environment, in [0, 2**32); equal on all machines and in all versions.

    Args:
        root: the seed that the user gives, 0 <= root < 2**64.
        env_id: the index of the environment, or of a population member.
        episode: the number of earlier episodes of the environment.

    Raises:
        ValueError: a number is below 0 or at least 2**64.

    >>> seed_for(1, 0, 0), seed_for(1, 0, 1), seed_for(1, 1, 0)
    (2978611956, 4173706796, 2665212349)
    """
    return int(seeds_for(root, env_id, episode))


def seeds_for(root: int, env_ids: Numbers, episodes: Numbers = 0) -> NDArray[np.uint32]:
    """Returns the seeds of many environments and episodes, which broadcast; uint32. See `seed_for`.

    >>> seeds_for(1, [0, 1]).tolist()
    [2978611956, 2665212349]

    Raises:
        ValueError: a number is below 0 or at least 2**64.
    """
    word = _mix(_words("root", root) + np.uint64(_GOLDEN))
    for name, numbers in (("env_id", env_ids), ("episode", episodes)):
        word = _mix(word + (_words(name, numbers) + np.uint64(1)) * np.uint64(_GOLDEN))
    return (word >> np.uint64(32)).astype(np.uint32).reshape(np.broadcast_shapes(np.shape(env_ids), np.shape(episodes)))


def stream_for(root: int, name: str) -> int:
    """Returns another root, in [0, 2**64), for random numbers that differ from the episodes': "actions", "test".

    >>> stream_for(1, "actions") == stream_for(1, "test")
    False
    """
    high, low = (seed_for(root, zlib.crc32(name.encode()), _WORD - i) for i in range(2))
    return high << 32 | low


def random_seeds(count: int, bits: int = 32) -> NDArray[np.uint64]:
    """Returns seeds `[count]` from the entropy of the operating system, for whatever was given no seed.

    Args:
        count: how many.
        bits: 0 <= seed < 2**bits; at most 64.
    """
    return np.random.SeedSequence().generate_state(count, np.uint64) >> np.uint64(64 - bits)


def random_seed(bits: int = 32) -> int:
    """Returns one seed, see `random_seeds`.

    >>> 0 <= random_seed(8) < 256
    True
    """
    return int(random_seeds(1, bits)[0])


class SeedRule(Protocol):
    """Determines the seed of each episode."""

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> Seeds:
        """Returns the seeds `[m]` of the environments `[m]` and their episodes `[m]` (or one number for all)."""
        ...


@dataclass(frozen=True, slots=True)
class OwnSeeds:
    """A different seed for every environment and every episode."""

    root: int

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> Seeds:
        return seeds_for(self.root, env_ids, episodes)


@dataclass(frozen=True, slots=True)
class SharedSeeds:
    """The same seed for the k-th episodes of all environments, so that members of a population get the same tasks."""

    root: int

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> Seeds:
        return seeds_for(self.root, np.zeros_like(env_ids), episodes)


@dataclass(frozen=True, slots=True)
class ListedSeeds:
    """`seeds[i]` for the first episode of environment i, and seeds derived from it for its later episodes."""

    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        """Checks the seeds.

        Raises:
            ValueError: a seed is below 0 or at least 2**64.
        """
        _words("seeds", self.seeds)

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> Seeds:
        ids, episode_numbers = np.broadcast_arrays(env_ids, episodes)
        if ids.max(initial=-1) >= len(self.seeds):
            raise ValueError(f"Expected a seed for each environment up to {ids.max()}, got {len(self.seeds)} seeds.")
        pairs: list[tuple[int, int]] = np.stack([ids.ravel(), episode_numbers.ravel()], 1).tolist()
        seeds = [seed_for(self.seeds[i], 0, episode) if episode else self.seeds[i] for i, episode in pairs]
        return np.array(seeds, np.uint64).reshape(ids.shape)


@dataclass(frozen=True, slots=True)
class SeedSet:
    """A fixed set of seeds, such as training levels: environment i starts with the i-th seed and cycles through all.

    >>> SeedSet((7, 8, 9))([0, 1, 2, 0], [0, 0, 0, 1]).tolist()
    [7, 8, 9, 8]
    """

    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        """Checks the seeds.

        Raises:
            ValueError: there are no seeds, or one is below 0 or at least 2**64.
        """
        if not len(self.seeds):
            raise ValueError("Expected at least one seed, got none.")
        _words("seeds", self.seeds)

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> Seeds:
        return np.array(self.seeds, np.uint64)[np.add(env_ids, episodes) % len(self.seeds)]


def seed_rule(seed: int | Sequence[int] | SeedRule | None) -> SeedRule:
    """Returns the rule for `seed`: `OwnSeeds` for an int, `ListedSeeds` for a sequence, a random `OwnSeeds` for None.

    Raises:
        ValueError: an int is below 0 or at least 2**64.

    >>> seed_rule([5, 6])([0, 1], 0).tolist()
    [5, 6]
    """
    if seed is None:
        return OwnSeeds(random_seed(64))
    if isinstance(seed, int | np.integer):
        return OwnSeeds(int(_words("seed", seed)[0]))
    if callable(seed):
        return seed
    return ListedSeeds(tuple(map(int, seed)))


def split_seeds(root: int, *sizes: int) -> list[SeedSet]:
    """Returns disjoint sets of seeds, one for training and one for testing, for example.

    Raises:
        ValueError: there is no size, or one is below 1.

    >>> train, test = split_seeds(1, 200, 50)
    >>> len(train.seeds), len(test.seeds), set(train.seeds) & set(test.seeds)
    (200, 50, set())
    """
    count = sum(sizes)
    if min(sizes, default=0) < 1:
        raise ValueError(f"Expected sizes of 1 or more, got {sizes}.")
    candidates = seeds_for(stream_for(root, "split"), np.arange(count + count // 8 + 8))
    unique = list(dict.fromkeys(candidates.tolist()))[:count]  # 32-bit hashes collide now and then
    parts = np.split(np.array(unique), np.cumsum(sizes)[:-1])
    return [SeedSet(tuple(part.tolist())) for part in parts]


def _words(name: str, numbers: Numbers) -> NDArray[np.uint64]:
    """Returns a uint64 array, also for one number: NumPy warns if a scalar overflows, but not if an array does."""
    array = np.asarray(numbers)
    if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        for number in np.ravel(array).tolist() if name.startswith("seed") or name == "root" else ():
            check_seed(number)
        raise ValueError(f"Expected {name} to be at least 0 and less than 2**64, got {numbers!r}.")
    return np.atleast_1d(array).astype(np.uint64)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies the finalizer of splitmix64 (Steele, Lea and Flood, 2014): a bijection that mixes all bits."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    return word ^ (word >> np.uint64(31))
