"""Workers that step their environments themselves; the caller only calls methods of them.

Only a call and its result are sent, so the number of steps per second is not limited by the caller.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from ..engine.infos import InfoDict
from ..engine.pickling import dump_with_files
from ..engine.pool import Pool
from ..engine.pool_options import PoolOptions
from ..engine.space_layout import AnySpace, Layout
from ..errors import Failure, SerializationError, WorkerError, remap_failures

STEPS_IN_WORKER = PoolOptions(infos=False)  # the options of a pool in a worker, which returns no infos
RECOVER_TIMEOUT_S = 2.0  # seconds that workers have to finish an interrupted call


class WorkerPool(Protocol):
    """What steps the environments of one worker, such as a `Pool`."""

    @property
    def obs_layout(self) -> Layout: ...

    @property
    def action_layout(self) -> Layout: ...

    def close(self) -> object: ...


PoolT = TypeVar("PoolT", bound=WorkerPool)


class RemoteWorker(Generic[PoolT]):
    """An object in a worker that has k environments; the outer pool sees it as a simulator of one row, never stepped.

    Args:
        pool: steps them.
    """

    num_envs = 1
    observation_space: AnySpace = spaces.Discrete(1)
    action_space: AnySpace = observation_space
    metadata: InfoDict = {}
    render_mode: str | None = None
    spec: EnvSpec | None = None
    reset: Any
    step: Any

    def __init__(self, pool: PoolT):
        self.pool = pool

    def spaces(self) -> tuple[AnySpace, AnySpace]:
        """Returns the observation space and the action space of one environment."""
        return self.pool.obs_layout.space, self.pool.action_layout.space

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """Calls the method `name` with the arguments in `value`."""
        return getattr(self, name)(*value)

    def close(self) -> None:
        """Closes the environments."""
        self.pool.close()


class RemoteWorkerGroup:
    """A pool of workers, each with one `RemoteWorker`.

    Args:
        makers: one `(make, k)` per worker: `make` makes its `RemoteWorker` of k environments.
        options: options of the `Pool` of workers.
        advice: the text in errors that says what to do if workers fail.

    Attributes:
        counts: the number of environments of each worker.

    Raises:
        WorkerError: environments cannot be made. All errors number the environments over all workers.
    """

    def __init__(
        self,
        makers: Sequence[tuple[Callable[[], RemoteWorker[Any]], int]],
        options: PoolOptions,
        advice: str,
    ):
        self._advice = advice
        self._name = ""  # of the method that `send` has called last
        self.counts = [count for _, count in makers]
        starts = itertools.accumulate(self.counts, initial=0)
        self._ids = [range(start, start + count) for start, count in zip(starts, self.counts, strict=False)]
        with self._remap_failures(self._ids, advice=None):
            self.pool = Pool([(make, 1) for make, _ in makers], **options.keywords)

    def call_all(
        self,
        name: str,
        arguments: Sequence[tuple[object, ...]] | None = None,
        ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Any]:
        """Calls the method `name` of workers and returns their results.

        Args:
            arguments: one tuple per worker. If there are fewer tuples than workers, only the first workers are called.
                None calls all workers without arguments.
            ids: for each worker, the ids of its environments in errors; by default their numbers over all workers.

        Raises:
            WorkerError: environments failed; `results` has the results of the other workers.
        """
        call_arguments = [()] * len(self.counts) if arguments is None else arguments
        with self._remap_failures(self._ids if ids is None else ids, self._advice, name):
            return self.pool.invoke("call", name, call_arguments, np.arange(len(call_arguments)))

    def send(self, worker: int, name: str, arguments: tuple[object, ...]) -> None:
        """Calls the method `name` of a worker without waiting; `receive` returns the result."""
        self._name = name
        with self._remap_failures(self._ids, self._advice, name):
            self.pool.send_call(name, [arguments], np.array([worker]))

    def receive(self) -> tuple[int, Any]:
        """Waits for the next call of `send` that is complete, and returns the worker and its result.

        Raises:
            WorkerError: its environments failed. Calls of other workers are still pending.
        """
        with self._remap_failures(self._ids, self._advice, self._name):
            [(worker, result)] = self.pool.recv_call().items()
        return worker, result

    def recover(self) -> None:
        """Makes all workers ready for a call, also after a failed or interrupted one. See `Pool.recover`."""
        with self._remap_failures(self._ids, self._advice):
            self.pool.recover(RECOVER_TIMEOUT_S)

    def close(self) -> None:
        """Closes every environment and stops every worker; later calls have no effect."""
        with self._remap_failures(self._ids, advice=None):
            self.pool.close()

    def _remap_failures(
        self, ids: Sequence[Sequence[int]], advice: str | None, called_name: str = ""
    ) -> AbstractContextManager[None]:
        """Returns a context that converts failures of workers to failures of environments.

        Environment j of worker i gets the id `ids[i][j]`, and the command "invoke" is reported as `called_name`.
        """

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


def pickled(name: str, value: object) -> bytes:
    """Pickles a value for all workers, so that it is pickled once instead of once per worker.

    Raises:
        SerializationError: the value cannot be pickled.
    """
    try:
        return dump_with_files(value)
    except Exception as error:  # pickling may raise any exception
        reason = f"{type(error).__name__}: {error}"
        raise SerializationError(f"Expected the {name} to be picklable, to send it to workers, got {reason}") from error
