"""Drives workers: any environments, in any order, with or without waiting.

`send(ids, …)` and `recv(at_least, timeout)` are the base; `step` and `reset` of all environments are the common case
of it and take the short way: one command for everybody, results in a slot of the arena that nobody copies. Every
command has a number that its answer repeats, so a late answer is never taken for the next one. Knows no mode,
dialect or simulator. (Longer than files here should be: the waiting and the not waiting forms of each command are
read best beside each other.)
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..errors import ClosedError, Failure, PendingError, SpaceError, failures_to_error
from .assembly import Assembly
from .backends.cluster import RayOptions
from .backends.processes import StartMethod
from .flights import Flight, Flights
from .layout import Layout, Tree
from .opening import Agree, BackendName, check_cards, construction_error, make_backend
from .roster import Ids, Roster, name_ids
from .simulator import Simulator
from .transitions import Transition
from .worker import Card, Command, Op, Plan

InvokeKind = Literal["get", "set", "call", "render"]
_SLOTS = 4
_GRACE = 1.0  # seconds that those under way may take to come to an end and close, where nobody said otherwise


class Pool:
    """n environments over some workers.

    Args:
        makers: `(make, k)` a worker: makes its simulator, of k environments.
        backend: "serial" (this thread), "threads", "processes" or "ray" (actors of a cluster).
        infos: whether infos are wanted; without, they cost nothing.
        check_nan: whether a NaN in an observation or a reward is a failure of its environment.
        step_timeout: seconds that a reset, step or call may take; None for no limit.
        start_method, threads_per_worker, preload, pin_workers: see `Processes`.
        ray_options: which cluster, and where on it; for "ray".
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

    def __init__(
        self,
        makers: Sequence[tuple[Callable[[], Simulator], int]],
        backend: BackendName = "serial",
        *,
        infos: bool = True,
        check_nan: bool = False,
        step_timeout: float | None = None,
        start_method: StartMethod = "forkserver",
        threads_per_worker: int = 1,
        preload: Sequence[str] = (),
        pin_workers: bool = False,
        same_spaces: bool = True,
        same_actions: bool = True,
        agree: Agree | None = None,
        ray_options: RayOptions | None = None,
    ):
        if step_timeout is not None and not step_timeout > 0:
            raise ValueError(f"Expected step_timeout to be seconds above 0, or None, but {step_timeout!r} came.")
        self._roster = roster = Roster(k for _, k in makers)
        starts = roster.starts.tolist()
        plans = [Plan(i, starts[i], k, make, infos, check_nan) for i, (make, k) in enumerate(makers)]
        self.num_envs = roster.num_envs
        self.num_workers = len(plans)
        self.backend_name: BackendName = backend
        self.step_timeout = step_timeout
        self._workers = range(len(plans))
        self._well = False  # nothing is closed, dead or failed: nothing to check before a step
        self._closed = False
        how = start_method, threads_per_worker, preload, pin_workers, ray_options
        self._backend = make_backend(backend, plans, *how)
        self._flights = Flights(self._backend, roster.starts)
        self._finalizer = weakref.finalize(self, self._backend.shutdown, _GRACE)
        try:
            self._build(plans, same_spaces, same_actions, agree)
        except BaseException:
            self._closed = True
            self._finalizer()
            raise

    def __getstate__(self) -> Any:
        raise TypeError("Environments that run cannot be copied or pickled, as their workers cannot: make others.")

    def _build(self, plans: Sequence[Plan], same_spaces: bool, same_actions: bool, agree: Agree | None) -> None:
        flight = self._flights.expect(Op.CONSTRUCT, self._workers)
        failures = self._flights.gather(flight, None)
        if failures:
            raise construction_error(failures)
        cards: dict[int, Card] = {worker: report.result for worker, report in flight.reports}
        self.cards = [cards[worker] for worker in self._workers]
        self.card = cards[0]
        spaces = agree(self.cards) if agree else check_cards(cards, plans, same_spaces, same_actions)
        self.obs_layout, self.action_layout = map(Layout, spaces)
        self._arena = self._backend.attach(self.obs_layout, self.action_layout, self.num_envs, _SLOTS)
        self._finish(self._flights.expect(Op.ATTACH, self._workers), None)
        self._assembly = Assembly(self._arena, self.obs_layout)
        self._arena.seal()

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
        flights = self.send_reset(ids, seeds, options)
        for flight in flights:
            self._flights.gather(flight, self.step_timeout)
        self._flights.landed = [flight for flight in self._flights.landed if flight not in flights]
        return self._collect(flights, ordered=True)

    def reset_async(self, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Ask for `reset` of all without waiting. What is under way is waited for first, and dropped."""
        _check_length("seeds", seeds, self.num_envs)
        self.drain()
        self._check_alive(self._workers)
        starts = self._roster.starts
        flight = self._flights.launch(Op.RESET, self._workers, slot=self._arena.lease())
        commands: list[tuple[int, Command]] = []
        for worker in self._workers:
            part = None if seeds is None else list(seeds[starts[worker] : starts[worker + 1]])
            extra = None if part is None and options is None else (part, options)
            commands.append((worker, Command(Op.RESET, flight.seq, flight.slot, extra=extra)))
        self._send([flight], commands)

    def step(self, actions: Tree, *, begin: np.ndarray | None = None, eager: bool = False) -> Transition:
        """Step all environments.

        Args:
            actions: a tree of arrays `[n, ...]`, as the action space nests.
            begin: `[n]` bool, rows to begin anew instead; their actions are not used.
            eager: begin rows that end anew within this step.
        """
        self.step_async(actions, begin=begin, eager=eager)
        return self.wait()

    def step_async(self, actions: Tree, *, begin: np.ndarray | None = None, eager: bool = False) -> None:
        """Ask for `step` without waiting."""
        self._check_idle()
        if not self._well or self._flights.dead:
            self._check_alive(self._workers)
            self._roster.check_whole(slice(None), begin)
        objects = self._write_actions(actions, slice(None), self.num_envs)
        if begin is not None:
            self._arena.begin[:] = begin
        flight = self._flights.launch(Op.STEP, self._workers, slot=self._arena.lease(), eager=eager)
        command = Command(Op.STEP, flight.seq, flight.slot, eager, begin is not None)
        if objects is None:
            self._backend.broadcast(command)
            return
        parts = [slice(start, stop) for start, stop in itertools.pairwise(self._roster.starts)]
        extras = [{leaf: values[part] for leaf, values in objects.items()} for part in parts]
        self._send([flight], [(worker, replace(command, extra=extra)) for worker, extra in enumerate(extras)])

    def wait(self, timeout: float | None = None) -> Transition:
        """The transition of the command to all that is under way.

        Args:
            timeout: seconds to wait (default: the pool's `step_timeout`).

        Raises:
            PendingError: nothing of that kind is under way.
            StepTimeout: it is late; call again to go on waiting.
            WorkerError: environments failed; what the others yielded is in its `transition`.
        """
        flight = self._flights.of_all
        if flight is None:
            raise PendingError("Nothing was asked of all environments; call step or reset first.")
        failures = self._flights.gather(flight, self.step_timeout if timeout is None else timeout)
        self._settle(flight, failures)
        transition = self._assembly.whole(flight)
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    # -- some environments -------------------------------------------------------------------------

    @property
    def pending(self) -> np.ndarray:
        """`[m]` int64, the environments under way."""
        return np.flatnonzero(self._roster.busy) if self._flights.of_all is None else np.arange(self.num_envs)

    def send_reset(
        self, ids: Ids, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> list[Flight]:
        """Begin an episode in `ids`, without waiting."""
        chosen = self._check_ids(ids)
        _check_length("seeds", seeds, len(chosen))

        def extra_of(places: np.ndarray) -> Any:
            part = None if seeds is None else [seeds[int(p)] for p in places]
            return None if part is None and options is None else (part, options)

        return self._dispatch(Op.RESET, chosen, False, extra_of)

    def send(self, ids: Ids, actions: Tree, *, eager: bool = False) -> None:
        """Step `ids` without waiting; `actions` is a tree of arrays `[len(ids), ...]`.

        Raises:
            PendingError: some of them are under way, or failed and were not reset.
        """
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
        limit = self.step_timeout if timeout is None else timeout
        end = None if limit is None else time.monotonic() + limit
        under_way = np.count_nonzero(self._roster.busy)
        want = under_way if at_least is None else min(at_least, under_way)
        if not want:
            raise PendingError("No environment is under way; send first.")
        flights = self._flights
        while sum(len(f.ids) for f in flights.landed if f.ids is not None) < want:
            answers = self._backend.receive(None if end is None else max(0.0, end - time.monotonic()))
            flights.land(answers)
            if not answers:
                if at_least is None or not flights.landed:
                    raise flights.late(limit)
                break
        landed, flights.landed = flights.landed, []
        return self._collect(landed, ordered=at_least is None)

    def _collect(self, landed: Sequence[Flight], ordered: bool) -> Transition:
        """The transition of answered flights, by the order in which environments were asked or were ready."""
        failures = [failure for flight in landed for failure in flight.failures]
        for flight in landed:
            self._settle(flight, flight.failures)
        transition = self._assembly.rows(landed, self._roster.asked_at if ordered else None)
        if failures:
            raise failures_to_error(failures, transition)
        return transition

    def drain(self) -> None:
        """Wait for all that is under way and forget it.

        Raises:
            StepTimeout: some of it is still late.
        """
        flights = self._flights
        if flights.open:
            flights.call()
        for flight in list(flights.open.values()):
            flights.gather(flight, self.step_timeout)
            if flight.ids is None:
                self._settle(flight, flight.failures)
        for flight in flights.landed:
            self._settle(flight, flight.failures)
        flights.landed.clear()
        flights.open.clear()  # Ctrl-C may have struck between a last answer and the notes on it
        self._roster.busy[:] = False

    def _dispatch(self, op: Op, ids: np.ndarray, eager: bool, extra_of: Callable[[np.ndarray], Any]) -> list[Flight]:
        """Ask each worker concerned for its own of `ids`; `extra_of` tells what goes with those at some places."""
        parts = self._roster.split(ids)
        flights: list[Flight] = []
        commands: list[tuple[int, Command]] = []
        for worker, rows, places in parts:
            flights.append(self._flights.launch(op, [worker], ids[places], 0, eager))
            command = Command(op, flights[-1].seq, 0, eager, rows=rows.tolist(), extra=extra_of(places))
            commands.append((worker, command))
        self._send(flights, commands)
        self._roster.busy[ids] = True
        return flights

    def _send(self, flights: Sequence[Flight], commands: Sequence[tuple[int, Command]]) -> None:
        """Send the commands of new flights; where that cannot be, they are as if never asked."""
        try:
            self._backend.send(commands)
        except BaseException:
            for flight in flights:
                del self._flights.open[flight.seq]
            raise

    # -- reach into environments -------------------------------------------------------------------

    def invoke(
        self, kind: InvokeKind, name: str = "", values: Sequence[Any] | None = None, ids: Ids | None = None
    ) -> list[Any]:
        """Get, set, call or render in `ids` (None: all); `values` one an environment. Results in their order."""
        self.invoke_async(kind, name, values, ids)
        return self.invoke_wait()

    def invoke_async(
        self, kind: InvokeKind, name: str = "", values: Sequence[Any] | None = None, ids: Ids | None = None
    ) -> None:
        """Ask for `invoke` without waiting."""
        chosen = self._check_ids(np.arange(self.num_envs) if ids is None else ids)
        _check_length("values", values, len(chosen))
        self._check_idle()
        parts = {worker: (rows, places) for worker, rows, places in self._roster.split(chosen)}
        flight = self._flights.launch(Op.INVOKE, parts)
        self._asked = len(chosen), {worker: places for worker, (_, places) in parts.items()}
        commands: list[tuple[int, Command]] = []
        for worker, (rows, places) in parts.items():
            given = [None] * len(rows) if values is None else [values[int(p)] for p in places]
            commands.append((worker, Command(Op.INVOKE, flight.seq, rows=rows.tolist(), extra=(kind, name, given))))
        self._send([flight], commands)

    def invoke_wait(self, timeout: float | None = None) -> list[Any]:
        """The results of `invoke_async`."""
        flight = self._flights.of_all
        if flight is None or flight.op != Op.INVOKE:
            raise PendingError("Nothing was called; call invoke_async first.")
        self._finish(flight, self.step_timeout if timeout is None else timeout)
        count, places = self._asked
        results: list[Any] = [None] * count
        for worker, report in flight.reports:
            for place, result in zip(places[worker].tolist(), report.result, strict=True):
                results[place] = result
        return results

    # -- faults ------------------------------------------------------------------------------------

    def replace_lost(self) -> np.ndarray:
        """Have others take the places of all workers that are gone, at once.

        Returns:
            `[m]` int64, their environments, which must be reset before they step.

        Raises:
            WorkerError: environments cannot be made anew; those workers are as gone as they were.
        """
        workers = sorted(self._flights.dead)
        lost = np.array(self._flights.ids_of(workers), np.int64)
        self._roster.failed[lost] = True
        self._well = False
        self._flights.dead.clear()
        for worker in workers:
            self._backend.replace(worker)
        failures = self._flights.gather(self._flights.expect(Op.CONSTRUCT, workers), None)
        if not failures:
            for worker in workers:
                self._backend.rejoin(worker)
            failures = self._flights.gather(self._flights.expect(Op.ATTACH, workers), None)
        if failures:
            for worker in workers:
                self._backend.end(worker)
                self._flights.dead.setdefault(worker, failures[0])
            raise failures_to_error(failures)
        return lost

    # -- the end -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self, timeout: float | None = None) -> None:
        """Close every environment and end every worker; harmless in any state, and twice.

        Args:
            timeout: seconds that environments may take to close (default: the step timeout, or 10), after which
                their processes are ended by force.

        Raises:
            WorkerError: what environments raised while closing; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed, self._well = True, False
        grace = timeout if timeout is not None else 10.0 if self.step_timeout is None else self.step_timeout
        try:
            failures, late = self._close_envs(grace)
        except BaseException:  # Ctrl-C
            self._finalizer()
            raise
        stuck = self._backend.shutdown(min(grace, _GRACE) if late else grace)
        self._finalizer.detach()
        self._flights.open.clear()
        self._flights.landed.clear()
        self._roster.busy[:] = False
        told = {i for failure in failures for i in failure.env_ids}
        if silent := [worker for worker in stuck if not told.issuperset(self._flights.ids_of([worker]))]:
            failures.append(Failure(self._flights.ids_of(silent), "close", "its thread cannot be ended", kind="late"))
        if failures:
            raise failures_to_error(failures)

    def _close_envs(self, grace: float) -> tuple[list[Failure], bool]:
        """Ask every living worker that is not under way to close: what goes wrong, and whether some are late."""
        busy = {worker for flight in self._flights.open.values() for worker in flight.waiting}
        workers = set(self._workers) - busy - set(self._flights.dead)
        flight = self._flights.launch(Op.CLOSE, workers)
        self._backend.send([(worker, Command(Op.CLOSE, flight.seq)) for worker in sorted(workers)])
        try:
            return self._flights.gather(flight, grace), bool(busy)
        except TimeoutError:
            ids = self._flights.ids_of(flight.waiting)
            text = f"not closed within {grace:g} s, so ended by force where that can be done"
            return [*flight.failures, Failure(ids, "close", text, kind="late")], True

    # -- inside ------------------------------------------------------------------------------------

    def _finish(self, flight: Flight, timeout: float | None) -> None:
        failures = self._flights.gather(flight, timeout)
        if failures:
            raise failures_to_error(failures)

    def _settle(self, flight: Flight, failures: Sequence[Failure]) -> None:
        """Note what an answered flight leaves behind: who is idle, who failed."""
        if flight.ids is not None:
            self._roster.busy[flight.ids] = False
        failed = self._roster.failed
        if flight.op == Op.RESET:
            failed[slice(None) if flight.ids is None else flight.ids] = False
        elif flight.op == Op.STEP and flight.ids is None and not self._well:
            failed &= ~self._arena.slots[flight.slot].begun
        elif not failures:
            return
        if flight.op in (Op.STEP, Op.RESET):
            self._roster.note_failures(failures)
        self._well = not (self._closed or self._flights.dead or failed.any())

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

    def _check_alive(self, workers: Sequence[int] | Mapping[int, Any]) -> None:
        if self._closed:
            raise ClosedError("This object is closed; make a new one.")
        dead = self._flights.dead
        if dead and (gone := [dead[w] for w in workers if w in dead]):
            raise failures_to_error(gone)

    def _check_idle(self) -> None:
        if self._flights.open or self._flights.landed:
            raise PendingError(f"{self._name_pending()} still under way; wait for them first.")

    def _check_ids(self, ids: Ids) -> np.ndarray:
        if self._closed:
            raise ClosedError("This object is closed; make a new one.")
        if self._flights.of_all is not None:
            raise PendingError(f"{self._name_pending()} still under way; receive them first.")
        chosen = self._roster.check(ids)
        if self._flights.dead:
            self._check_alive(self._roster.owners(chosen))
        return chosen

    def _name_pending(self) -> str:
        return f"{name_ids(self.pending)} are"


def _check_length(name: str, values: Sequence[Any] | None, count: int) -> None:
    if values is not None and len(values) != count:
        raise SpaceError(f"Expected {count} {name}, one an environment asked, but {len(values)} came.")
