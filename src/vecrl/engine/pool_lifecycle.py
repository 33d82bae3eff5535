"""Manages the workers of a pool: constructs, calls, restarts and closes them.

It does what all commands share: it checks the workers, waits for replies, handles timeouts and failures, and records
which environments are pending or failed. The results of steps and resets belong to `Pool`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from ..errors import (
    ClosedError,
    Failure,
    OutOfSpecError,
    PendingError,
    SerializationError,
    SpaceError,
    StepTimeout,
    failures_to_error,
    name_ids,
)
from ..seeding import random_seed, seed_for
from ..validation import check_seed
from .backends.registry import backend_entry
from .env_index import EnvIndex, Ids
from .fault_policy import FaultPolicy, WorkerRestarter
from .large_boxes import equal_spaces
from .pending import CLOSED, PendingCommand, PendingCommands
from .pool_closer import PoolCloser
from .pool_options import PoolOptions, Spaces
from .simulator import Simulator
from .space_layout import Layout
from .transition_builder import TransitionBuilder
from .worker import Command, Op, WorkerInfo, WorkerSpec

_NUM_SLOTS = 4


class PoolLifecycle:
    """Workers and their environments, without steps and resets.

    Args:
        makers: one `(make, k)` per worker; `make` constructs its simulator of k environments.
        options: the options of the pool.
    """

    def __init__(self, makers: Sequence[tuple[Callable[[], Simulator], int]], options: PoolOptions):
        self._options = options
        self._env_index = env_index = EnvIndex((k for _, k in makers), options.env_id_offset)
        root = random_seed(64)
        first_ids = env_index.worker_bounds.tolist()
        worker_specs = [
            WorkerSpec(i, first_ids[i], k, make, options.infos, options.check_nan, seed_for(root, i))
            for i, (make, k) in enumerate(makers)
        ]
        entry = backend_entry(options.backend)
        self.num_envs = env_index.num_envs
        self.num_workers = len(worker_specs)
        self.backend_name = options.backend
        self.in_process = entry.in_process
        self.step_timeout = options.step_timeout
        self._workers = range(len(worker_specs))
        self._healthy = False  # True: nothing is closed, crashed or failed, so a step needs no checks
        self._backend = entry.make(worker_specs, options.worker_options)
        self._pending = PendingCommands(self._backend, env_index.worker_bounds, entry.runs_inline)
        self._closer = PoolCloser(self, self._backend, self._pending)
        try:
            self._build(worker_specs)
            self._fault_policy = self._make_fault_policy()
        except BaseException:
            self._closer.abort()
            raise

    def __getstate__(self) -> NoReturn:
        raise TypeError("A pool cannot be copied or pickled, since its workers cannot. Construct another pool.")

    def _build(self, worker_specs: Sequence[WorkerSpec]) -> None:
        command = self._pending.register_internal(Op.CONSTRUCT, self._workers)
        failures = self._pending.wait_for(command, None)
        if failures:
            raise _construction_error(failures, self._env_index.env_id_offset)
        infos_by_worker: dict[int, WorkerInfo] = {worker: reply.result for worker, reply in command.replies}
        self.worker_infos = [infos_by_worker[worker] for worker in self._workers]
        self.worker_info = infos_by_worker[0]
        _check_distinct_envs(self.worker_infos, worker_specs)
        self.obs_layout, self.action_layout = map(Layout, _pool_spaces(infos_by_worker, worker_specs, self._options))
        slots = 1 if self._pending.runs_inline else _NUM_SLOTS
        slots += self._options.on_failure != "raise"
        self._buffers = self._backend.attach(self.obs_layout, self.action_layout, self.num_envs, slots)
        if failures := self._pending.wait_for(self._pending.register_internal(Op.ATTACH, self._workers), None):
            raise failures_to_error(failures)
        self._transition_builder = TransitionBuilder(self._buffers, self.obs_layout)
        self._restarter = WorkerRestarter(self._backend, self._pending, self.worker_infos)

    def _make_fault_policy(self) -> FaultPolicy | None:
        if self._options.on_failure == "raise":
            return None
        parts = self._backend, self._pending, self._env_index, self._buffers, self.obs_layout, self._transition_builder
        return FaultPolicy(self._options, *parts, self._restarter, self._gather)

    @property
    def pending(self) -> np.ndarray:
        """The pending environments, `[m]` int64."""
        updating = self._pending.updating and not self._closer.closed
        if updating and self._closer.lock.acquire(blocking=False):  # otherwise a call in another thread is running
            try:
                self._resync()
            finally:
                self._closer.lock.release()
        return np.flatnonzero(self._env_index.busy) if self._pending.sync_command is None else np.arange(self.num_envs)

    # -- faults ------------------------------------------------------------------------------------

    @property
    def alive(self) -> np.ndarray:
        """The environments that are not excluded, `[n]` bool. `on_failure="mask"` excludes those that fail."""
        return np.ones(self.num_envs, bool) if self._fault_policy is None else self._fault_policy.alive.copy()

    def cancel(self, ids: Ids) -> np.ndarray:
        """Cancels the pending commands of `ids`: kills and restarts their workers.

        All environments of these workers are constructed again, and all their pending commands are dropped. They must
        be reset before they step. Ids without a pending command, or with a reply that has arrived, are not affected.

        Returns:
            `[m]` int64, the environments that were constructed again.

        Raises:
            StepTimeout: the pending command runs in a thread, which cannot be killed; nothing was changed.
            WorkerError: environments cannot be constructed again.
        """
        with self._closer.lock:
            self._enter()
            self._pending.receive_arrived()
            return self._cancel(set(self._env_index.parse_ids(ids).tolist()))

    def _cancel(self, requested: set[int]) -> np.ndarray:
        pending = self._pending
        waiting = {worker for command in pending.open.values() for worker in command.waiting}
        workers = sorted(worker for worker in waiting if requested.intersection(pending.ids_of([worker])))
        pending.updating = True
        if overdue := [worker for worker in workers if not self._kill(worker)]:
            raise pending.timeout_error(self.step_timeout or 0.0, overdue)
        cancelled = np.array(pending.ids_of(workers), np.int64)
        for worker in workers:
            for command in [c for c in pending.open.values() if worker in c.waiting and c.ids is not None]:
                self._env_index.busy[command.ids] = False
            pending.drop_worker(worker)
        pending.updating = False
        self._replace(workers, cancelled)
        return cancelled

    def _kill(self, worker: int) -> bool:
        """Kills a worker and returns whether that was possible. It counts as crashed even if this is interrupted."""
        crashed = self._pending.crashed
        ids = self._pending.ids_of([worker])
        crashed.setdefault(worker, Failure(ids, "step", "cancelled", worker=worker, kind="crashed"))
        killed = self._backend.kill(worker)
        if not killed:
            del crashed[worker]
        return killed

    def respawn_crashed(self) -> np.ndarray:
        """Restarts all crashed workers.

        Returns:
            `[m]` int64, their environments, which must be reset before they step.

        Raises:
            WorkerError: environments cannot be constructed again; their workers remain crashed.
        """
        with self._closer.lock:
            self._enter()
            workers = sorted(self._pending.crashed)
            cancelled = np.array(self._pending.ids_of(workers), np.int64)
            if workers:
                self._replace(workers, cancelled)
            return cancelled

    def _replace(self, workers: Sequence[int], ids: np.ndarray) -> None:
        self._env_index.failed[ids] = True
        self._healthy = False
        if failures := self._restarter.replace(workers):
            raise failures_to_error(failures)

    def drain(self, timeout: float | None = None) -> None:
        """Waits for all pending commands and drops their results.

        Args:
            timeout: seconds to wait for each command (default: the pool's `step_timeout`).

        Raises:
            StepTimeout: a command timed out.
        """
        with self._closer.lock:
            self._enter()
            pending = self._pending
            for pending_command in list(pending.open.values()):
                self._gather(pending_command, timeout)
                if pending_command.ids is None:
                    self._mark_completed(pending_command, pending_command.failures)
            for pending_command in pending.completed:
                self._mark_completed(pending_command, pending_command.failures)
            pending.completed.clear()

    def recover(self, grace: float) -> None:
        """Completes or cancels what an interrupted call left pending.

        Pending commands have `grace` seconds to complete. Then workers that are still pending, and workers that have
        crashed, are restarted. The environments of these must be reset before they step.

        Raises:
            StepTimeout: the pending command runs in a thread, which cannot be killed.
            WorkerError: environments cannot be constructed again; their workers remain crashed.
        """
        try:
            self.drain(grace)
        except StepTimeout:
            self.cancel(np.arange(self.num_envs))
            self.drain()
        self.respawn_crashed()

    def record_seeds(self, seeds: Sequence[int | None] | None, ids: Iterable[int]) -> None:
        """Checks the seeds given to `ids`, by a `reset` or otherwise, and records them for restarts.

        Raises:
            SpaceError: a seed is negative.
        """
        for seed in () if seeds is None else seeds:
            check_seed(seed)
        if self._fault_policy is not None and seeds is not None:
            self._fault_policy.record_seeds(ids, seeds)

    # -- closing -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
        return self._closer.closed

    @property
    def in_use(self) -> bool:
        """Whether a call of the pool is running in another thread."""
        return self._closer.in_use

    def close(self, timeout: float | None = None) -> None:
        """Closes every environment and ends every worker. It can be called in any state. A second call does nothing.

        A call that waits in another thread raises `ClosedError`. If several threads call `close`, each returns when the
        pool is closed, and one of them raises the errors.

        Args:
            timeout: seconds that environments may take to close (default: the step timeout, or 10). After that, their
                processes are killed.

        Raises:
            WorkerError: environments raised while they were closed. The pool is closed nevertheless.
        """
        grace = timeout if timeout is not None else 10.0 if self.step_timeout is None else self.step_timeout
        failures = self._closer.close(grace)
        self._env_index.busy[:] = False
        if self._fault_policy is not None:  # a crashed worker has no environments to close
            failures = [failure for failure in failures if failure.kind != "crashed"]
        if failures:
            raise failures_to_error(failures)

    # -- internal ----------------------------------------------------------------------------------

    def _send(self, pending: Sequence[PendingCommand], commands: Sequence[tuple[int, Command]]) -> None:
        """Sends the commands of new pending commands. If they cannot be pickled, removes the pending commands again."""
        try:
            self._backend.send(commands)
        except SerializationError:
            for command in pending:
                del self._pending.open[command.seq]
            self._pending.updating = False
            raise

    def _gather(self, command: PendingCommand, timeout: float | None = None) -> list[Failure]:
        """Waits for a command and returns its failures. Kills workers that time out if they can be restarted."""
        limit = self.step_timeout if timeout is None else timeout
        while True:
            try:
                return self._pending.wait_for(command, limit)
            except StepTimeout:
                if timeout is not None or limit is None or self._fault_policy is None:
                    raise
                if not self._fault_policy.kill_overdue(self._backend.timed_out(set(command.waiting)), limit):
                    raise

    def _next_deadline(self, deadline: float | None, limit: float | None) -> float | None:
        """Returns the seconds to wait for replies: until `deadline`, or until some worker takes longer than `limit`."""
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if limit is None:
            return remaining
        if not self._pending.runs_inline:
            limit = self._pending.time_until_overdue(limit)
        return limit if remaining is None else min(remaining, limit)

    def _check_timeouts(self, limit: float | None) -> None:
        """Kills workers that have taken longer than `limit` seconds, if the fault policy can restart them.

        Raises:
            StepTimeout: workers timed out and cannot be killed. Their timers are restarted.
        """
        if limit is None or not (overdue := self._backend.timed_out(self._pending.overdue(limit))):
            return
        if self._fault_policy is None or not self._fault_policy.kill_overdue(overdue, limit):
            self._pending.restart_timers(overdue)
            raise self._pending.timeout_error(limit, overdue)

    def _handle_failures(self, pending: Sequence[PendingCommand], failures: list[Failure]) -> list[Failure]:
        """Returns those failures of completed commands that the fault policy does not handle."""
        policy = self._fault_policy
        if policy is None:
            return failures
        if failures or any(command.excluded for command in pending):
            failures = policy.handle_failures(pending)
            self._healthy = False
        for command in pending:
            if command.op in (Op.RESET, Op.STEP):
                policy.record(command)
        return failures

    def _mark_completed(self, command: PendingCommand, failures: Sequence[Failure]) -> None:
        """Records which environments of a completed command are idle and which failed."""
        if command.ids is not None:
            self._env_index.busy[command.ids] = False
        failed = self._env_index.failed
        if command.op == Op.RESET:
            failed[slice(None) if command.ids is None else command.ids] = False
        elif command.op == Op.STEP and command.ids is None and not self._healthy:
            failed &= ~self._buffers.slots[command.slot].was_reset
        elif not failures:
            return
        if command.op in (Op.STEP, Op.RESET):
            self._env_index.mark_failed(failures)
        self._healthy = not (self._closer.closed or self._pending.crashed or failed.any())

    def _enter(self) -> None:
        """Checks that the pool is open. If a call was interrupted, restores the records of pending commands."""
        if self._closer.closed:
            raise ClosedError(CLOSED)
        if self._pending.updating:
            self._resync()

    def _resync(self) -> None:
        """Restores which environments are pending. Those that lost a transition must be reset before they step."""
        pending, env_index = self._pending, self._env_index
        if self._fault_policy is not None:
            self._fault_policy.forget()
        pending.resync(self.step_timeout is not None)
        still_busy = np.zeros(self.num_envs, bool)
        for command in [*pending.open.values(), *pending.completed]:
            if command.ids is not None:
                still_busy[command.ids] = True
        env_index.failed |= env_index.busy & ~still_busy
        env_index.busy[:] = still_busy
        self._healthy = False
        pending.updating = False

    def _check_alive(self, workers: Sequence[int] | Mapping[int, object]) -> None:
        if self._closer.closed:
            raise ClosedError(CLOSED)
        crashed, policy = self._pending.crashed, self._fault_policy
        failures = [crashed[w] for w in workers if w in crashed] if crashed else []
        while failures and policy is not None:
            known, ids_of = failures, self._pending.ids_of
            failures = policy.handle_idle_failures(known)
            # other workers may have crashed while those were restarted
            failures = failures or [crashed[w] for w in workers if w in crashed and policy.alive[[*ids_of([w])]].any()]
            if any(failure is other for failure in failures for other in known):  # not handled
                break
        if failures:
            raise failures_to_error(failures)

    def _check_idle(self) -> None:
        self._enter()
        if self._pending.open or self._pending.completed:
            raise PendingError(
                f"{self._name_pending()} still pending, after an interrupted or asynchronous call. Receive the "
                "results, if this class can, or reset all environments to drop them."
            )

    def _check_ids(self, ids: Ids) -> np.ndarray:
        self._enter()
        if self._pending.sync_command is not None:
            raise PendingError(f"{self._name_pending()} still pending; receive them first.")
        checked_ids = self._env_index.check(ids)
        if self._pending.crashed:
            self._check_alive(self._env_index.owners(checked_ids))
        return checked_ids

    def _name_pending(self) -> str:
        return f"{self._env_index.name(self.pending)} are"


def _construction_error(failures: Sequence[Failure], env_id_offset: int) -> Exception:
    """Returns the error for failures during construction: a `SpaceError` or `OutOfSpecError` if all of them are.

    Args:
        failures: the failures.
        env_id_offset: the number of the first environment in messages.
    """
    if not all(isinstance(failure.exception, SpaceError) for failure in failures):
        return failures_to_error(failures)
    ids_by_text: dict[str, list[int]] = {}
    for failure in failures:
        ids_by_text.setdefault(str(failure.exception), []).extend(i + env_id_offset for i in failure.env_ids)
    prefix = "environment "  # in the text of a pool that runs in the worker
    lines = [
        text if text.startswith(prefix) else f"{name_ids(sorted(ids))}: {text}" for text, ids in ids_by_text.items()
    ]
    cls = OutOfSpecError if all(isinstance(failure.exception, OutOfSpecError) for failure in failures) else SpaceError
    return cls("\n".join(lines))


def _pool_spaces(infos: Mapping[int, WorkerInfo], worker_specs: Sequence[WorkerSpec], options: PoolOptions) -> Spaces:
    """Returns the spaces for which batch buffers are laid out, from what each worker reports about itself.

    They are those that `options.resolve_spaces` returns. Without it, they are those of the first worker, and the spaces
    of all workers must be equal, or have equal layouts if the options do not ask for equal spaces.

    Raises:
        OutOfSpecError: the spaces differ.
    """
    if options.resolve_spaces is not None:
        return options.resolve_spaces([info for _, info in sorted(infos.items())])
    first_info = infos[0]
    for index, info in sorted(infos.items()):
        pairs = [("action_space", first_info.action_space, info.action_space, options.same_actions)]
        pairs.append(("observation_space", first_info.observation_space, info.observation_space, options.same_spaces))
        for name, expected, actual, equal in pairs:
            same_layout = Layout(expected).leaves == Layout(actual).leaves
            if not same_layout or (equal and not equal_spaces(expected, actual)):
                raise OutOfSpecError(
                    f"environment {worker_specs[index].start}: expected the {name} {expected}, as of the first "
                    f"environment, got {actual}. Use environments with the same spaces."
                )
    return first_info.observation_space, first_info.action_space


def _check_distinct_envs(infos: Sequence[WorkerInfo], worker_specs: Sequence[WorkerSpec]) -> None:
    """Raises a `SpaceError` if two rows have one environment, which both would step.

    Args:
        infos: what each worker reports about itself.
        worker_specs: the arguments of the workers.
    """
    first_rows: dict[tuple[int, int], int] = {}
    rows = [
        (row, (info.pid, key))
        for spec, info in zip(worker_specs, infos, strict=True)
        for row, key in zip(spec.ids, info.env_ids, strict=False)  # a simulator may have no objects
    ]
    for row, key in rows:
        if (first := first_rows.setdefault(key, row)) != row:
            raise SpaceError(
                f"environment {row}: Expected functions that make a new environment at each call, got the environment "
                f"{first} again, so that both rows would step it. Make it inside of the function: "
                "`lambda: gymnasium.make(...)` instead of `lambda: env`."
            )
