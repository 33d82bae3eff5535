"""`RowThreads`: steps and resets of rows of MuJoCo on a few threads.

The loops are in `compiled_loops`; this module has their memory and starts their threads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from threading import Lock, Thread
from typing import Any

import numpy as np

from ...cores import num_cores
from ...errors import SpaceError
from ...validation import check_choice
from .compiled_loops import ACTIVE, ASLEEP, CLOSED, SHARED_SIZE, Job, compiled_loops

_PARTS = 8  # of the work of a thread, so that all threads end at about the same time
_instances: weakref.WeakSet[RowThreads] = weakref.WeakSet()
_POLL_NS = {"sleep": 0, "auto": 10**5, "spin": 2 * 10**7}  # for how many nanoseconds to poll before sleeping


class RowThreads:
    """Threads for n rows; the thread of the caller is one of them. Rows are computed in the same way by any of them.

    An error inside MuJoCo, such as a lack of memory, ends the process with MuJoCo's message.

    Args:
        models, data: the `mujoco.MjModel` and `mujoco.MjData` of each row.
        fields: for each field to read, the array of every row, a view of its `data`.
        frame_skip: steps of MuJoCo per step.
        forces: whether to compute the forces between bodies after a step.
        count: the number of threads, at least 1.
        wait: what helping threads do between jobs, see `MujocoSimulator`.

    Attributes:
        lock: the caller holds it during `step` and `reset`, of which there must be one at a time.

    Raises:
        ValueError: `wait` is unknown.
    """

    def __init__(
        self,
        models: Sequence[Any],
        data: Sequence[Any],
        fields: Sequence[Sequence[np.ndarray]],
        frame_skip: int,
        forces: bool,
        count: int,
        wait: str = "auto",
    ):
        check_choice("wait", wait, _POLL_NS)
        inputs = [[getattr(row, name) for row in data] for name in ("ctrl", "qpos", "qvel")]
        self._keep = models, data, fields, inputs  # the addresses below are theirs
        names = "actions", "positions", "velocities"
        self._lengths = {name: rows[0].size for name, rows in zip(names, inputs, strict=True)}
        self._count = count
        self._job = Job(
            numbers=_array([0, 0, 1]),
            rows=_array(range(len(data))),
            sources=_array([0, 0]),
            outputs=_array([0] * len(fields)),
            models=_array([model._address for model in models]),
            data=_array([row._address for row in data]),
            inputs=_addresses(inputs, len(data)),
            input_sizes=_array([rows[0].nbytes for rows in inputs]),
            fields=_addresses(fields, len(data)),
            field_sizes=_array([rows[0].nbytes for rows in fields]),
            settings=_array([frame_skip, forces]),
        )
        self._shared = np.zeros(SHARED_SIZE // 8, np.int64)
        self.lock = Lock()
        self._run, help_others = compiled_loops()
        address = self._address = self._shared.ctypes.data
        self._run(address, -1, 0, self._job)  # compiles it
        self._shared[CLOSED // 8] = 1
        clock = np.zeros(2, np.int64)
        help_others(address, -1, 0, clock.ctypes.data, self._job)
        self._shared[CLOSED // 8] = 0
        reader, self._writer = os.pipe()
        self._threads: list[Thread] = []
        self._finalizer = weakref.finalize(self, _stop, self._threads, self._shared, (reader, self._writer))
        limit = _POLL_NS[wait] if count <= num_cores() else 0
        arguments = help_others, self._shared, reader, limit, self._job, self._keep
        for _ in range(count - 1):
            thread = Thread(target=_help, args=arguments, daemon=True)
            thread.start()
            self._threads.append(thread)
        _instances.add(self)

    def step(self, rows: np.ndarray, controls: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Steps m `rows` with controls `[m, nu]` and writes their fields into `out`, C-contiguous arrays `[n, ...]`.

        Raises:
            SpaceError: the controls have another shape.
        """
        self._work(False, rows, {"actions": controls}, out)

    def reset(self, rows: np.ndarray, positions: np.ndarray, velocities: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Resets m `rows` to positions `[m, nq]` and velocities `[m, nv]`, and does else what `step` does."""
        self._work(True, rows, {"positions": positions, "velocities": velocities}, out)

    def _work(
        self, resets: bool, rows: np.ndarray, sources: Mapping[str, np.ndarray], out: Sequence[np.ndarray]
    ) -> None:
        job, count = self._job, len(rows)
        values = [np.ascontiguousarray(source, np.float64) for source in sources.values()]
        for name, array in zip(sources, values, strict=True):
            if array.shape != (count, self._lengths[name]):
                raise SpaceError(f"Expected {name} of shape {(count, self._lengths[name])}, got {array.shape}.")
        size = -(-count // (_PARTS * self._count)) if self._threads else count
        job.numbers[:] = resets, count, size
        job.rows[:count] = rows
        job.sources[: len(values)] = [array.ctypes.data for array in values]
        job.outputs[:] = [array.ctypes.data for array in out]
        parts = -(-count // size) if count else 0
        self._run(self._address, self._writer, parts, job)

    def close(self) -> None:
        """Ends the threads. Further calls have no effect."""
        has_lock = self.lock.acquire(timeout=1.0)  # not below a signal handler that interrupted a call
        self._finalizer()
        if has_lock:
            self.lock.release()

    def forget_threads(self) -> None:
        """Continues with the caller's thread alone: a forked process has no other."""
        self._threads.clear()
        self._shared[[ACTIVE // 8, ASLEEP // 8]] = 0
        self.lock = Lock()


def _array(values: Any) -> np.ndarray:
    return np.array(values, np.intp)


def _addresses(arrays: Sequence[Sequence[np.ndarray]], num_rows: int) -> np.ndarray:
    return _array([[array.ctypes.data for array in rows] for rows in arrays]).reshape(len(arrays), num_rows)


def _help(help_others: Any, shared: np.ndarray, reader: int, limit: int, job: Job, _: object) -> None:
    clock = np.zeros(2, np.int64)
    help_others(shared.ctypes.data, reader, limit, clock.ctypes.data, job)


def _stop(threads: Sequence[Thread], shared: np.ndarray, pipe: tuple[int, int]) -> None:
    shared[CLOSED // 8] = 1
    os.write(pipe[1], bytes(len(threads)))
    for thread in threads:
        thread.join()
    shared[ASLEEP // 8] = 0  # a later step must not write to a closed descriptor, which may be another file's then
    for descriptor in pipe:
        os.close(descriptor)


def _after_fork() -> None:
    for threads in _instances:
        threads.forget_threads()


os.register_at_fork(after_in_child=_after_fork)
