"""Seeds as a pure function of (root, environment, episode), so that results hang on nothing else.

Which worker runs an environment, how many workers there are and who finishes first must not matter; neither must how
many other environments there are. So no generator is drawn from: each episode's seed is a hash of its own name. There
is no default seed anywhere: None means entropy from the operating system.

A `SeedRule` says which seed an episode begins with. `own_seeds`, `shared_seeds`, `listed_seeds` and `SeedSet` are the
usual ones. Knows NumPy only.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Numbers = int | Sequence[int] | np.ndarray[Any, Any]

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, the increment of splitmix64
_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 2**64 - 1


def seed_for(root: int, env_id: int, episode: int = 0) -> int:
    """The seed of one episode of one environment, in [0, 2**32); the same on every machine and in every version.

    Args:
        root: what the user calls the seed, 0 <= root < 2**64.
        env_id: the environment's number, or a population member's.
        episode: how many episodes it began before.

    >>> seed_for(1, 0, 0), seed_for(1, 0, 1), seed_for(1, 1, 0)
    (2978611956, 4173706796, 2665212349)
    """
    return int(seeds_for(root, env_id, episode))


def seeds_for(root: int, env_ids: Numbers, episodes: Numbers = 0) -> np.ndarray[Any, Any]:
    """`seed_for` for many environments and episodes at once, which broadcast; uint32.

    >>> seeds_for(1, [0, 1]).tolist()
    [2978611956, 2665212349]

    Raises:
        ValueError: a number below 0 or of 2**64 and above.
    """
    word = _mix(_words("root", root) + np.uint64(_GOLDEN))
    for name, numbers in (("env_id", env_ids), ("episode", episodes)):
        word = _mix(word + (_words(name, numbers) + np.uint64(1)) * np.uint64(_GOLDEN))
    return (word >> np.uint64(32)).astype(np.uint32).reshape(np.broadcast_shapes(np.shape(env_ids), np.shape(episodes)))


def stream_for(root: int, name: str) -> int:
    """Another root, in [0, 2**64), for what must not share its random numbers with the episodes: "actions", "test".

    >>> stream_for(1, "actions") == stream_for(1, "test")
    False
    """
    high, low = (seed_for(root, zlib.crc32(name.encode()), _WORD - i) for i in range(2))
    return high << 32 | low


class SeedRule(Protocol):
    """Says which seed each episode begins with."""

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> np.ndarray[Any, Any]:
        """Seeds `[m]` of the environments `[m]` and their episodes `[m]` (or one for all)."""
        ...


@dataclass(frozen=True, slots=True)
class OwnSeeds:
    """Every environment and every episode has a seed of its own."""

    root: int

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> np.ndarray[Any, Any]:
        """See `SeedRule`."""
        return seeds_for(self.root, env_ids, episodes)


@dataclass(frozen=True, slots=True)
class SharedSeeds:
    """All environments begin their k-th episodes alike: members of a population are judged on the same tasks."""

    root: int

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> np.ndarray[Any, Any]:
        """See `SeedRule`."""
        return seeds_for(self.root, np.zeros_like(env_ids), episodes)


@dataclass(frozen=True, slots=True)
class ListedSeeds:
    """Environment i begins its first episode with `seeds[i]` itself, later ones with seeds that follow from it."""

    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        """See that they are seeds.

        Raises:
            ValueError: one is below 0 or of 2**64 and above.
        """
        _words("seeds", self.seeds)

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> np.ndarray[Any, Any]:
        """See `SeedRule`."""
        ids, episode_numbers = np.broadcast_arrays(env_ids, episodes)
        if ids.max(initial=-1) >= len(self.seeds):
            raise ValueError(f"Expected a seed for each environment up to {ids.max()}, but {len(self.seeds)} came.")
        pairs: list[tuple[int, int]] = np.stack([ids.ravel(), episode_numbers.ravel()], 1).tolist()
        seeds = [seed_for(self.seeds[i], 0, episode) if episode else self.seeds[i] for i, episode in pairs]
        return np.array(seeds, np.uint64).reshape(ids.shape)


@dataclass(frozen=True, slots=True)
class SeedSet:
    """Only these seeds, such as the levels to train on: environment i begins with the i-th and takes them in turn.

    >>> SeedSet((7, 8, 9))([0, 1, 2, 0], [0, 0, 0, 1]).tolist()
    [7, 8, 9, 8]
    """

    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        """See that they are seeds.

        Raises:
            ValueError: there are none, or one is below 0 or of 2**64 and above.
        """
        if not len(self.seeds):
            raise ValueError("Expected at least one seed, but none came.")
        _words("seeds", self.seeds)

    def __call__(self, env_ids: Numbers, episodes: Numbers) -> np.ndarray[Any, Any]:
        """See `SeedRule`."""
        return np.array(self.seeds, np.uint64)[np.add(env_ids, episodes) % len(self.seeds)]


def seed_rule(seed: int | Sequence[int] | SeedRule | None) -> SeedRule:
    """The rule that `seed` means: an int gives every episode its own, a sequence one an environment, None entropy.

    Raises:
        ValueError: an int below 0 or of 2**64 and above.

    >>> seed_rule([5, 6])([0, 1], 0).tolist()
    [5, 6]
    """
    if seed is None:
        return OwnSeeds(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]))
    if isinstance(seed, int | np.integer):
        return OwnSeeds(int(_words("seed", seed)[0]))
    if callable(seed):
        return seed
    return ListedSeeds(tuple(map(int, seed)))


def split_seeds(root: int, *sizes: int) -> list[SeedSet]:
    """Sets of seeds that share none: to train on one and to test on another.

    >>> train, test = split_seeds(1, 200, 50)
    >>> len(train.seeds), len(test.seeds), set(train.seeds) & set(test.seeds)
    (200, 50, set())
    """
    count = sum(sizes)
    if min(sizes, default=0) < 1:
        raise ValueError(f"Expected the sizes of sets of seeds, 1 or more each, but {sizes} came.")
    candidates = seeds_for(stream_for(root, "split"), np.arange(count + count // 8 + 8))
    unique = list(dict.fromkeys(candidates.tolist()))[:count]  # 32-bit hashes meet now and then
    parts = np.split(np.array(unique), np.cumsum(sizes)[:-1])
    return [SeedSet(tuple(part.tolist())) for part in parts]


def _words(name: str, numbers: Numbers) -> np.ndarray[Any, Any]:
    """As uint64, an array even where it is one number: NumPy's scalars warn where arrays wrap around."""
    array = np.asarray(numbers)
    if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ValueError(f"Expected {name} to be at least 0 and less than 2**64, but {numbers!r} came.")
    return np.atleast_1d(array).astype(np.uint64)


def _mix(word: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection that spreads every bit over all."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    return word ^ (word >> np.uint64(31))
