"""Who is who in a pool: which worker has which environments, who is under way, who failed, and who was asked first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import Failure, PendingError, SpaceError

Ids = Sequence[int] | np.ndarray
Share = tuple[int, np.ndarray, np.ndarray]
"""A worker, those of its rows that are asked, in ascending order, and their places among all who are asked."""


class Roster:
    """The environments 0 to n - 1, in runs of one worker each.

    Args:
        counts: how many each worker has.
        first: what the first is called in messages, where these are some of more.

    Attributes:
        starts: `[num_workers + 1]`, worker w has the environments from `starts[w]` to `starts[w + 1]`.
        counts: how many each worker has.
        busy: `[n]` bool, those that were asked by name and have not been collected.
        failed: `[n]` bool, those that must be reset before they step.
        asked_at: `[n]` int64, a running number: who was asked before whom.
    """

    def __init__(self, counts: Iterable[int], first: int = 0):
        self.counts = list(counts)
        self.first = first
        self.starts = np.cumsum([0, *self.counts])
        self.num_envs = int(self.starts[-1])
        self.busy = np.zeros(self.num_envs, bool)
        self.failed = np.zeros(self.num_envs, bool)
        self.asked_at = np.zeros(self.num_envs, np.int64)
        self._asked = 0  # how many were asked so far
        self._latest: tuple[bytes, np.ndarray, list[Share]] = b"", np.empty(0, np.int64), []
        self._owner = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def known(self, ids: Ids) -> np.ndarray:
        """`ids` as an array `[m]` of int64.

        Raises:
            SpaceError, IndexError: they are no ids of ours.
        """
        if type(ids) is np.ndarray and ids.dtype == np.int64 and ids.tobytes() == self._latest[0]:
            return self._latest[1]  # who steps some environments often steps the same ones next
        chosen = np.atleast_1d(ids)
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or not len(chosen):
            raise SpaceError(f"Expected ids to be a list of integers, but {ids!r} came.")
        chosen = chosen.astype(np.int64)
        if chosen.view(np.uint64).max() >= self.num_envs:  # negative ones are huge then
            raise IndexError(f"Expected ids from 0 to {self.num_envs - 1}, but {chosen.tolist()} came.")
        return chosen

    def check(self, ids: Ids) -> np.ndarray:
        """`ids` as an array `[m]` of int64, from here on the latest to be asked.

        Raises:
            SpaceError, IndexError: they are no ids of ours, or some come twice.
            PendingError: some are under way.
        """
        chosen = self.known(ids)
        if np.count_nonzero(self.busy[chosen]):  # quicker than any
            raise PendingError(f"{self.name(np.flatnonzero(self.busy))} are still under way; receive them first.")
        numbers = np.arange(self._asked, self._asked + len(chosen))
        self.asked_at[chosen] = numbers
        if chosen is not self._latest[1]:
            if (self.asked_at[chosen] != numbers).any():
                raise SpaceError(f"Expected every environment once, but {chosen.tolist()} came.")
            self._latest = chosen.tobytes(), chosen, self._shares(chosen)
        self._asked += len(chosen)
        return chosen

    def check_whole(self, ids: Any, begin: np.ndarray | None = None) -> None:
        """See that none of `ids` failed before, but for those that `begin` anew.

        Raises:
            PendingError: some did.
        """
        failed = self.failed[ids] if begin is None else self.failed & ~begin
        if np.count_nonzero(failed):
            names = self.name(np.arange(self.num_envs)[ids][failed])
            raise PendingError(f"{names} failed before; reset them (or all) before they step again.")

    def numbers(self, ids: Ids | None) -> list[int]:
        """`ids`, or all there are."""
        return list(range(self.num_envs)) if ids is None else [int(i) for i in ids]

    def owners(self, ids: np.ndarray) -> list[int]:
        """The worker of each of `ids`."""
        return self._owner[ids].tolist()

    def split(self, ids: np.ndarray) -> list[Share]:
        """For each worker concerned, which of `ids` are its own."""
        return self._latest[2] if ids is self._latest[1] else self._shares(ids)

    def _shares(self, ids: np.ndarray) -> list[Share]:
        ascending = ids.argsort()
        ordered = ids[ascending]
        cuts = ordered.searchsorted(self.starts).tolist()
        return [
            (worker, ordered[first:last] - self.starts[worker], ascending[first:last])
            for worker, (first, last) in enumerate(itertools.pairwise(cuts))
            if first < last
        ]

    def note_failures(self, failures: Sequence[Failure]) -> None:
        """These have to be reset before they step; who is merely late has not."""
        for failure in failures:
            if failure.kind != "late":
                self.failed[list(failure.env_ids)] = True

    def name(self, ids: np.ndarray) -> str:
        """Some of them for a message."""
        return name_ids(ids + self.first)


def name_ids(ids: np.ndarray) -> str:
    """Environments for a message.

    >>> name_ids(np.arange(3))
    'Environments [0, 1, 2]'
    """
    return f"Environments {ids[:20].tolist()}{'…' if len(ids) > 20 else ''}"
