"""Maps environments to workers, and records which are pending or failed and in which order they were sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from ..errors import Failure, PendingError, SpaceError

T = TypeVar("T")
Ids = Sequence[int] | np.ndarray
WorkerRows = tuple[int, np.ndarray, np.ndarray]
"""A worker, the selected ones of its rows in ascending order, and their positions among all selected environments."""


class EnvIndex:
    """The environments 0 to n - 1. Each worker has consecutive ones.

    Args:
        counts: the number of environments of each worker.
        env_id_offset: the number of the first environment in messages, if the pool has a part of the environments.

    Attributes:
        worker_bounds: `[num_workers + 1]`; worker w has the environments from `worker_bounds[w]` to
            `worker_bounds[w + 1]`, exclusive.
        counts: the number of environments of each worker.
        busy: `[n]` bool, environments with a command by id that is pending or has results not collected yet.
        failed: `[n]` bool, environments that must be reset before they step.
        request_order: `[n]` int64, a running number: the order in which environments were last sent a command by id.
    """

    def __init__(self, counts: Iterable[int], env_id_offset: int = 0):
        self.counts = list(counts)
        self.env_id_offset = env_id_offset
        self.worker_bounds = np.cumsum([0, *self.counts])
        self.num_envs = int(self.worker_bounds[-1])
        self.busy = np.zeros(self.num_envs, bool)
        self.failed = np.zeros(self.num_envs, bool)
        self.request_order = np.zeros(self.num_envs, np.int64)
        self._num_requests = 0  # the next value of request_order
        self._last_split: tuple[bytes, np.ndarray, list[WorkerRows]] = b"", np.empty(0, np.int64), []
        self._owner = np.repeat(np.arange(len(self.worker_bounds) - 1), np.diff(self.worker_bounds))

    def parse_ids(self, ids: Ids) -> np.ndarray:
        """Returns `ids` as an array `[m]` of int64.

        Raises:
            SpaceError: `ids` is not a list of integers.
            IndexError: an id is out of range.
        """
        if type(ids) is np.ndarray and ids.dtype == np.int64 and ids.tobytes() == self._last_split[0]:
            return self._last_split[1]  # the same ids are often used in several steps
        parsed = np.atleast_1d(ids)
        if parsed.dtype.kind not in "iu" or parsed.ndim != 1 or not len(parsed):
            raise SpaceError(f"Expected ids to be a list of integers, got {ids!r}.")
        parsed = parsed.astype(np.int64)
        if parsed.view(np.uint64).max() >= self.num_envs:  # negative ids are large as unsigned integers
            raise IndexError(f"Expected ids from 0 to {self.num_envs - 1}, got {parsed.tolist()}.")
        return parsed

    def check(self, ids: Ids) -> np.ndarray:
        """Returns `ids` as an array `[m]` of int64, and numbers them as the latest in `request_order`.

        Raises:
            SpaceError: `ids` is not a list of integers, or an id occurs twice.
            IndexError: an id is out of range.
            PendingError: some of these environments are pending.
        """
        parsed = self.parse_ids(ids)
        if np.count_nonzero(self.busy[parsed]):  # faster than `any`
            raise PendingError(f"{self.name(np.flatnonzero(self.busy))} are still pending; receive them first.")
        order = np.arange(self._num_requests, self._num_requests + len(parsed))
        self.request_order[parsed] = order
        if parsed is not self._last_split[1]:
            if (self.request_order[parsed] != order).any():
                raise SpaceError(f"Expected every environment once, got {parsed.tolist()}.")
            self._last_split = parsed.tobytes(), parsed, self._split_ids(parsed)
        self._num_requests += len(parsed)
        return parsed

    def require_healthy(self, ids: Ids | slice, reset_mask: np.ndarray | None = None) -> None:
        """Checks that none of `ids` must be reset first. The rows of `reset_mask` are not checked.

        Raises:
            PendingError: some have failed and were not reset.
        """
        failed = self.failed[ids] if reset_mask is None else self.failed & ~reset_mask
        if np.count_nonzero(failed):
            names = self.name(np.arange(self.num_envs)[ids][failed])
            raise PendingError(
                f"{names} failed before; reset them (or all) before they step again. "
                "An interrupted call, as by Ctrl-C, counts as a failure."
            )

    def id_list(self, ids: Ids | None) -> list[int]:
        """Returns `ids` as a list; all ids for None."""
        return list(range(self.num_envs)) if ids is None else [int(i) for i in ids]

    def owners(self, ids: np.ndarray) -> list[int]:
        """Returns the worker of each of `ids`."""
        return self._owner[ids].tolist()

    def split(self, ids: np.ndarray) -> list[WorkerRows]:
        """Splits `ids` by worker."""
        return self._last_split[2] if ids is self._last_split[1] else self._split_ids(ids)

    def _split_ids(self, ids: np.ndarray) -> list[WorkerRows]:
        ascending = ids.argsort()
        ordered = ids[ascending]
        bounds = ordered.searchsorted(self.worker_bounds).tolist()
        return [
            (worker, ordered[start:stop] - self.worker_bounds[worker], ascending[start:stop])
            for worker, (start, stop) in enumerate(itertools.pairwise(bounds))
            if start < stop
        ]

    def mark_failed(self, failures: Sequence[Failure]) -> None:
        """Marks the environments of failures as to be reset before they step, except those that only timed out."""
        for failure in failures:
            if failure.kind != "timed_out":
                self.failed[list(failure.env_ids)] = True

    def name(self, ids: np.ndarray) -> str:
        """Names environments for a message."""
        return name_ids(ids + self.env_id_offset)


def name_ids(ids: np.ndarray) -> str:
    """Names environments for a message, at most 20 of them.

    >>> name_ids(np.arange(3))
    'Environments [0, 1, 2]'
    """
    return f"Environments {ids[:20].tolist()}{'…' if len(ids) > 20 else ''}"


def split_evenly(items: Sequence[T], num_parts: int) -> list[tuple[int, list[T]]]:
    """Splits the items of n environments into parts of consecutive ones, as equal in size as possible.

    >>> split_evenly("abcde", 3)
    [(0, ['a', 'b']), (2, ['c']), (3, ['d', 'e'])]

    Args:
        items: one item per environment.
        num_parts: the number of parts, for example of workers; from 1 to n.

    Returns:
        The index of the first item, and the items, of each part.
    """
    bounds = np.linspace(0, len(items), num_parts + 1).round().astype(int).tolist()
    return [(start, list(items[start:stop])) for start, stop in itertools.pairwise(bounds)]
