"""Workers that have environments of their own: they are not stepped from here, but told what to do with them.

What travels is a call there and its result back, so the caller is no limit of how many steps there are a second. Knows
no policy, nor what is asked of whom.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces

from ..engine.pool import Pool
from ..engine.pool_factory import BackendName
from ..engine.simulator import Simulator
from ..errors import Failure, SerializationError, WorkerError, remap_failures

RECOVER_TIMEOUT_S = 2.0  # seconds that workers have to end what an interrupted call asked of them


class RemoteWorker:
    """Has k environments in its worker, and looks like a simulator of a single row that is never stepped.

    Args:
        make: makes the simulator of the environments.
        count: k.
        options: of the `Pool` that they make up, in its own thread.
    """

    num_envs = 1
    observation_space: spaces.Space[Any] = spaces.Discrete(1)
    action_space: spaces.Space[Any] = observation_space
    metadata: dict[str, Any] = {}
    render_mode: str | None = None
    spec: Any = None
    reset: Any
    step: Any

    def __init__(self, make: Callable[[], Simulator], count: int, **options: Any):
        self.pool = Pool([(make, count)], "serial", infos=False, **options)

    def spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Of observations and of actions, of one environment."""
        return self.pool.worker_info.observation_space, self.pool.worker_info.action_space

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """Have it do something by name."""
        return getattr(self, name)(*value)

    def close(self) -> None:
        """Close the environments."""
        self.pool.close()


class RemoteWorkerGroup:
    """A `RemoteWorker` in each of some workers.

    Args:
        makers: `(make, k)` a worker: makes its resident, of k environments.
        advice: what to do when workers fail, for errors.
        pool_options: of the `Pool` of workers.

    Attributes:
        counts: how many environments each has.

    Raises:
        WorkerError: environments cannot be made. Here as elsewhere they have their numbers among all of them.
    """

    def __init__(
        self,
        makers: Sequence[tuple[Callable[[], RemoteWorker], int]],
        backend: BackendName,
        advice: str,
        **pool_options: Any,
    ):
        self._advice = advice
        self.counts = [count for _, count in makers]
        starts = itertools.accumulate(self.counts, initial=0)
        self._ids = [range(start, start + count) for start, count in zip(starts, self.counts, strict=False)]
        with self._remap_failures(self._ids, advice=None):
            self.pool = Pool([(make, 1) for make, _ in makers], backend, **pool_options)

    def call_all(
        self, name: str, arguments: Sequence[tuple[Any, ...]] | None = None, ids: Sequence[Sequence[int]] | None = None
    ) -> list[Any]:
        """What each worker's method of that name gives.

        Args:
            arguments: for each of the first so many workers, the others are left alone; None asks all, without any.
            ids: what to call the environments of each in errors, by default their numbers.

        Raises:
            WorkerError: environments failed; `results` has what the other workers gave.
        """
        call_arguments = [()] * len(self.counts) if arguments is None else arguments
        with self._remap_failures(self._ids if ids is None else ids, self._advice, name):
            return self.pool.invoke("call", name, call_arguments, np.arange(len(call_arguments)))

    def recover(self) -> None:
        """Have workers that are there and wait, whatever became of the last call: see `Pool.recover`."""
        with self._remap_failures(self._ids, self._advice):
            self.pool.recover(RECOVER_TIMEOUT_S)

    def close(self) -> None:
        """Close every environment and end every worker; twice is harmless."""
        with self._remap_failures(self._ids, advice=None):
            self.pool.close()

    def _remap_failures(
        self, ids: Sequence[Sequence[int]], advice: str | None, called_name: str = ""
    ) -> AbstractContextManager[None]:
        """Errors of workers are told as those of environments, which worker i knows by their places in `ids[i]`, in
        doing what was `called_name`."""

        def remap(failure: Failure) -> Iterable[Failure]:
            for worker in failure.env_ids:
                if isinstance(failure.exception, WorkerError):
                    worker_context = {"worker": failure.worker, "pid": failure.pid}
                    for inner_failure in failure.exception.failures:
                        yield replace(
                            inner_failure,
                            env_ids=tuple(ids[worker][i] for i in inner_failure.env_ids),
                            **worker_context,
                        )
                else:
                    command = called_name if called_name and failure.command == "invoke" else failure.command
                    yield replace(failure, env_ids=tuple(sorted(ids[worker])), command=command)

        return remap_failures(remap, advice)


def pickled(name: str, value: Any) -> bytes:
    """What workers are to have besides environments, in bytes: once, not once a worker.

    Raises:
        SerializationError: it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # whatever pickling it raises
        reason = f"{type(error).__name__}: {error}"
        raise SerializationError(f"The {name} cannot be pickled, so no worker can have it: {reason}") from error
