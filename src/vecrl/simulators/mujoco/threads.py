"""Calls of MuJoCo for many rows on a few threads, without Python's lock while MuJoCo computes.

This module must not know tasks or what is called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Thread

RowFunction = Callable[[int], object]


class _Job:
    """The rows of one call, which its threads take one after another.

    Attributes:
        function: called with each row.
        rows: the rows that no thread has taken.
        errors: exceptions that `function` raised.
    """

    __slots__ = ("errors", "function", "rows")

    def __init__(self, function: RowFunction, rows: Iterator[int]):
        self.function, self.rows = function, rows
        self.errors: list[BaseException] = []

    def run(self) -> None:
        """Calls the function until no row is left. Several threads may run the same job."""
        function = self.function
        try:
            for row in self.rows:
                function(row)
        except BaseException as error:
            self.errors.append(error)


class RowThreads:
    """Threads that call a function with each of some rows; the thread of the caller is one of them.

    Args:
        count: the number of threads, at least 1. With 1, no thread is started.

    >>> threads = RowThreads(2)
    >>> squares = [0] * 5
    >>> threads.run(lambda row: squares.__setitem__(row, row**2), range(5))
    >>> squares
    [0, 1, 4, 9, 16]
    >>> threads.close()
    """

    def __init__(self, count: int):
        self.count = count
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[_Job] = SimpleQueue()
        self._threads = [Thread(target=_serve, args=(self._jobs, self._done), daemon=True) for _ in range(count - 1)]
        for thread in self._threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _stop, self._jobs, count - 1)

    def run(self, function: RowFunction, rows: Iterable[int]) -> None:
        """Calls `function(row)` for every row, and returns when all calls have ended.

        Raises:
            BaseException: the first one that a call raised. The rows after it may not have been called.
        """
        rows = list(rows)
        job = _Job(function, iter(rows))
        helpers = min(len(self._threads), len(rows) - 1)
        for _ in range(helpers):
            self._jobs.put(job)
        job.run()
        while helpers > 0:
            helpers -= self._done.get() is job  # others are of calls that an interrupt has ended
        if job.errors:
            raise job.errors[0]

    def close(self) -> None:
        """Ends the threads. Further calls have no effect."""
        self._finalizer()
        for thread in self._threads:
            thread.join()
        self._threads = []


def _serve(jobs: SimpleQueue[_Job | None], done: SimpleQueue[_Job]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        done.put(job)


def _stop(jobs: SimpleQueue[_Job | None], count: int) -> None:
    for _ in range(count):
        jobs.put(None)
