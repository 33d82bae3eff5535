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
from .crew import Crew, check_length
from .flights import Flight
from .layout import Tree
from .roster import Ids
from .transitions import Transition
from .worker import Command, Op


class Pool(Crew):
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
            adapt to them hear of them by their `lay_out`.

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
            flights = self.send_reset(ids, seeds, options)
            for flight in flights:
                self._gather(flight)
            self._flights.torn = True
            self._flights.landed = [flight for flight in self._flights.landed if flight not in flights]
            return self._collect(flights, ordered=True)

    def reset_async(self, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Ask for `reset` of all without waiting. What is under way is waited for first, and dropped."""
        check_length("seeds", seeds, self.num_envs)

        def extra_of(ids: np.ndarray) -> Any:
            return _of_reset(None if seeds is None else [seeds[i] for i in ids.tolist()], options)

        with self._turn:
            self.drain()
            self._check_alive(self._workers)
            self.remember_seeds(seeds, range(self.num_envs))
            out = None if self._recovery is None else self._recovery.left_out(slice(None))
            self._ask_all(Op.RESET, False, None, out, extra_of)

    def step(self, actions: Tree, *, begin: np.ndarray | None = None, eager: bool = False) -> Transition:
        """Step all environments.

        Args:
            actions: a tree of arrays `[n, ...]`, as the action space nests.
            begin: `[n]` bool, rows to begin anew instead; their actions are not used.
            eager: begin rows that end anew within this step.
        """
        with self._turn:
            self._start_step(actions, begin, eager)
            return self._await_all(None)

    def step_async(self, actions: Tree, *, begin: np.ndarray | None = None, eager: bool = False) -> None:
        """Ask for `step` without waiting."""
        with self._turn:
            self._start_step(actions, begin, eager)

    def _start_step(self, actions: Tree, begin: np.ndarray | None, eager: bool) -> None:
        flights = self._flights
        if flights.torn or flights.open or flights.landed:
            self._check_idle()
        if not self._well or flights.dead or flights.ending:
            self._check_alive(self._workers)
            self._roster.check_whole(slice(None), begin)
        objects = self._write_actions(actions, slice(None), self.num_envs)
        if begin is not None:
            self._arena.begin[:] = begin
        out = None if self._recovery is None else self._recovery.left_out(begin)
        if objects is None and out is None:
            flights.torn = True
            flight = flights.launch(Op.STEP, self._workers, slot=self._arena.lease(), eager=eager)
            flight.begin = begin
            self._backend.broadcast(Command(Op.STEP, flight.seq, flight.slot, eager, begin is not None))
            flights.torn = False
            return

        def extra_of(ids: np.ndarray) -> Any:
            stepped = (ids if begin is None else ids[~begin[ids]]).tolist()
            return None if objects is None else {leaf: [v[i] for i in stepped] for leaf, v in objects.items()}

        self._ask_all(Op.STEP, eager, begin, out, extra_of)

    def _ask_all(
        self,
        op: Op,
        eager: bool,
        begin: np.ndarray | None,
        out: np.ndarray | None,
        extra_of: Callable[[np.ndarray], Any],
    ) -> None:
        """Ask every worker for all its environments, but for those that are left `out`."""
        asked = np.arange(self.num_envs) if out is None else np.flatnonzero(~out)
        parts = self._roster.split(asked)
        self._flights.torn = True
        flight = self._flights.launch(op, [part[0] for part in parts], slot=self._arena.lease(), eager=eager)
        flight.begin = begin
        commands: list[tuple[int, Command]] = []
        for worker, rows, places in parts:
            command = Command(op, flight.seq, flight.slot, eager, begin is not None, extra=extra_of(asked[places]))
            if out is not None:
                anew = np.zeros(len(rows), bool) if begin is None else begin[asked[places]]
                command.rows = np.where(anew, ~rows, rows).tolist()
            commands.append((worker, command))
        if out is not None:
            flight.left_out = set(np.flatnonzero(out).tolist())
        self._send([flight], commands)
        self._flights.torn = False

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
        flight = self._flights.of_all
        if flight is None or self._flights.torn:
            self._enter()
            flight = self._flights.of_all
        if flight is None:
            raise PendingError("Nothing was asked of all environments; call step or reset first.")
        failures = self._gather(flight, timeout)
        failures = self._mend([flight], failures)
        self._settle(flight, failures)
        transition = self._assembly.whole(flight)
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    # -- some environments -------------------------------------------------------------------------

    def send_reset(
        self, ids: Ids, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> list[Flight]:
        """Begin an episode in `ids`, without waiting."""

        def extra_of(places: np.ndarray) -> Any:
            return _of_reset(None if seeds is None else [seeds[int(p)] for p in places], options)

        with self._turn:
            chosen = self._check_ids(ids)
            check_length("seeds", seeds, len(chosen))
            self.remember_seeds(seeds, chosen.tolist())
            return self._dispatch(Op.RESET, chosen, False, extra_of)

    def send(self, ids: Ids, actions: Tree, *, eager: bool = False) -> None:
        """Step `ids` without waiting; `actions` is a tree of arrays `[len(ids), ...]`.

        Raises:
            PendingError: some of them are under way, or failed and were not reset.
        """
        with self._turn:
            chosen = self._check_ids(ids)
            self._roster.check_whole(chosen)
            objects = self._write_actions(actions, chosen, len(chosen))

            def extra_of(places: np.ndarray) -> Any:
                return None if objects is None else {leaf: [v[int(p)] for p in places] for leaf, v in objects.items()}

            self._dispatch(Op.STEP, chosen, eager, extra_of)

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
            under_way = int(np.count_nonzero(self._roster.busy))
            if not under_way:
                raise PendingError(self._nothing_sent())
            self._await_some(under_way if at_least is None else min(at_least, under_way), at_least is not None, timeout)
            self._flights.torn = True
            landed, self._flights.landed = self._flights.landed, []
            return self._collect(landed, ordered=at_least is None)

    def _nothing_sent(self) -> str:
        flight = self._flights.of_all
        if flight is None:
            return "No environment is under way; send first."
        what = "call" if flight.op == Op.INVOKE else f"{flight.op.name.lower()} of all"
        return f"Expected environments that were sent a command, got a pending {what}. Wait for it, or reset all."

    def _await_some(self, want: int, fewer: bool, timeout: float | None) -> None:
        """Wait until `want` environments have landed; `fewer`, but one, are enough when the time is over."""
        flights = self._flights
        end = None if timeout is None else time.monotonic() + timeout
        limit = self.step_timeout if timeout is None or self._recovery is not None else None
        if limit is not None and not self._backend.in_turn and flights.overdue(limit):
            flights.receive_arrived()
            self._hurry(limit)
        while sum(len(f.ids) for f in flights.landed if f.ids is not None) < want:
            if flights.receive(self._patience(end, limit)):
                continue
            if fewer and flights.landed:
                return
            if end is not None and time.monotonic() >= end:
                raise flights.late(timeout)
            self._hurry(limit)

    def _patience(self, end: float | None, limit: float | None) -> float | None:
        """Seconds to wait for answers: until `end`, or until some worker takes longer than `limit`."""
        left = None if end is None else max(0.0, end - time.monotonic())
        if limit is None:
            return left
        if not self._backend.in_turn:
            limit = self._flights.patience(limit)
        return limit if left is None else min(left, limit)

    def _hurry(self, limit: float | None) -> None:
        """See to workers that have taken longer than `limit` over commands to some, and have not replied.

        Raises:
            StepTimeout: some have, and nothing can be done about it; they have the same time once more.
        """
        if limit is None or not (late := self._backend.stuck(self._flights.overdue(limit))):
            return
        if self._recovery is None or not self._recovery.end_late(late, limit):
            self._flights.renew(late)
            raise self._flights.late(limit, late)

    def _collect(self, landed: Sequence[Flight], ordered: bool) -> Transition:
        """The transition of flights that landed, by the order in which environments were asked or were ready.

        They are no longer among those that landed. If this is interrupted, their environments must be reset.
        """
        failures = self._mend(landed, [failure for flight in landed for failure in flight.failures])
        transition = self._assembly.rows(landed, self._roster.asked_at if ordered else None)
        for flight in landed:
            self._settle(flight, failures)
        self._flights.torn = False
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
            flights = self._flights
            for flight in list(flights.open.values()):
                self._gather(flight, timeout)
                if flight.ids is None:
                    self._settle(flight, flight.failures)
            for flight in flights.landed:
                self._settle(flight, flight.failures)
            flights.landed.clear()

    def settle(self, grace: float) -> None:
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
        self.replace_lost()

    def _dispatch(self, op: Op, ids: np.ndarray, eager: bool, extra_of: Callable[[np.ndarray], Any]) -> list[Flight]:
        """Ask each worker concerned for its own of `ids`; `extra_of` tells what goes with those at some places."""
        out = None if self._recovery is None else self._recovery.left_out(ids if op == Op.RESET else None)
        asked = None if out is None else np.flatnonzero(~out[ids])
        flights: list[Flight] = []
        commands: list[tuple[int, Command]] = []
        self._flights.torn = True
        for worker, rows, some in self._roster.split(ids if asked is None else ids[asked]):
            places = some if asked is None else asked[some]
            flights.append(self._flights.launch(op, [worker], ids[places], 0, eager))
            named = None if len(rows) == self._roster.counts[worker] else rows.tolist()
            command = Command(op, flights[-1].seq, 0, eager, rows=named, extra=extra_of(places))
            commands.append((worker, command))
        self._send(flights, commands)
        if self.step_timeout is not None:
            for worker, _ in commands:
                self._flights.watch(worker)
        if out is not None and out[ids].any():
            flights.append(self._flights.ask_nobody(op, ids[out[ids]], eager))
        self._roster.busy[ids] = True
        self._flights.torn = False
        return flights

    def _write_actions(self, actions: Tree, where: Any, count: int) -> dict[int, Any] | None:
        """Put actions into the arena; the opaque ones, by leaf, are returned to travel along."""
        objects: dict[int, Any] | None = None
        for index, values in enumerate(self.action_layout.batch(actions, count)):
            target = self._arena.actions[index]
            if target is None:
                objects = (objects or {}) | {index: values}
            else:
                target[where] = values
        return objects


def _of_reset(seeds: Sequence[int | None] | None, options: Mapping[str, Any] | None) -> Any:
    """What goes with a reset."""
    return None if seeds is None and options is None else (seeds, options)
