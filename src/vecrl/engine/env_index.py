"""Who is who in a pool: which worker has which environments, who is under way, who failed, and who was asked first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import Failure, PendingError, SpaceError

Ids = Sequence[int] | np.ndarray
WorkerRows = tuple[int, np.ndarray, np.ndarray]
"""A worker, those of its rows that are asked, in ascending order, and their places among all who are asked."""


class EnvIndex:
    """The environments 0 to n - 1, in runs of one worker each.

    Args:
        counts: how many each worker has.
        first: what the first is called in messages, where these are some of more.

    Attributes:
        starts: `[num_workers + 1]`, worker w has the environments from `starts[w]` to `starts[w + 1]`.
        counts: how many each worker has.
        busy: `[n]` bool, those that were asked by name and have not been collected.
        failed: `[n]` bool, those that must be reset before they step.
        request_order: `[n]` int64, a running number: who was asked before whom.
    """

    def __init__(self, counts: Iterable[int], env_id_offset: int = 0):
        self.counts = list(counts)
        self.env_id_offset = env_id_offset
        self.starts = np.cumsum([0, *self.counts])
        self.num_envs = int(self.starts[-1])
        self.busy = np.zeros(self.num_envs, bool)
        self.failed = np.zeros(self.num_envs, bool)
        self.request_order = np.zeros(self.num_envs, np.int64)
        self._num_requests = 0  # how many were asked so far
        self._last_split: tuple[bytes, np.ndarray, list[WorkerRows]] = b"", np.empty(0, np.int64), []
        self._owner = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def parse_ids(self, ids: Ids) -> np.ndarray:
        """`ids` as an array `[m]` of int64.

        Raises:
            SpaceError, IndexError: they are no ids of ours.
        """
        if type(ids) is np.ndarray and ids.dtype == np.int64 and ids.tobytes() == self._last_split[0]:
            return self._last_split[1]  # who steps some environments often steps the same ones next
        parsed = np.atleast_1d(ids)
        if parsed.dtype.kind not in "iu" or parsed.ndim != 1 or not len(parsed):
            raise SpaceError(f"Expected ids to be a list of integers, but {ids!r} came.")
        parsed = parsed.astype(np.int64)
        if parsed.view(np.uint64).max() >= self.num_envs:  # negative ones are huge then
            raise IndexError(f"Expected ids from 0 to {self.num_envs - 1}, but {parsed.tolist()} came.")
        return parsed

    def check(self, ids: Ids) -> np.ndarray:
        """`ids` as an array `[m]` of int64, from here on the latest to be asked.

        Raises:
            SpaceError, IndexError: they are no ids of ours, or some come twice.
            PendingError: some are under way.
        """
        parsed = self.parse_ids(ids)
        if np.count_nonzero(self.busy[parsed]):  # quicker than any
            raise PendingError(f"{self.name(np.flatnonzero(self.busy))} are still under way; receive them first.")
        order = np.arange(self._num_requests, self._num_requests + len(parsed))
        self.request_order[parsed] = order
        if parsed is not self._last_split[1]:
            if (self.request_order[parsed] != order).any():
                raise SpaceError(f"Expected every environment once, but {parsed.tolist()} came.")
            self._last_split = parsed.tobytes(), parsed, self._split_ids(parsed)
        self._num_requests += len(parsed)
        return parsed

    def require_healthy(self, ids: Any, reset_mask: np.ndarray | None = None) -> None:
        """See that none of `ids` failed before, but for those that `reset_mask` anew.

        Raises:
            PendingError: some did.
        """
        failed = self.failed[ids] if reset_mask is None else self.failed & ~reset_mask
        if np.count_nonzero(failed):
            names = self.name(np.arange(self.num_envs)[ids][failed])
            raise PendingError(f"{names} failed before; reset them (or all) before they step again.")

    def id_list(self, ids: Ids | None) -> list[int]:
        """`ids`, or all there are."""
        return list(range(self.num_envs)) if ids is None else [int(i) for i in ids]

    def owners(self, ids: np.ndarray) -> list[int]:
        """The worker of each of `ids`."""
        return self._owner[ids].tolist()

    def split(self, ids: np.ndarray) -> list[WorkerRows]:
        """For each worker concerned, which of `ids` are its own."""
        return self._last_split[2] if ids is self._last_split[1] else self._split_ids(ids)

    def _split_ids(self, ids: np.ndarray) -> list[WorkerRows]:
        ascending = ids.argsort()
        ordered = ids[ascending]
        bounds = ordered.searchsorted(self.starts).tolist()
        return [
            (worker, ordered[start:stop] - self.starts[worker], ascending[start:stop])
            for worker, (start, stop) in enumerate(itertools.pairwise(bounds))
            if start < stop
        ]

    def mark_failed(self, failures: Sequence[Failure]) -> None:
        """These have to be reset before they step; who is merely late has not."""
        for failure in failures:
            if failure.kind != "timed_out":
                self.failed[list(failure.env_ids)] = True

    def name(self, ids: np.ndarray) -> str:
        """Some of them for a message."""
        return name_ids(ids + self.env_id_offset)


def name_ids(ids: np.ndarray) -> str:
    """Environments for a message.

    >>> name_ids(np.arange(3))
    'Environments [0, 1, 2]'
    """
    return f"Environments {ids[:20].tolist()}{'…' if len(ids) > 20 else ''}"
