"""Drives workers: any environments, in any order, with or without waiting.

`send(ids, …)` and `recv(at_least, timeout)` are the base; `step` and `reset` of all environments are the common case
of it and take the short way: one command for everybody, results in a slot of the arena that nobody copies. Every
command has a number that its answer repeats, so a late answer is never taken for the next one. Knows no mode,
dialect or simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import PendingError, StepTimeout, failures_to_error
from .env_index import Ids
from .pending import PendingCommand
from .pool_lifecycle import PoolLifecycle, check_length
from .space_layout import Tree
from .transition import Transition
from .worker import Command, Op


class Pool(PoolLifecycle):
    """n environments over some workers.

    Args:
        makers: `(make, k)` a worker: makes its simulator, of k environments.
        backend: "serial" (this thread), "threads", "processes" or "ray" (actors of a cluster).
        infos: whether infos are wanted; without, they cost nothing. "dicts": as the dicts they are, never as columns,
            so that numbers keep their types.
        check_nan: whether a NaN in an observation or a reward is a failure of its environment.
        step_timeout: seconds that a reset, step or call may take; None for no limit.
        on_failure: "raise" reports environments that fail. "restart" ends their episodes as truncated, with `failed`
            in the info, and makes them anew, workers that died or are late included. "mask" ends their episodes
            likewise and leaves them out from then on, see `alive`.
        restarts_per_hour: how many failures are made good within an hour; those beyond are reported.
        start_method, threads_per_worker, preload, pin_workers: see `Processes`.
        ray_options: which cluster, and where on it; for "ray".
        first: what the first environment is called in warnings and complaints, where these are some of more.
        same_spaces, same_actions: whether observation and action spaces must be equal, or only lie in memory alike.
        agree: says, instead, which spaces the arena is laid out for where workers' own differ; simulators that can
            adapt to them hear of them by their `set_spaces`.

    Attributes:
        num_envs: n.
        card: what the first worker says of itself: spaces, metadata, render mode, spec.
        cards: what each of them says.

    Raises:
        WorkerError: where environments cannot be made; nothing is left running.
        SpaceError: where all that is wrong are spaces that differ.
    """

    # -- all environments --------------------------------------------------------------------------

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
        ids: Ids | None = None,
    ) -> Transition:
        """Begin an episode in all environments, or in `ids` alone.

        Args:
            seeds: one an environment asked, in their order.
            options: for every simulator's reset.
            ids: whom; the transition has their rows, in this order.
        """
        if ids is None:
            self.reset_async(seeds, options)
            return self.wait()
        with self._turn:
            pending_commands = self.send_reset(ids, seeds, options)
            for pending_command in pending_commands:
                self._gather(pending_command)
            self._pending.torn = True
            self._pending.completed = [
                pending_command
                for pending_command in self._pending.completed
                if pending_command not in pending_commands
            ]
            return self._collect(pending_commands, ordered=True)

    def reset_async(self, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Ask for `reset` of all without waiting. What is under way is waited for first, and dropped."""
        check_length("seeds", seeds, self.num_envs)

        def extra_of(ids: np.ndarray) -> Any:
            return _reset_payload(None if seeds is None else [seeds[i] for i in ids.tolist()], options)

        with self._turn:
            self.drain()
            self._check_alive(self._workers)
            self.record_seeds(seeds, range(self.num_envs))
            excluded = None if self._fault_policy is None else self._fault_policy.excluded(slice(None))
            self._send_to_all(Op.RESET, False, None, excluded, extra_of)

    def step(self, actions: Tree, *, reset_mask: np.ndarray | None = None, reset_done: bool = False) -> Transition:
        """Step all environments.

        Args:
            actions: a tree of arrays `[n, ...]`, as the action space nests.
            reset_mask: `[n]` bool, rows to begin anew instead; their actions are not used.
            reset_done: begin rows that end anew within this step.
        """
        with self._turn:
            self._start_step(actions, reset_mask, reset_done)
            return self._await_all(None)

    def step_async(self, actions: Tree, *, reset_mask: np.ndarray | None = None, reset_done: bool = False) -> None:
        """Ask for `step` without waiting."""
        with self._turn:
            self._start_step(actions, reset_mask, reset_done)

    def _start_step(self, actions: Tree, reset_mask: np.ndarray | None, reset_done: bool) -> None:
        pending_commands = self._pending
        if pending_commands.torn or pending_commands.open or pending_commands.completed:
            self._check_idle()
        if not self._healthy or pending_commands.crashed or pending_commands.ending:
            self._check_alive(self._workers)
            self._env_index.require_healthy(slice(None), reset_mask)
        objects = self._write_actions(actions, slice(None), self.num_envs)
        if reset_mask is not None:
            self._buffers.reset_mask[:] = reset_mask
        excluded = None if self._fault_policy is None else self._fault_policy.excluded(reset_mask)
        if objects is None and excluded is None:
            pending_commands.torn = True
            pending_command = pending_commands.register(
                Op.STEP, self._workers, slot=self._buffers.lease(), reset_done=reset_done
            )
            pending_command.reset_mask = reset_mask
            self._backend.broadcast(
                Command(Op.STEP, pending_command.seq, pending_command.slot, reset_done, reset_mask is not None)
            )
            pending_commands.torn = False
            return

        def extra_of(ids: np.ndarray) -> Any:
            stepped = (ids if reset_mask is None else ids[~reset_mask[ids]]).tolist()
            return None if objects is None else {leaf: [v[i] for i in stepped] for leaf, v in objects.items()}

        self._send_to_all(Op.STEP, reset_done, reset_mask, excluded, extra_of)

    def _send_to_all(
        self,
        op: Op,
        reset_done: bool,
        reset_mask: np.ndarray | None,
        excluded: np.ndarray | None,
        extra_of: Callable[[np.ndarray], Any],
    ) -> None:
        """Ask every worker for all its environments, but for those that are left `excluded`."""
        requested = np.arange(self.num_envs) if excluded is None else np.flatnonzero(~excluded)
        parts = self._env_index.split(requested)
        self._pending.torn = True
        pending_command = self._pending.register(
            op, [part[0] for part in parts], slot=self._buffers.lease(), reset_done=reset_done
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
        self._pending.torn = False

    def wait(self, timeout: float | None = None) -> Transition:
        """The transition of the command to all that is under way.

        Args:
            timeout: seconds to wait (default: the pool's `step_timeout`).

        Raises:
            PendingError: nothing of that kind is under way.
            StepTimeout: it is late; call again to go on waiting.
            WorkerError: environments failed; what the others yielded is in its `transition`.
        """
        with self._turn:
            return self._await_all(timeout)

    def _await_all(self, timeout: float | None) -> Transition:
        pending_command = self._pending.sync_command
        if pending_command is None or self._pending.torn:
            self._enter()
            pending_command = self._pending.sync_command
        if pending_command is None:
            raise PendingError("Nothing was asked of all environments; call step or reset first.")
        failures = self._gather(pending_command, timeout)
        failures = self._handle_failures([pending_command], failures)
        self._mark_completed(pending_command, failures)
        transition = self._transition_builder.full(pending_command)
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    # -- some environments -------------------------------------------------------------------------

    def send_reset(
        self, ids: Ids, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> list[PendingCommand]:
        """Begin an episode in `ids`, without waiting."""

        def extra_of(positions: np.ndarray) -> Any:
            return _reset_payload(None if seeds is None else [seeds[int(p)] for p in positions], options)

        with self._turn:
            checked_ids = self._check_ids(ids)
            check_length("seeds", seeds, len(checked_ids))
            self.record_seeds(seeds, checked_ids.tolist())
            return self._dispatch(Op.RESET, checked_ids, False, extra_of)

    def send(self, ids: Ids, actions: Tree, *, reset_done: bool = False) -> None:
        """Step `ids` without waiting; `actions` is a tree of arrays `[len(ids), ...]`.

        Raises:
            PendingError: some of them are under way, or failed and were not reset.
        """
        with self._turn:
            checked_ids = self._check_ids(ids)
            self._env_index.require_healthy(checked_ids)
            objects = self._write_actions(actions, checked_ids, len(checked_ids))

            def extra_of(positions: np.ndarray) -> Any:
                return (
                    None if objects is None else {leaf: [v[int(p)] for p in positions] for leaf, v in objects.items()}
                )

            self._dispatch(Op.STEP, checked_ids, reset_done, extra_of)

    def recv(self, at_least: int | None = None, timeout: float | None = None) -> Transition:
        """The environments that are ready: all that are under way, in the order in which they were asked, or, as soon
        as `at_least` of them are, those, in the order in which they were ready.

        With `at_least`, those that are ready after `timeout` seconds (default: the pool's) are enough.

        Raises:
            PendingError: nothing is under way.
            StepTimeout: none was ready in time, or not all where all are wanted; nothing is lost, call again.
            WorkerError: environments failed; what the others yielded is in its `transition`.
        """
        if at_least is not None and at_least < 1:
            raise ValueError(f"Expected at_least to be 1 or more, but {at_least} came.")
        with self._turn:
            self._enter()
            num_pending = int(np.count_nonzero(self._env_index.busy))
            if not num_pending:
                raise PendingError(self._nothing_sent())
            self._await_some(
                num_pending if at_least is None else min(at_least, num_pending), at_least is not None, timeout
            )
            self._pending.torn = True
            completed, self._pending.completed = self._pending.completed, []
            return self._collect(completed, ordered=at_least is None)

    def _nothing_sent(self) -> str:
        pending_command = self._pending.sync_command
        if pending_command is None:
            return "No environment is under way; send first."
        what = "call" if pending_command.op == Op.INVOKE else f"{pending_command.op.name.lower()} of all"
        return f"Expected environments that were sent a command, got a pending {what}. Wait for it, or reset all."

    def _await_some(self, num_wanted: int, fewer: bool, timeout: float | None) -> None:
        """Wait until `num_wanted` environments have landed; `fewer`, but one, are enough when the time is over."""
        pending_commands = self._pending
        deadline = None if timeout is None else time.monotonic() + timeout
        limit = self.step_timeout if timeout is None or self._fault_policy is not None else None
        if limit is not None and not self._backend.runs_inline and pending_commands.overdue(limit):
            pending_commands.receive_arrived()
            self._check_timeouts(limit)
        while sum(len(f.ids) for f in pending_commands.completed if f.ids is not None) < num_wanted:
            if pending_commands.receive(self._next_deadline(deadline, limit)):
                continue
            if fewer and pending_commands.completed:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise pending_commands.timeout_error(timeout)
            self._check_timeouts(limit)

    def _next_deadline(self, deadline: float | None, limit: float | None) -> float | None:
        """Seconds to wait for answers: until `deadline`, or until some worker takes longer than `limit`."""
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if limit is None:
            return remaining
        if not self._backend.runs_inline:
            limit = self._pending.time_until_overdue(limit)
        return limit if remaining is None else min(remaining, limit)

    def _check_timeouts(self, limit: float | None) -> None:
        """See to workers that have taken longer than `limit` over commands to some, and have not replied.

        Raises:
            StepTimeout: some have, and nothing can be done about it; they have the same time once more.
        """
        if limit is None or not (overdue := self._backend.timed_out(self._pending.overdue(limit))):
            return
        if self._fault_policy is None or not self._fault_policy.kill_overdue(overdue, limit):
            self._pending.restart_timers(overdue)
            raise self._pending.timeout_error(limit, overdue)

    def _collect(self, completed: Sequence[PendingCommand], ordered: bool) -> Transition:
        """The transition of flights that landed, by the order in which environments were asked or were ready.

        They are no longer among those that landed. If this is interrupted, their environments must be reset.
        """
        failures = self._handle_failures(
            completed, [failure for pending_command in completed for failure in pending_command.failures]
        )
        transition = self._transition_builder.partial(completed, self._env_index.request_order if ordered else None)
        for pending_command in completed:
            self._mark_completed(pending_command, failures)
        self._pending.torn = False
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    def drain(self, timeout: float | None = None) -> None:
        """Wait for all that is under way and forget it.

        Args:
            timeout: seconds to wait for each command (default: the pool's `step_timeout`).

        Raises:
            StepTimeout: some of it is still late.
        """
        with self._turn:
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
        """Be done with whatever an interrupted call left behind.

        Who is under way has `grace` seconds to come to an end. Then others take the places of workers that have not,
        and of those that are gone; their environments must be reset before they step.

        Raises:
            StepTimeout: a thread is at it, which cannot be ended.
            WorkerError: environments cannot be made anew; those workers are as gone as they were.
        """
        try:
            self.drain(grace)
        except StepTimeout:
            self.cancel(np.arange(self.num_envs))
            self.drain()
        self.respawn_crashed()

    def _dispatch(
        self, op: Op, ids: np.ndarray, reset_done: bool, extra_of: Callable[[np.ndarray], Any]
    ) -> list[PendingCommand]:
        """Ask each worker concerned for its own of `ids`; `extra_of` tells what goes with those at some places."""
        excluded = None if self._fault_policy is None else self._fault_policy.excluded(ids if op == Op.RESET else None)
        requested = None if excluded is None else np.flatnonzero(~excluded[ids])
        pending_commands: list[PendingCommand] = []
        commands: list[tuple[int, Command]] = []
        self._pending.torn = True
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
        self._pending.torn = False
        return pending_commands

    def _write_actions(self, actions: Tree, rows: Any, count: int) -> dict[int, Any] | None:
        """Put actions into the arena; the opaque ones, by leaf, are returned to travel along."""
        objects: dict[int, Any] | None = None
        for index, values in enumerate(self.action_layout.batch(actions, count)):
            target = self._buffers.actions[index]
            if target is None:
                objects = (objects or {}) | {index: values}
            else:
                target[rows] = values
        return objects


def _reset_payload(seeds: Sequence[int | None] | None, options: Mapping[str, Any] | None) -> Any:
    """What goes with a reset."""
    return None if seeds is None and options is None else (seeds, options)
