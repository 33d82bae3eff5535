"""Steps and resets environments through their workers: any subset, in any order, with or without waiting.

`send(ids, …)` and `recv(at_least, timeout)` are the general case. `step` and `reset` of all environments use a faster
path: all workers get the same command, and the results stay in a slot of the batch buffers without a copy. Every
command has a number that its reply repeats, so a late reply is never taken for the reply to a later command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import ClosedError, PendingError, SpaceError, failures_to_error
from ..validation import check_length
from .backends.base import StepsInline
from .backends.registry import BackendName, backend_entry
from .env_access import EnvAccess
from .env_index import Ids
from .pending import CLOSED, PendingCommand
from .pool_options import PoolOptions
from .simulator import ResetOptions, Simulator
from .space_layout import LeafRows, Tree
from .transition import Transition
from .worker import Command, Op, Worker

_Result = TypeVar("_Result", Transition, Transition | None)
ExtraOf = Callable[[np.ndarray], object]
"""Returns the `extra` of the command to one worker, from the positions of its environments among all of the command."""


class Pool(EnvAccess):
    """n environments on one or more workers.

    Args:
        makers: one `(make, k)` per worker; `make` constructs its simulator of k environments.
        backend: the name of the backend that runs the workers, see `PoolOptions`.
        options: the other fields of `PoolOptions`.

    Attributes:
        num_envs: n.
        in_process: whether the environments are in this process.
        worker_info: what the first worker reports about itself: spaces, metadata, render mode, spec.
        worker_infos: what each worker reports about itself.

    Raises:
        ValueError: an option has no valid value.
        WorkerError: environments cannot be constructed; all workers are ended.
        SpaceError: the spaces of the environments differ, and no other error occurred.
    """

    def __init__(
        self,
        makers: Sequence[tuple[Callable[[], Simulator], int]],
        backend: BackendName = "serial",
        **options: Any,
    ):
        super().__init__(makers, PoolOptions.from_keywords(backend=backend, **options))
        # the only worker, if it steps in this thread: the list of the backend, in which a restart replaces it
        self._inline_workers: list[Worker] = []
        has_one_without_limit = self.num_workers == 1 and self.step_timeout is None and self._fault_policy is None
        if backend_entry(backend).steps_inline and has_one_without_limit:
            assert isinstance(self._backend, StepsInline)
            self._inline_workers = self._backend.workers

    # -- all environments --------------------------------------------------------------------------

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: ResetOptions | None = None,
        ids: Ids | None = None,
    ) -> Transition:
        """Resets all environments, or only `ids`, and returns the transition.

        Args:
            seeds: one per environment to reset, in the order of `ids`.
            options: passed to the reset of every simulator.
            ids: the environments to reset; the transition has one row for each, in this order.
        """
        with self._closer.lock:
            if self._inline_workers and (ids is None or not self._pending.open):
                return self._reset_inline(seeds, options, ids)
            if ids is None:
                self.reset_async(seeds, options)
                return self._await_all(None)
            pending_commands = self.send_reset(ids, seeds, options)
            for pending_command in pending_commands:
                self._gather(pending_command)
            self._pending.updating = True
            self._pending.completed = [c for c in self._pending.completed if c not in pending_commands]
            return self._collect(pending_commands, ordered=True)

    def _reset_inline(
        self, seeds: Sequence[int | None] | None, options: ResetOptions | None, ids: Ids | None
    ) -> Transition:
        """Resets environments in the caller's thread, without a command to wait for."""
        worker = self._inline_workers[0]
        if ids is None:
            self._prepare_reset(seeds)
            checked_ids = np.arange(self.num_envs)
        else:
            checked_ids = self._check_reset(ids, seeds)
        extra_of = _reset_extras(seeds, options)
        command = PendingCommand(Op.RESET, 0, (), checked_ids, 0, False)
        try:
            for _, rows, positions in self._env_index.split(checked_ids):
                reply = worker.execute(Command(Op.RESET, rows=rows.tolist(), extra=extra_of(positions)))
                if reply is not None:
                    command.replies.append((0, reply))
            transition = self._transition_builder.partial([command])
        except BaseException:
            self._lose_results(checked_ids)
            raise
        return self._end_inline(command, transition)

    def reset_async(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> None:
        """Sends the `reset` of all environments without waiting for it.

        It first waits for all pending commands and drops their results.
        """
        with self._closer.lock:
            self._prepare_reset(seeds)
            excluded = None if self._fault_policy is None else self._fault_policy.excluded(slice(None))
            self._send_to_all(Op.RESET, False, None, excluded, _reset_extras(seeds, options))

    def _prepare_reset(self, seeds: Sequence[int | None] | None) -> None:
        """Checks that all environments can be reset, and drops the results of pending commands."""
        check_length("seeds", seeds, self.num_envs)
        self.drain()
        self._check_alive(self._workers)
        self.record_seeds(seeds, range(self.num_envs))

    def step(self, actions: Tree, *, reset_mask: np.ndarray | None = None, reset_done: bool = False) -> Transition:
        """Steps all environments and returns the transition.

        Args:
            actions: a tree of arrays `[n, ...]`, nested as the action space is.
            reset_mask: `[n]` bool, rows to reset instead of stepping them; their actions are not used.
            reset_done: whether to reset, within this step, the rows in which an episode ends.

        Raises:
            SpaceError: the mask has another shape or dtype, or the actions are of other shapes or dtypes.
        """
        with self._closer.lock:
            self._check_step(reset_mask)
            if self._inline_workers:
                if reset_mask is not None:
                    self._buffers.reset_mask[:] = reset_mask
                elements = self.action_layout.elements(actions, self.num_envs)
                return self._step_inline(elements, reset_done, masked=reset_mask is not None)
            self._send_step(actions, reset_mask, reset_done)
            return self._await_all(None)

    @property
    def _only_simulator(self) -> Simulator | None:
        """The simulator of all environments, if there is one and `_step_simulator` can step it in this thread."""
        return self._inline_workers[0].sim if self._inline_workers and not self._options.check_nan else None

    def _step_simulator(self, inputs: Any, reset_done: bool, has_results: Callable[[], bool]) -> Transition | None:
        """Steps all environments of `_only_simulator`. Its results need not go through the buffers.

        Args:
            inputs: what the simulator gets as the actions.
            reset_done: as in `step`.
            has_results: returns whether the simulator has kept the results.

        Returns:
            The transition; None if the simulator has kept the results.
        """
        with self._closer.lock:
            self._check_step(None)
            return self._step_inline(inputs, reset_done, masked=False, has_results=has_results)

    def _step_inline(
        self, actions: Any, reset_done: bool, masked: bool, has_results: Callable[[], bool] | None = None
    ) -> Any:
        """Steps all environments in the caller's thread, without a command to wait for.

        Returns:
            The transition; None if `has_results` returns True.
        """
        worker = self._inline_workers[0]
        try:
            reply = worker.step(actions, worker.slots[0], reset_done, masked)
            if reply is None and has_results is not None and has_results():
                transition = None
            else:
                transition = self._transition_builder.full(0, () if reply is None else ((0, reply),))
        except BaseException:
            self._lose_results(slice(None))
            raise
        if (reply is None or not reply.failures) and self._healthy and not self._pending.calls_must_end:
            return transition
        command = PendingCommand(Op.STEP, 0, (), None, 0, reset_done)
        if reply is not None:
            command.replies.append((0, reply))
        return self._end_inline(command, transition)

    def _lose_results(self, ids: np.ndarray | slice) -> None:
        """Records that a call that needs no reply raised, as by Ctrl-C: its environments must be reset."""
        self._env_index.failed[ids] = True
        self._healthy = False

    def _end_inline(self, command: PendingCommand, transition: _Result) -> _Result:
        """Records which environments failed, see `_mark_completed`, and returns the transition."""
        failures = command.failures
        self._mark_completed(command, failures)
        if self._pending.calls_must_end:
            raise ClosedError(CLOSED)
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    def step_async(self, actions: Tree, *, reset_mask: np.ndarray | None = None, reset_done: bool = False) -> None:
        """Sends the command of `step` without waiting."""
        with self._closer.lock:
            self._check_step(reset_mask)
            self._send_step(actions, reset_mask, reset_done)

    def _check_step(self, reset_mask: np.ndarray | None) -> None:
        """Checks that all environments can be stepped, or reset."""
        if reset_mask is not None and (reset_mask.shape != (self.num_envs,) or reset_mask.dtype != bool):
            raise SpaceError(
                f"Expected reset_mask to be {self.num_envs} bools, got {reset_mask.dtype} of shape "
                f"{reset_mask.shape}. Give one bool per environment, True for each to reset."
            )
        pending_commands = self._pending
        if pending_commands.updating or pending_commands.open or pending_commands.completed:
            self._check_idle()
        if not self._healthy or pending_commands.crashed or pending_commands.calls_must_end:
            self._check_alive(self._workers)
            self._env_index.require_healthy(slice(None), reset_mask)

    def _send_step(self, actions: Tree, reset_mask: np.ndarray | None, reset_done: bool) -> None:
        objects = self._buffers.write_actions(self.action_layout.batch(actions, self.num_envs), slice(None))
        if reset_mask is not None:
            self._buffers.reset_mask[:] = reset_mask
        excluded = None if self._fault_policy is None else self._fault_policy.excluded(reset_mask)
        pending_commands = self._pending
        if objects is None and excluded is None:
            pending_commands.updating = True
            pending_command = pending_commands.register(
                Op.STEP, self._workers, slot=self._buffers.free_slot(), reset_done=reset_done
            )
            pending_command.reset_mask = reset_mask
            self._backend.broadcast(
                Command(Op.STEP, pending_command.seq, pending_command.slot, reset_done, reset_mask is not None)
            )
            pending_commands.updating = False
            return
        self._send_to_all(Op.STEP, reset_done, reset_mask, excluded, _step_extras(objects, reset_mask))

    def _send_to_all(
        self,
        op: Op,
        reset_done: bool,
        reset_mask: np.ndarray | None,
        excluded: np.ndarray | None,
        extra_of: ExtraOf,
    ) -> None:
        """Sends a command for all environments, except the `excluded` ones, to their workers."""
        requested = np.arange(self.num_envs) if excluded is None else np.flatnonzero(~excluded)
        parts = self._env_index.split(requested)
        self._pending.updating = True
        pending_command = self._pending.register(
            op, [part[0] for part in parts], slot=self._buffers.free_slot(), reset_done=reset_done
        )
        pending_command.reset_mask = reset_mask
        commands: list[tuple[int, Command]] = []
        for worker, rows, positions in parts:
            command = Command(
                op,
                pending_command.seq,
                pending_command.slot,
                reset_done,
                reset_mask is not None,
                extra=extra_of(requested[positions]),
            )
            if excluded is not None:
                reset_rows = np.zeros(len(rows), bool) if reset_mask is None else reset_mask[requested[positions]]
                command.rows = np.where(reset_rows, ~rows, rows).tolist()
            commands.append((worker, command))
        if excluded is not None:
            pending_command.excluded = set(np.flatnonzero(excluded).tolist())
        self._send([pending_command], commands)
        self._pending.updating = False

    def wait(self, timeout: float | None = None) -> Transition:
        """Waits for the pending command to all environments and returns its transition.

        Args:
            timeout: seconds to wait (default: the pool's `step_timeout`).

        Raises:
            PendingError: no command to all environments is pending.
            StepTimeout: the command timed out; call `wait` again to continue waiting.
            WorkerError: environments failed; the results of the others are in the error's `transition`.
        """
        with self._closer.lock:
            return self._await_all(timeout)

    def _await_all(self, timeout: float | None) -> Transition:
        pending_command = self._pending.sync_command
        if pending_command is None or self._pending.updating:
            self._enter()
            pending_command = self._pending.sync_command
        if pending_command is None:
            raise PendingError("Expected a pending command to all environments, got none. Call step or reset first.")
        failures = self._gather(pending_command, timeout)
        failures = self._handle_failures([pending_command], failures)
        self._mark_completed(pending_command, failures)
        transition = self._transition_builder.full(
            pending_command.slot, pending_command.replies, pending_command.failed
        )
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    # -- some environments -------------------------------------------------------------------------

    def send_reset(
        self, ids: Ids, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None
    ) -> list[PendingCommand]:
        """Sends the reset of `ids` without waiting."""
        with self._closer.lock:
            return self._dispatch(Op.RESET, self._check_reset(ids, seeds), False, _reset_extras(seeds, options))

    def _check_reset(self, ids: Ids, seeds: Sequence[int | None] | None) -> np.ndarray:
        """Returns the checked ids of environments to reset, and records their seeds."""
        checked_ids = self._check_ids(ids)
        check_length("seeds", seeds, len(checked_ids))
        self.record_seeds(seeds, checked_ids.tolist())
        return checked_ids

    def send(self, ids: Ids, actions: Tree, *, reset_done: bool = False) -> None:
        """Sends the step of `ids` without waiting.

        Args:
            ids: the environments to step.
            actions: a tree of arrays `[len(ids), ...]`.
            reset_done: whether to reset, within this step, the rows in which an episode ends.

        Raises:
            PendingError: some of these environments are pending, or have failed and were not reset.
        """
        with self._closer.lock:
            checked_ids = self._check_ids(ids)
            self._env_index.require_healthy(checked_ids)
            leaves = self.action_layout.batch(actions, len(checked_ids))
            objects = self._buffers.write_actions(leaves, checked_ids)
            self._dispatch(Op.STEP, checked_ids, reset_done, _step_extras(objects))

    def recv(self, at_least: int | None = None, timeout: float | None = None) -> Transition:
        """Waits for pending environments and returns their transition.

        Args:
            at_least: return as soon as this many environments are ready, in the order in which they became ready. If
                None, wait for all, and return them in the order in which they were sent.
            timeout: seconds to wait (default: the pool's `step_timeout`). With `at_least`, those environments that are
                ready by then are returned, even if they are fewer.

        Raises:
            PendingError: no environment is pending.
            StepTimeout: no environment was ready in time; without `at_least`, not all were. No result is lost: call
                `recv` again.
            WorkerError: environments failed; the results of the others are in the error's `transition`.
        """
        if at_least is not None and at_least < 1:
            raise ValueError(f"Expected at_least to be 1 or more, got {at_least}.")
        with self._closer.lock:
            self._enter()
            num_pending = int(np.count_nonzero(self._env_index.busy))
            if not num_pending:
                raise PendingError(self._nothing_sent())
            num_wanted = num_pending if at_least is None else min(at_least, num_pending)
            self._await_some(num_wanted, at_least is not None, timeout)
            self._pending.updating = True
            completed, self._pending.completed = self._pending.completed, []
            return self._collect(completed, ordered=at_least is None)

    def _nothing_sent(self) -> str:
        pending_command = self._pending.sync_command
        if pending_command is None:
            return "Expected pending environments, got none. Call send first."
        what = "call" if pending_command.op == Op.INVOKE else f"{pending_command.op.name.lower()} of all"
        return f"Expected environments that were sent a command, got a pending {what}. Wait for it, or reset all."

    def _await_some(self, num_wanted: int, fewer: bool, timeout: float | None) -> None:
        """Waits until `num_wanted` environments are ready. With `fewer`, one ready environment suffices on timeout."""
        pending_commands = self._pending
        deadline = None if timeout is None else time.monotonic() + timeout
        limit = self.step_timeout if timeout is None or self._fault_policy is not None else None
        if limit is not None and not self._pending.runs_inline and pending_commands.overdue(limit):
            pending_commands.receive_arrived()
            self._check_timeouts(limit)
        while sum(len(c.ids) for c in pending_commands.completed if c.ids is not None) < num_wanted:
            if pending_commands.receive(self._next_deadline(deadline, limit)):
                continue
            if fewer and pending_commands.completed:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise pending_commands.timeout_error(timeout)
            self._check_timeouts(limit)

    # -- calls of some environments ----------------------------------------------------------------

    def send_call(self, name: str, arguments: Sequence[object], ids: Ids) -> None:
        """Calls the method `name` in each of `ids` without waiting; `recv_call` returns the results.

        Args:
            arguments: what `invoke` takes as values, one per environment.
        """
        with self._closer.lock:
            checked_ids = self._check_ids(ids)
            check_length("arguments", arguments, len(checked_ids))
            self._dispatch(
                Op.INVOKE, checked_ids, False, lambda places: ("call", name, [arguments[i] for i in places.tolist()])
            )

    def recv_call(self, timeout: float | None = None) -> dict[int, Any]:
        """Waits for the call of a worker, and returns its results, by the ids of the environments.

        Calls are returned in the order in which they were completed.

        Args:
            timeout: seconds to wait (default: the pool's `step_timeout`).

        Raises:
            PendingError: no call is pending.
            StepTimeout: none was complete in time. No result is lost: call `recv_call` again.
            WorkerError: environments of this worker failed. The other calls are still pending.
        """
        with self._closer.lock:
            self._enter()
            if not self._env_index.busy.any():
                raise PendingError(self._nothing_sent())
            self._await_some(1, False, timeout)
            self._pending.updating = True
            command = self._pending.completed.pop(0)
            failures = command.failures
            self._mark_completed(command, failures)
            self._pending.updating = False
        if failures:
            raise failures_to_error(failures)
        assert command.ids is not None
        [(_, reply)] = command.replies
        return dict(zip(command.ids.tolist(), reply.result, strict=True))

    def _collect(self, completed: Sequence[PendingCommand], ordered: bool) -> Transition:
        """Builds the transition of completed commands, with rows in the order of sending (`ordered`) or of completion.

        The caller has removed the commands from the completed ones. If this call is interrupted, their environments
        must be reset.
        """
        failures = self._handle_failures(completed, [failure for command in completed for failure in command.failures])
        transition = self._transition_builder.partial(completed, self._env_index.request_order if ordered else None)
        for pending_command in completed:
            self._mark_completed(pending_command, failures)
        self._pending.updating = False
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    def _dispatch(self, op: Op, ids: np.ndarray, reset_done: bool, extra_of: ExtraOf) -> list[PendingCommand]:
        """Sends a command for `ids` to their workers."""
        excluded = None if self._fault_policy is None else self._fault_policy.excluded(ids if op == Op.RESET else None)
        requested = None if excluded is None else np.flatnonzero(~excluded[ids])
        pending_commands: list[PendingCommand] = []
        commands: list[tuple[int, Command]] = []
        self._pending.updating = True
        for worker, rows, subset in self._env_index.split(ids if requested is None else ids[requested]):
            positions = subset if requested is None else requested[subset]
            pending_commands.append(self._pending.register(op, [worker], ids[positions], 0, reset_done))
            command_rows = None if len(rows) == self._env_index.counts[worker] else rows.tolist()
            command = Command(op, pending_commands[-1].seq, 0, reset_done, rows=command_rows, extra=extra_of(positions))
            commands.append((worker, command))
        self._send(pending_commands, commands)
        if self.step_timeout is not None:
            for worker, _ in commands:
                self._pending.start_timer(worker)
        if excluded is not None and excluded[ids].any():
            pending_commands.append(self._pending.complete_empty(op, ids[excluded[ids]], reset_done))
        self._env_index.busy[ids] = True
        self._pending.updating = False
        return pending_commands


def _reset_extras(seeds: Sequence[int | None] | None, options: ResetOptions | None) -> ExtraOf:
    """Returns the `extra` of a reset, for some of its environments."""

    def extra_of(positions: np.ndarray) -> object:
        if seeds is None and options is None:
            return None
        return None if seeds is None else [seeds[i] for i in positions.tolist()], options

    return extra_of


def _step_extras(objects: Mapping[int, LeafRows] | None, reset_mask: np.ndarray | None = None) -> ExtraOf:
    """Returns the `extra` of a step, for some of its environments."""

    def extra_of(positions: np.ndarray) -> object:
        if objects is None:
            return None
        stepped = (positions if reset_mask is None else positions[~reset_mask[positions]]).tolist()
        return {
            leaf: values[stepped] if isinstance(values, np.ndarray) else [values[i] for i in stepped]
            for leaf, values in objects.items()
        }

    return extra_of
