"""Workers as one: made, asked, reached into, made good, closed.

What any command has in common: it goes to workers that are there, is answered or late or ends in failures, and leaves
notes on who is busy and who failed. What steps and resets yield is the `Pool`'s. Knows no rows, mode or dialect.
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
from .backends.processes import StartMethod
from .backends.ray_cluster.options import RayOptions
from .closing import Closing
from .env_index import EnvIndex, Ids
from .fault_policy import FaultPolicy, OnFailure, WorkerRestarter, check_fault_options
from .pending import CLOSED, PendingCommand, PendingCommands
from .pool_factory import BackendName, ResolveSpaces, check_worker_infos, construction_error, make_backend
from .simulator import Simulator
from .space_layout import Layout
from .transition_builder import TransitionBuilder
from .worker import Command, Op, WorkerInfo, WorkerSpec

InvokeKind = Literal["get", "set", "call", "render", "get_state", "set_state"]
_NUM_SLOTS = 4


class PoolLifecycle:
    """Workers and their environments, without steps and resets; see `Pool`, which has the arguments."""

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
            raise ValueError(f"Expected step_timeout to be seconds above 0, or None, but {step_timeout!r} came.")
        check_fault_options(on_failure, restarts_per_hour)
        self._env_index = env_index = EnvIndex((k for _, k in makers), env_id_offset)
        starts = env_index.starts.tolist()
        root = secrets.randbits(64)
        worker_specs = [
            WorkerSpec(i, starts[i], k, make, infos, check_nan, seed_for(root, i)) for i, (make, k) in enumerate(makers)
        ]
        self.num_envs = env_index.num_envs
        self.num_workers = len(worker_specs)
        self.backend_name: BackendName = backend
        self.step_timeout = step_timeout
        self.on_failure: OnFailure = on_failure
        self._workers = range(len(worker_specs))
        self._healthy = False  # nothing is closed, dead or failed: nothing to check before a step
        options = start_method, threads_per_worker, preload, pin_workers, ray_options
        self._backend = make_backend(backend, worker_specs, *options)
        self._pending = PendingCommands(self._backend, env_index.starts)
        self._closing = Closing(self, self._backend, self._pending)
        self._turn = self._closing.turn
        try:
            self._build(worker_specs, same_spaces, same_actions, resolve_spaces)
            self._fault_policy = self._make_fault_policy(restarts_per_hour, bool(infos))
        except BaseException:
            self._closing.abort()
            raise

    def __getstate__(self) -> Any:
        raise TypeError("Environments that run cannot be copied or pickled, as their workers cannot: make others.")

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
        infos_by_worker: dict[int, WorkerInfo] = {worker: report.result for worker, report in command.reports}
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
        """`[m]` int64, the environments under way."""
        torn = self._pending.torn and not self._closing.closed
        if torn and self._turn.acquire(blocking=False):  # else a call in another thread is at work
            try:
                self._resume()
            finally:
                self._turn.release()
        return np.flatnonzero(self._env_index.busy) if self._pending.sync_command is None else np.arange(self.num_envs)

    # -- reach into environments -------------------------------------------------------------------

    def invoke(
        self, kind: InvokeKind, name: str = "", values: Sequence[Any] | None = None, ids: Ids | None = None
    ) -> list[Any]:
        """Get, set, call or render in `ids` (None: all); `values` one an environment. Results in their order, None for
        those that are not `alive`."""
        self.invoke_async(kind, name, values, ids)
        return self.invoke_wait()

    def invoke_async(
        self, kind: InvokeKind, name: str = "", values: Sequence[Any] | None = None, ids: Ids | None = None
    ) -> None:
        """Ask for `invoke` without waiting; environments that are not asked may be under way."""
        with self._turn:
            checked_ids = self._check_ids(np.arange(self.num_envs) if ids is None else ids)
            check_length("values", values, len(checked_ids))
            alive_rows = np.flatnonzero(self.alive[checked_ids])
            parts = {
                worker: (rows, alive_rows[places])
                for worker, rows, places in self._env_index.split(checked_ids[alive_rows])
            }
            self._invoke_request = len(checked_ids), {worker: places for worker, (_, places) in parts.items()}
            self._pending.torn = True
            command = self._pending.register(Op.INVOKE, parts)
            commands: list[tuple[int, Command]] = []
            for worker, (rows, places) in parts.items():
                row_values = [None] * len(rows) if values is None else [values[int(p)] for p in places]
                extra = (kind, name, row_values)
                commands.append((worker, Command(Op.INVOKE, command.seq, rows=rows.tolist(), extra=extra)))
            self._send([command], commands)
            self._pending.torn = False

    def invoke_wait(self, timeout: float | None = None) -> list[Any]:
        """The results of `invoke_async`.

        Raises:
            WorkerError: environments failed; what the others gave is in its `results`.
        """
        with self._turn:
            self._enter()
            command = self._pending.sync_command
            if command is None or command.op != Op.INVOKE:
                raise PendingError("Nothing was called; call invoke_async first.")
            failures = self._pending.wait_for(command, self.step_timeout if timeout is None else timeout)
        count, places = self._invoke_request
        results: list[Any] = [None] * count
        for worker, report in command.reports:
            if report.result is not None:  # as it is of those that are gone
                for place, result in zip(places[worker].tolist(), report.result, strict=True):
                    results[place] = result
        if failures:
            error = failures_to_error(failures)
            error.results = results
            raise error
        return results

    def drop_call(self, timeout: float | None = None) -> None:
        """Waits for the pending command to all environments, or the pending call, if any, and drops its result.

        Args:
            timeout: seconds to wait (default: the pool's `step_timeout`).

        Raises:
            StepTimeout: it is late.
        """
        with self._turn:
            self._enter()
            command = self._pending.sync_command
            if command is not None:
                self._mark_completed(command, self._gather(command, timeout))

    # -- faults ------------------------------------------------------------------------------------

    @property
    def alive(self) -> np.ndarray:
        """`[n]` bool: those that were not left out for good, as `on_failure="mask"` does with those that fail."""
        return np.ones(self.num_envs, bool) if self._fault_policy is None else self._fault_policy.alive.copy()

    def cancel(self, ids: Ids) -> np.ndarray:
        """Give up what `ids` are doing: their workers are ended, and others take their places.

        Whatever else those workers have is made anew too, and what is still under way of it is dropped. All of it must
        be reset before it steps. Ids of which nothing is under way are left alone, and so are those that have
        replied.

        Returns:
            `[m]` int64, the environments that were made anew.

        Raises:
            StepTimeout: a thread is at it, which cannot be ended; nothing was done.
            WorkerError: environments cannot be made anew.
        """
        with self._turn:
            self._enter()
            self._pending.receive_arrived()
            return self._cancel(set(self._env_index.parse_ids(ids).tolist()))

    def _cancel(self, requested: set[int]) -> np.ndarray:
        pending = self._pending
        waiting = {worker for command in pending.open.values() for worker in command.waiting}
        workers = sorted(worker for worker in waiting if requested.intersection(pending.ids_of([worker])))
        pending.torn = True
        if overdue := [worker for worker in workers if not self._kill(worker)]:
            raise pending.timeout_error(self.step_timeout or 0.0, overdue)
        cancelled = np.array(pending.ids_of(workers), np.int64)
        for worker in workers:
            for command in [f for f in pending.open.values() if worker in f.waiting and f.ids is not None]:
                self._env_index.busy[command.ids] = False
            pending.drop_worker(worker)
        pending.torn = False
        self._replace(workers, cancelled)
        return cancelled

    def _kill(self, worker: int) -> bool:
        """End a worker by force, which is gone then, whatever breaks in; whether that could be done."""
        crashed = self._pending.crashed
        ids = self._pending.ids_of([worker])
        crashed.setdefault(worker, Failure(ids, "step", "cancelled", worker=worker, kind="crashed"))
        killed = self._backend.kill(worker)
        if not killed:
            del crashed[worker]
        return killed

    def respawn_crashed(self) -> np.ndarray:
        """Have others take the places of all workers that are gone, at once.

        Returns:
            `[m]` int64, their environments, which must be reset before they step.

        Raises:
            WorkerError: environments cannot be made anew; those workers are as gone as they were.
        """
        with self._turn:
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
        """Note seeds that `ids` are given, by a `reset` or another way: what restarts go on from."""
        if self._fault_policy is not None and seeds is not None:
            self._fault_policy.record_seeds(ids, seeds)

    # -- states ------------------------------------------------------------------------------------

    state_is_plain_data = True  # what `get_state` gives is written down as it is where a pool hangs on something else

    def get_state(self, ids: Ids | None = None) -> list[dict[str, Any]]:
        """All that going on from here takes, of all environments or of `ids`: plain data each, in their order.

        Raises:
            PendingError: some are under way, or failed and were not reset.
            WorkerError: with a `StateError` as its cause: an environment's state cannot be had; says which and why.
        """
        self._env_index.require_healthy(slice(None) if ids is None else ids)
        states = self.invoke("get_state", ids=ids)
        if self._fault_policy is not None:
            for env_id, state in zip(self._env_index.id_list(ids), states, strict=True):
                state |= self._fault_policy.seed_of(env_id)
        return states

    def set_state(self, states: Sequence[Any], ids: Ids | None = None, *, allow: Iterable[type | str] = ()) -> None:
        """Go on from `states`, one an environment asked, in their order; `allow`: see `vecrl.snapshot.put`.

        Environments that failed need no reset after this.

        Raises:
            StateError: another number of states, or no states.
            WorkerError: with a `StateError` as its cause: an environment was made otherwise than the one whose state
                it is.
        """
        count = self.num_envs if ids is None else len(ids)
        if len(states) != count or not all(isinstance(state, Mapping) and "env" in state for state in states):
            raise StateError(
                f"Expected the states of {count} environments, as get_state gives, but {len(states)} came."
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

    # -- the end -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closing.closed

    @property
    def in_use(self) -> bool:
        """Whether a call in another thread is at work."""
        return self._closing.in_use

    def close(self, timeout: float | None = None) -> None:
        """Close every environment and end every worker; harmless in any state, and twice.

        A call that waits in another thread ends with a `ClosedError`.

        Args:
            timeout: seconds that environments may take to close (default: the step timeout, or 10), after which
                their processes are ended by force.

        Raises:
            WorkerError: what environments raised while closing; everything is closed all the same.
        """
        grace = timeout if timeout is not None else 10.0 if self.step_timeout is None else self.step_timeout
        failures = self._closing.close(grace)
        self._env_index.busy[:] = False
        if self._fault_policy is not None:  # one that died leaves nothing to close
            failures = [failure for failure in failures if failure.kind != "crashed"]
        if failures:
            raise failures_to_error(failures)

    # -- inside ------------------------------------------------------------------------------------

    def _send(self, pending: Sequence[PendingCommand], commands: Sequence[tuple[int, Command]]) -> None:
        """Send the commands of new flights; where they cannot be sent, they are as if never asked."""
        try:
            self._backend.send(commands)
        except SerializationError:
            for command in pending:
                del self._pending.open[command.seq]
            self._pending.torn = False
            raise

    def _gather(self, command: PendingCommand, timeout: float | None = None) -> list[Failure]:
        """Wait for a flight: its failures, those included that are late, where they can be ended."""
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
        """What remains of the failures of flights that were answered."""
        recovery = self._fault_policy
        if recovery is None:
            return failures
        if failures or any(command.excluded for command in pending):
            failures = recovery.handle_failures(pending)
            self._healthy = False
        for command in pending:
            if command.op in (Op.RESET, Op.STEP):
                recovery.record(command)
        return failures

    def _gather_or_raise(self, command: PendingCommand, timeout: float | None) -> None:
        failures = self._pending.wait_for(command, timeout)
        if failures:
            raise failures_to_error(failures)

    def _mark_completed(self, command: PendingCommand, failures: Sequence[Failure]) -> None:
        """Note what an answered flight leaves behind: who is idle, who failed."""
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
        self._healthy = not (self._closing.closed or self._pending.crashed or failed.any())

    def _enter(self) -> None:
        """Checks that this is open, and restores the notes of a call that was interrupted."""
        if self._closing.closed:
            raise ClosedError(CLOSED)
        if self._pending.torn:
            self._resume()

    def _resume(self) -> None:
        """Restores which environments are pending. Those that lost a transition must be reset before they step."""
        pending, env_index = self._pending, self._env_index
        if self._fault_policy is not None:
            self._fault_policy.forget()
        pending.resume(self.step_timeout is not None)
        still_busy = np.zeros(self.num_envs, bool)
        for command in [*pending.open.values(), *pending.completed]:
            if command.ids is not None:
                still_busy[command.ids] = True
        env_index.failed |= env_index.busy & ~still_busy
        env_index.busy[:] = still_busy
        self._healthy = False
        pending.torn = False

    def _check_alive(self, workers: Sequence[int] | Mapping[int, Any]) -> None:
        if self._closing.closed:
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
            raise PendingError(f"{self._name_pending()} still under way; wait for them first.")

    def _check_ids(self, ids: Ids) -> np.ndarray:
        self._enter()
        if self._pending.sync_command is not None:
            raise PendingError(f"{self._name_pending()} still under way; receive them first.")
        checked_ids = self._env_index.check(ids)
        if self._pending.crashed:
            self._check_alive(self._env_index.owners(checked_ids))
        return checked_ids

    def _name_pending(self) -> str:
        return f"{self._env_index.name(self.pending)} are"


def check_length(name: str, values: Sequence[Any] | None, count: int) -> None:
    if values is not None and len(values) != count:
        raise SpaceError(f"Expected {count} {name}, one an environment asked, but {len(values)} came.")
