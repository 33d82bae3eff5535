"""Manages the workers of a pool: constructs, calls, restarts and closes them.

It does what all commands share: it checks the workers, waits for replies, handles timeouts and failures, and records
which environments are pending or failed. The results of steps and resets belong to `Pool`. This module must not know
rows, auto-reset modes or the interfaces above the engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..errors import (
    ClosedError,
    Failure,
    PendingError,
    SerializationError,
    SpaceError,
    StateError,
    StepTimeout,
    failures_to_error,
)
from ..seeding import seed_for
from .backends.ray_cluster.options import RayOptions
from .backends.registry import BackendName, backend_entry
from .backends.worker_options import StartMethod, WorkerOptions
from .construction_checks import ResolveSpaces, check_worker_infos, construction_error
from .env_index import EnvIndex, Ids
from .fault_policy import FaultPolicy, OnFailure, WorkerRestarter, check_fault_options
from .pending import CLOSED, PendingCommand, PendingCommands
from .pool_closer import PoolCloser
from .simulator import Simulator
from .space_layout import Layout
from .transition_builder import TransitionBuilder
from .worker import Command, Op, WorkerInfo, WorkerSpec

InvokeKind = Literal["get", "set", "call", "render", "get_state", "set_state"]
_NUM_SLOTS = 4


class PoolLifecycle:
    """Workers and their environments, without steps and resets. The arguments are those of `Pool`."""

    def __init__(
        self,
        makers: Sequence[tuple[Callable[[], Simulator], int]],
        backend: BackendName = "serial",
        *,
        infos: bool | Literal["dicts"] = True,
        check_nan: bool = False,
        step_timeout: float | None = None,
        on_failure: OnFailure = "raise",
        restarts_per_hour: int = 100,
        start_method: StartMethod = "forkserver",
        threads_per_worker: int = 1,
        preload: Sequence[str] = (),
        pin_workers: bool = False,
        same_spaces: bool = True,
        same_actions: bool = True,
        resolve_spaces: ResolveSpaces | None = None,
        ray_options: RayOptions | None = None,
        env_id_offset: int = 0,
    ):
        if step_timeout is not None and not step_timeout > 0:
            raise ValueError(f"Expected step_timeout to be seconds above 0, or None, got {step_timeout!r}.")
        check_fault_options(on_failure, restarts_per_hour)
        entry = backend_entry(backend)
        self._env_index = env_index = EnvIndex((k for _, k in makers), env_id_offset)
        starts = env_index.worker_bounds.tolist()
        root = secrets.randbits(64)
        worker_specs = [
            WorkerSpec(i, starts[i], k, make, infos, check_nan, seed_for(root, i)) for i, (make, k) in enumerate(makers)
        ]
        self.num_envs = env_index.num_envs
        self.num_workers = len(worker_specs)
        self.backend_name: BackendName = backend
        self.in_process = entry.in_process
        self.step_timeout = step_timeout
        self.on_failure: OnFailure = on_failure
        self._workers = range(len(worker_specs))
        self._healthy = False  # True: nothing is closed, crashed or failed, so a step needs no checks
        options = WorkerOptions(start_method, threads_per_worker, preload, pin_workers, ray_options)
        self._backend = entry.make(worker_specs, options)
        self._pending = PendingCommands(self._backend, env_index.worker_bounds, entry.runs_inline)
        self._closer = PoolCloser(self, self._backend, self._pending)
        self._lock = self._closer.lock
        try:
            self._build(worker_specs, same_spaces, same_actions, resolve_spaces)
            self._fault_policy = self._make_fault_policy(restarts_per_hour, bool(infos))
        except BaseException:
            self._closer.abort()
            raise

    def __getstate__(self) -> Any:
        raise TypeError("A pool cannot be copied or pickled, since its workers cannot. Construct another pool.")

    def _build(
        self,
        worker_specs: Sequence[WorkerSpec],
        same_spaces: bool,
        same_actions: bool,
        resolve_spaces: ResolveSpaces | None,
    ) -> None:
        command = self._pending.register_internal(Op.CONSTRUCT, self._workers)
        failures = self._pending.wait_for(command, None)
        if failures:
            raise construction_error(failures, self._env_index.env_id_offset)
        infos_by_worker: dict[int, WorkerInfo] = {worker: reply.result for worker, reply in command.replies}
        self.worker_infos = [infos_by_worker[worker] for worker in self._workers]
        self.worker_info = infos_by_worker[0]
        spaces = (
            resolve_spaces(self.worker_infos)
            if resolve_spaces
            else check_worker_infos(infos_by_worker, worker_specs, same_spaces, same_actions)
        )
        self.obs_layout, self.action_layout = map(Layout, spaces)
        slots = _NUM_SLOTS if self.on_failure == "raise" else _NUM_SLOTS + 1
        self._buffers = self._backend.attach(self.obs_layout, self.action_layout, self.num_envs, slots)
        self._gather_or_raise(self._pending.register_internal(Op.ATTACH, self._workers), None)
        self._transition_builder = TransitionBuilder(self._buffers, self.obs_layout)
        self._restarter = WorkerRestarter(self._backend, self._pending, self.worker_infos)
        self._buffers.seal()

    def _make_fault_policy(self, restarts_per_hour: int, infos: bool) -> FaultPolicy | None:
        if self.on_failure == "raise":
            return None
        parts = self._backend, self._pending, self._env_index, self._buffers, self.obs_layout, self._transition_builder
        return FaultPolicy(self.on_failure, restarts_per_hour, *parts, self._restarter, self._gather, infos)

    @property
    def pending(self) -> np.ndarray:
        """The pending environments, `[m]` int64."""
        updating = self._pending.updating and not self._closer.closed
        if updating and self._lock.acquire(blocking=False):  # otherwise a call in another thread is running
            try:
                self._resync()
            finally:
                self._lock.release()
        return np.flatnonzero(self._env_index.busy) if self._pending.sync_command is None else np.arange(self.num_envs)

    # -- access to environments --------------------------------------------------------------------

    def invoke(
        self, kind: InvokeKind, name: str = "", values: Sequence[Any] | None = None, ids: Ids | None = None
    ) -> list[Any]:
        """Gets, sets, calls or renders in environments and returns the results.

        Args:
            kind: what to do.
            name: the name of the attribute or method.
            values: one per environment: the value to set, or args and kwargs of the call.
            ids: the environments; None for all.

        Returns:
            One result per environment, in the order of `ids`; None for those that are not `alive`.
        """
        self.invoke_async(kind, name, values, ids)
        return self.invoke_wait()

    def invoke_async(
        self, kind: InvokeKind, name: str = "", values: Sequence[Any] | None = None, ids: Ids | None = None
    ) -> None:
        """Sends the commands of `invoke` without waiting."""
        with self._lock:
            checked_ids = self._check_ids(np.arange(self.num_envs) if ids is None else ids)
            check_length("values", values, len(checked_ids))
            alive_rows = np.flatnonzero(self.alive[checked_ids])
            parts = {
                worker: (rows, alive_rows[places])
                for worker, rows, places in self._env_index.split(checked_ids[alive_rows])
            }
            self._invoke_request = len(checked_ids), {worker: places for worker, (_, places) in parts.items()}
            self._pending.updating = True
            command = self._pending.register(Op.INVOKE, parts)
            commands: list[tuple[int, Command]] = []
            for worker, (rows, places) in parts.items():
                row_values = [None] * len(rows) if values is None else [values[int(p)] for p in places]
                extra = (kind, name, row_values)
                commands.append((worker, Command(Op.INVOKE, command.seq, rows=rows.tolist(), extra=extra)))
            self._send([command], commands)
            self._pending.updating = False

    def invoke_wait(self, timeout: float | None = None) -> list[Any]:
        """Waits for the pending `invoke_async` and returns its results.

        Raises:
            PendingError: no call is pending.
            WorkerError: environments failed; the results of the others are in the error's `results`.
        """
        with self._lock:
            self._enter()
            command = self._pending.sync_command
            if command is None or command.op != Op.INVOKE:
                raise PendingError("Expected a pending call, got none. Call invoke_async first.")
            failures = self._pending.wait_for(command, self.step_timeout if timeout is None else timeout)
        count, places = self._invoke_request
        results: list[Any] = [None] * count
        for worker, reply in command.replies:
            if reply.result is not None:  # it is None if the worker crashed
                for place, result in zip(places[worker].tolist(), reply.result, strict=True):
                    results[place] = result
        if failures:
            error = failures_to_error(failures)
            error.results = results
            raise error
        return results

    def drop_call(self, timeout: float | None = None) -> None:
        """Waits for the pending call, or the pending command to all environments, if any, and drops its result.

        Args:
            timeout: seconds to wait (default: the pool's `step_timeout`).

        Raises:
            StepTimeout: it timed out.
        """
        with self._lock:
            self._enter()
            command = self._pending.sync_command
            if command is not None:
                self._mark_completed(command, self._gather(command, timeout))

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
        with self._lock:
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
        with self._lock:
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

    def record_seeds(self, seeds: Sequence[int | None] | None, ids: Iterable[int]) -> None:
        """Records the seeds given to `ids`, by a `reset` or otherwise. Restarts derive their seeds from them."""
        if self._fault_policy is not None and seeds is not None:
            self._fault_policy.record_seeds(ids, seeds)

    # -- states ------------------------------------------------------------------------------------

    state_is_plain_data = True  # a snapshot of an object that has a pool stores the result of `get_state` unchanged

    def get_state(self, ids: Ids | None = None) -> list[dict[str, Any]]:
        """Returns the states of all environments or of `ids`, as plain data, in their order.

        Raises:
            PendingError: some of them are pending, or have failed and were not reset.
            WorkerError: the state of an environment cannot be saved. The cause is a `StateError`, which says which
                environment and why.
        """
        self._env_index.require_healthy(slice(None) if ids is None else ids)
        states = self.invoke("get_state", ids=ids)
        if self._fault_policy is not None:
            for env_id, state in zip(self._env_index.id_list(ids), states, strict=True):
                state |= self._fault_policy.seed_of(env_id)
        return states

    def set_state(self, states: Sequence[Any], ids: Ids | None = None, *, allow: Iterable[type | str] = ()) -> None:
        """Restores states that `get_state` returned. Environments that failed need no reset after this.

        Args:
            states: one per environment, in the order of `ids`.
            ids: the environments; None for all.
            allow: classes, or their names, that a state may hold; see `vecrl.snapshot.restore`.

        Raises:
            StateError: the number of states is wrong, or they are not states.
            WorkerError: an environment was constructed differently from the one that was saved. The cause is a
                `StateError`.
        """
        count = self.num_envs if ids is None else len(ids)
        if len(states) != count or not all(isinstance(state, Mapping) and "env" in state for state in states):
            raise StateError(
                f"Expected {count} states as get_state returns them, got {len(states)} items. Pass one per environment."
            )
        names = [
            class_or_name
            if isinstance(class_or_name, str)
            else f"{class_or_name.__module__}.{class_or_name.__qualname__}"
            for class_or_name in allow
        ]
        self.invoke("set_state", "", [(state, names) for state in states], ids)
        if self._fault_policy is not None:
            for env_id, state in zip(self._env_index.id_list(ids), states, strict=True):
                self._fault_policy.restore_state(env_id, state)
        self._env_index.failed[slice(None) if ids is None else ids] = False

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

    def _gather_or_raise(self, command: PendingCommand, timeout: float | None) -> None:
        failures = self._pending.wait_for(command, timeout)
        if failures:
            raise failures_to_error(failures)

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

    def _check_alive(self, workers: Sequence[int] | Mapping[int, Any]) -> None:
        if self._closer.closed:
            raise ClosedError(CLOSED)
        crashed = self._pending.crashed
        failures = [crashed[w] for w in workers if w in crashed] if crashed else []
        if failures and self._fault_policy is not None:
            alive, ids_of = self._fault_policy.alive, self._pending.ids_of
            failures = self._fault_policy.handle_idle_failures(failures)
            failures = failures or [crashed[w] for w in workers if w in crashed and alive[list(ids_of([w]))].any()]
        if failures:
            raise failures_to_error(failures)

    def _check_idle(self) -> None:
        self._enter()
        if self._pending.open or self._pending.completed:
            raise PendingError(f"{self._name_pending()} still pending; wait for them first.")

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


def check_length(name: str, values: Sequence[Any] | None, count: int) -> None:
    """Raises a `SpaceError` if `values` is given and has not `count` elements."""
    if values is not None and len(values) != count:
        raise SpaceError(f"Expected {count} {name}, one per environment, got {len(values)}.")
