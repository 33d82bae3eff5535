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
    ShipError,
    SpaceError,
    StateError,
    StepTimeout,
    failures_to_error,
)
from ..seeding import seed_for
from .assembly import Assembly
from .backends.cluster import RayOptions
from .backends.processes import StartMethod
from .closing import Closing
from .flights import CLOSED, Flight, Flights
from .layout import Layout
from .opening import Agree, BackendName, check_cards, construction_error, make_backend
from .recovery import OnFailure, Recovery, Replacements, check_recovery
from .roster import Ids, Roster
from .simulator import Simulator
from .worker import Card, Command, Op, Plan

InvokeKind = Literal["get", "set", "call", "render", "get_state", "set_state"]
_SLOTS = 4


class Crew:
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
        agree: Agree | None = None,
        ray_options: RayOptions | None = None,
        first: int = 0,
    ):
        if step_timeout is not None and not step_timeout > 0:
            raise ValueError(f"Expected step_timeout to be seconds above 0, or None, but {step_timeout!r} came.")
        check_recovery(on_failure, restarts_per_hour)
        self._roster = roster = Roster((k for _, k in makers), first)
        starts = roster.starts.tolist()
        root = secrets.randbits(64)
        plans = [Plan(i, starts[i], k, make, infos, check_nan, seed_for(root, i)) for i, (make, k) in enumerate(makers)]
        self.num_envs = roster.num_envs
        self.num_workers = len(plans)
        self.backend_name: BackendName = backend
        self.step_timeout = step_timeout
        self.on_failure: OnFailure = on_failure
        self._workers = range(len(plans))
        self._well = False  # nothing is closed, dead or failed: nothing to check before a step
        how = start_method, threads_per_worker, preload, pin_workers, ray_options
        self._backend = make_backend(backend, plans, *how)
        self._flights = Flights(self._backend, roster.starts)
        self._closing = Closing(self, self._backend, self._flights)
        self._turn = self._closing.turn
        try:
            self._build(plans, same_spaces, same_actions, agree)
            self._recovery = self._make_recovery(restarts_per_hour, bool(infos))
        except BaseException:
            self._closing.abort()
            raise

    def __getstate__(self) -> Any:
        raise TypeError("Environments that run cannot be copied or pickled, as their workers cannot: make others.")

    def _build(self, plans: Sequence[Plan], same_spaces: bool, same_actions: bool, agree: Agree | None) -> None:
        flight = self._flights.expect(Op.CONSTRUCT, self._workers)
        failures = self._flights.gather(flight, None)
        if failures:
            raise construction_error(failures, self._roster.first)
        cards: dict[int, Card] = {worker: report.result for worker, report in flight.reports}
        self.cards = [cards[worker] for worker in self._workers]
        self.card = cards[0]
        spaces = agree(self.cards) if agree else check_cards(cards, plans, same_spaces, same_actions)
        self.obs_layout, self.action_layout = map(Layout, spaces)
        slots = _SLOTS if self.on_failure == "raise" else _SLOTS + 1
        self._arena = self._backend.attach(self.obs_layout, self.action_layout, self.num_envs, slots)
        self._finish(self._flights.expect(Op.ATTACH, self._workers), None)
        self._assembly = Assembly(self._arena, self.obs_layout)
        self._replacements = Replacements(self._backend, self._flights, self.cards)
        self._arena.seal()

    def _make_recovery(self, per_hour: int, infos: bool) -> Recovery | None:
        if self.on_failure == "raise":
            return None
        parts = self._backend, self._flights, self._roster, self._arena, self.obs_layout, self._assembly
        return Recovery(self.on_failure, per_hour, *parts, self._replacements, self._gather, infos)

    @property
    def pending(self) -> np.ndarray:
        """`[m]` int64, the environments under way."""
        torn = self._flights.torn and not self._closing.closed
        if torn and self._turn.acquire(blocking=False):  # else a call in another thread is at work
            try:
                self._resume()
            finally:
                self._turn.release()
        return np.flatnonzero(self._roster.busy) if self._flights.of_all is None else np.arange(self.num_envs)

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
            chosen = self._check_ids(np.arange(self.num_envs) if ids is None else ids)
            check_length("values", values, len(chosen))
            there = np.flatnonzero(self.alive[chosen])
            parts = {worker: (rows, there[places]) for worker, rows, places in self._roster.split(chosen[there])}
            self._asked = len(chosen), {worker: places for worker, (_, places) in parts.items()}
            self._flights.torn = True
            flight = self._flights.launch(Op.INVOKE, parts)
            commands: list[tuple[int, Command]] = []
            for worker, (rows, places) in parts.items():
                given = [None] * len(rows) if values is None else [values[int(p)] for p in places]
                extra = (kind, name, given)
                commands.append((worker, Command(Op.INVOKE, flight.seq, rows=rows.tolist(), extra=extra)))
            self._send([flight], commands)
            self._flights.torn = False

    def invoke_wait(self, timeout: float | None = None) -> list[Any]:
        """The results of `invoke_async`.

        Raises:
            WorkerError: environments failed; what the others gave is in its `results`.
        """
        with self._turn:
            self._enter()
            flight = self._flights.of_all
            if flight is None or flight.op != Op.INVOKE:
                raise PendingError("Nothing was called; call invoke_async first.")
            failures = self._flights.gather(flight, self.step_timeout if timeout is None else timeout)
        count, places = self._asked
        results: list[Any] = [None] * count
        for worker, report in flight.reports:
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
            flight = self._flights.of_all
            if flight is not None:
                self._settle(flight, self._gather(flight, timeout))

    # -- faults ------------------------------------------------------------------------------------

    @property
    def alive(self) -> np.ndarray:
        """`[n]` bool: those that were not left out for good, as `on_failure="mask"` does with those that fail."""
        return np.ones(self.num_envs, bool) if self._recovery is None else self._recovery.alive.copy()

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
            self._flights.receive_arrived()
            return self._cancel(set(self._roster.known(ids).tolist()))

    def _cancel(self, wanted: set[int]) -> np.ndarray:
        flights = self._flights
        waited = {worker for flight in flights.open.values() for worker in flight.waiting}
        workers = sorted(worker for worker in waited if wanted.intersection(flights.ids_of([worker])))
        flights.torn = True
        if late := [worker for worker in workers if not self._end(worker)]:
            raise flights.late(self.step_timeout or 0.0, late)
        lost = np.array(flights.ids_of(workers), np.int64)
        for worker in workers:
            for flight in [f for f in flights.open.values() if worker in f.waiting and f.ids is not None]:
                self._roster.busy[flight.ids] = False
            flights.give_up(worker)
        flights.torn = False
        self._replace(workers, lost)
        return lost

    def _end(self, worker: int) -> bool:
        """End a worker by force, which is gone then, whatever breaks in; whether that could be done."""
        dead = self._flights.dead
        ids = self._flights.ids_of([worker])
        dead.setdefault(worker, Failure(ids, "step", "cancelled", worker=worker, kind="crashed"))
        ended = self._backend.end(worker)
        if not ended:
            del dead[worker]
        return ended

    def replace_lost(self) -> np.ndarray:
        """Have others take the places of all workers that are gone, at once.

        Returns:
            `[m]` int64, their environments, which must be reset before they step.

        Raises:
            WorkerError: environments cannot be made anew; those workers are as gone as they were.
        """
        with self._turn:
            self._enter()
            workers = sorted(self._flights.dead)
            lost = np.array(self._flights.ids_of(workers), np.int64)
            if workers:
                self._replace(workers, lost)
            return lost

    def _replace(self, workers: Sequence[int], ids: np.ndarray) -> None:
        self._roster.failed[ids] = True
        self._well = False
        if failures := self._replacements.replace(workers):
            raise failures_to_error(failures)

    def remember_seeds(self, seeds: Sequence[int | None] | None, ids: Iterable[int]) -> None:
        """Note seeds that `ids` are given, by a `reset` or another way: what restarts go on from."""
        if self._recovery is not None and seeds is not None:
            self._recovery.seeded(ids, seeds)

    # -- states ------------------------------------------------------------------------------------

    plain_state = True  # what `get_state` gives is written down as it is where a pool hangs on something else

    def get_state(self, ids: Ids | None = None) -> list[dict[str, Any]]:
        """All that going on from here takes, of all environments or of `ids`: plain data each, in their order.

        Raises:
            PendingError: some are under way, or failed and were not reset.
            WorkerError: with a `StateError` as its cause: an environment's state cannot be had; says which and why.
        """
        self._roster.check_whole(slice(None) if ids is None else ids)
        states = self.invoke("get_state", ids=ids)
        if self._recovery is not None:
            for env_id, state in zip(self._roster.numbers(ids), states, strict=True):
                state |= self._recovery.seed_of(env_id)
        return states

    def set_state(self, states: Sequence[Any], ids: Ids | None = None, *, allow: Iterable[type | str] = ()) -> None:
        """Go on from `states`, one an environment asked, in their order; `allow`: see `vecrl.states.put`.

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
        names = [one if isinstance(one, str) else f"{one.__module__}.{one.__qualname__}" for one in allow]
        self.invoke("set_state", "", [(state, names) for state in states], ids)
        if self._recovery is not None:
            for env_id, state in zip(self._roster.numbers(ids), states, strict=True):
                self._recovery.restored(env_id, state)
        self._roster.failed[slice(None) if ids is None else ids] = False

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
        self._roster.busy[:] = False
        if self._recovery is not None:  # one that died leaves nothing to close
            failures = [failure for failure in failures if failure.kind != "crashed"]
        if failures:
            raise failures_to_error(failures)

    # -- inside ------------------------------------------------------------------------------------

    def _send(self, flights: Sequence[Flight], commands: Sequence[tuple[int, Command]]) -> None:
        """Send the commands of new flights; where they cannot be sent, they are as if never asked."""
        try:
            self._backend.send(commands)
        except ShipError:
            for flight in flights:
                del self._flights.open[flight.seq]
            self._flights.torn = False
            raise

    def _gather(self, flight: Flight, timeout: float | None = None) -> list[Failure]:
        """Wait for a flight: its failures, those included that are late, where they can be ended."""
        limit = self.step_timeout if timeout is None else timeout
        while True:
            try:
                return self._flights.gather(flight, limit)
            except StepTimeout:
                if timeout is not None or limit is None or self._recovery is None:
                    raise
                if not self._recovery.end_late(self._backend.stuck(set(flight.waiting)), limit):
                    raise

    def _mend(self, flights: Sequence[Flight], failures: list[Failure]) -> list[Failure]:
        """What remains of the failures of flights that were answered."""
        recovery = self._recovery
        if recovery is None:
            return failures
        if failures or any(flight.left_out for flight in flights):
            failures = recovery.mend(flights)
            self._well = False
        for flight in flights:
            if flight.op in (Op.RESET, Op.STEP):
                recovery.saw(flight)
        return failures

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
        self._well = not (self._closing.closed or self._flights.dead or failed.any())

    def _enter(self) -> None:
        """Checks that this is open, and restores the notes of a call that was interrupted."""
        if self._closing.closed:
            raise ClosedError(CLOSED)
        if self._flights.torn:
            self._resume()

    def _resume(self) -> None:
        """Restores which environments are pending. Those that lost a transition must be reset before they step."""
        flights, roster = self._flights, self._roster
        if self._recovery is not None:
            self._recovery.forget()
        flights.resume(self.step_timeout is not None)
        pending = np.zeros(self.num_envs, bool)
        for flight in [*flights.open.values(), *flights.landed]:
            if flight.ids is not None:
                pending[flight.ids] = True
        roster.failed |= roster.busy & ~pending
        roster.busy[:] = pending
        self._well = False
        flights.torn = False

    def _check_alive(self, workers: Sequence[int] | Mapping[int, Any]) -> None:
        if self._closing.closed:
            raise ClosedError(CLOSED)
        dead = self._flights.dead
        gone = [dead[w] for w in workers if w in dead] if dead else []
        if gone and self._recovery is not None:
            alive, ids_of = self._recovery.alive, self._flights.ids_of
            gone = self._recovery.mend_idle(gone)
            gone = gone or [dead[w] for w in workers if w in dead and alive[list(ids_of([w]))].any()]
        if gone:
            raise failures_to_error(gone)

    def _check_idle(self) -> None:
        self._enter()
        if self._flights.open or self._flights.landed:
            raise PendingError(f"{self._name_pending()} still under way; wait for them first.")

    def _check_ids(self, ids: Ids) -> np.ndarray:
        self._enter()
        if self._flights.of_all is not None:
            raise PendingError(f"{self._name_pending()} still under way; receive them first.")
        chosen = self._roster.check(ids)
        if self._flights.dead:
            self._check_alive(self._roster.owners(chosen))
        return chosen

    def _name_pending(self) -> str:
        return f"{self._roster.name(self.pending)} are"


def check_length(name: str, values: Sequence[Any] | None, count: int) -> None:
    if values is not None and len(values) != count:
        raise SpaceError(f"Expected {count} {name}, one an environment asked, but {len(values)} came.")
