"""What becomes of environments that fail, where that is not simply reported: they begin anew, or are left out.

Whoever fails ends its episode as truncated, with the last observation that is known of it and a reward of 0. Under
"restart" it is made anew (its whole worker, where that is gone or stuck) and goes on with a seed that follows from
its own. Under "mask" it is left out from then on. Knows workers, rows and seeds, no mode and no dialect.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..errors import Failure, SpaceError
from ..seeding import seed_for
from .arena import Arena
from .assembly import Assembly
from .backends.base import Backend
from .flights import Flight, Flights
from .infos import Infos
from .layout import Layout
from .roster import Roster
from .worker import Card, Command, Op, Report

OnFailure = Literal["raise", "restart", "mask"]
_HOUR = 3600.0  # seconds
_ATTEMPTS = 3  # how often an environment may fail in beginning anew
_log = logging.getLogger("vecrl")


def check_recovery(on_failure: Any, restarts_per_hour: Any) -> None:
    """See that these are a policy and a budget.

    Raises:
        ValueError: they are not.
    """
    if on_failure not in ("raise", "restart", "mask"):
        raise ValueError(f"Expected on_failure to be 'raise', 'restart' or 'mask', but {on_failure!r} came.")
    if int(restarts_per_hour) != restarts_per_hour or restarts_per_hour < 1:
        raise ValueError(f"Expected restarts_per_hour to be an int of 1 or more, but {restarts_per_hour!r} came.")


class Replacements:
    """Has workers take the places of others.

    Args:
        cards: what each worker said of itself when it stood.
    """

    def __init__(self, backend: Backend, flights: Flights, cards: Sequence[Card]):
        self._backend = backend
        self._flights = flights
        self._cards = cards

    def replace(self, workers: Sequence[int]) -> list[Failure]:
        """Have others in the places of workers that are gone; what went wrong, in which case all of them are gone."""
        try:
            failures = self._replace(workers)
        except BaseException:  # Ctrl-C
            self._flights.open.pop(0, None)
            text = "interrupted while another took its place"
            for worker in workers:
                ids = self._flights.ids_of([worker])
                self._lose(worker, Failure(ids, "construct", text, worker=worker, kind="crashed"))
            raise
        for worker in workers if failures else ():
            self._lose(worker, failures[0])
        return failures

    def _lose(self, worker: int, failure: Failure) -> None:
        self._flights.dead.setdefault(worker, failure)
        self._backend.end(worker)

    def _replace(self, workers: Sequence[int]) -> list[Failure]:
        flights = self._flights
        for worker in workers:
            flights.dead.pop(worker, None)
            self._backend.replace(worker)
        flight = flights.expect(Op.CONSTRUCT, workers)
        failures = flights.gather(flight, None)
        if not failures:
            failures = [f for worker, report in flight.reports for f in self._check(worker, report.result)]
        if not failures:
            for worker in workers:
                self._backend.rejoin(worker)
            failures = flights.gather(flights.expect(Op.ATTACH, workers), None)
        return failures

    def _check(self, worker: int, card: Card) -> list[Failure]:
        was = self._cards[worker]
        if (card.observation_space, card.action_space) == (was.observation_space, was.action_space):
            return []
        error = SpaceError(f"its spaces were {was.observation_space} and {was.action_space}, now they differ.")
        ids = self._flights.ids_of([worker])
        return [Failure(ids, "construct", f"SpaceError: {error}", worker=worker, exception=error)]


class Recovery:
    """Makes failures good.

    Args:
        policy: "restart" or "mask".
        per_hour: how many failures may be made good within an hour; those beyond are reported.
        layout: of observations.
        replacements: has workers replaced.
        gather: waits for a flight, no longer than a step may take; its failures.
        infos: whether anybody wants to read in the info that an environment failed.

    Attributes:
        alive: `[n]` bool, those that were not left out for good.
        lost: `[n]` bool, those whose episode ended without their having been asked anything; they are told next.
    """

    def __init__(
        self,
        policy: OnFailure,
        per_hour: int,
        backend: Backend,
        flights: Flights,
        roster: Roster,
        arena: Arena,
        layout: Layout,
        assembly: Assembly,
        replacements: Replacements,
        gather: Callable[[Flight], list[Failure]],
        infos: bool,
    ):
        n = roster.num_envs
        self.alive = np.ones(n, bool)
        self.lost = np.zeros(n, bool)
        self._policy = policy
        self._per_hour = per_hour
        self._backend = backend
        self._flights = flights
        self._roster = roster
        self._arena = arena
        self._assembly = assembly
        self._replacements = replacements
        self._gather = gather
        self._tell = infos
        self._spare = arena.slots[-1]  # where those who begin anew write what they observe first
        self._last = layout.empty(n)  # the latest observation of each, a copy: a failing one may spoil its row
        self._objects: dict[int, dict[int, Any]] = {leaf: {} for leaf in layout.opaque}  # first ones, by leaf and id
        self._infos: dict[int, Any] = {}  # likewise
        self._texts: dict[int, str] = {}  # why somebody failed
        self._returns = np.zeros(n)
        self._lengths = np.zeros(n, np.int64)
        self._seeds: list[int | None] = [None] * n
        self._restarts = [0] * n  # since that seed was given
        self._times: deque[float] = deque()  # of failures within the last hour
        self._told = np.zeros(n, bool)  # those that were left out, and heard so
        self._mending: Sequence[Flight] = ()
        self._handled: deque[Failure] = deque(maxlen=2 * n)  # one crash is reported to all who waited for the worker

    # -- what the pool tells -----------------------------------------------------------------------

    def seeded(self, ids: Iterable[int], seeds: Sequence[int | None]) -> None:
        """Note the seeds that a reset gives; those that are None leave things as they are."""
        for env_id, seed in zip(ids, seeds, strict=True):
            if seed is not None:
                self._seeds[env_id], self._restarts[env_id] = seed, 0

    def seed_of(self, env_id: int) -> dict[str, Any]:
        """What an environment's restarts go on from."""
        return {"seed": self._seeds[env_id], "restarts": self._restarts[env_id]}

    def restored(self, env_id: int, state: Mapping[str, Any]) -> None:
        """Take in the state that an environment goes on from; what it observed last is not known until it steps."""
        self._returns[env_id], self._lengths[env_id] = state["return"], state["length"]
        self._seeds[env_id], self._restarts[env_id] = state.get("seed"), state.get("restarts", 0)
        self.lost[env_id] = False

    def saw(self, flight: Flight) -> None:
        """Take in what a flight yielded: it may be the last that is known."""
        slot = self._arena.slots[flight.slot]
        ids: Any = slice(None) if flight.ids is None else flight.ids
        for own, leaf in zip(self._last, slot.obs, strict=True):
            if leaf is not None:
                own[ids] = leaf[ids]
        if flight.op == Op.RESET:
            self._returns[ids] = self._lengths[ids] = 0
            return
        terminated, truncated, begun = slot.flags[:, ids]
        self._returns[ids] += slot.reward[ids]
        self._lengths[ids] += 1
        over = terminated | truncated | begun
        self._returns[ids] *= ~over
        self._lengths[ids] *= ~over

    def left_out(self, begin: Any = None) -> np.ndarray | None:
        """`[n]` bool, those for whom the pool answers itself; None for nobody.

        Args:
            begin: who is to begin anew, and so need not be told that it had to.
        """
        if begin is not None:
            self.lost[begin] &= ~self.alive[begin]
        out = self.lost | ~self.alive
        return out if out.any() else None

    def forget(self) -> None:
        """Drops the commands of restarts that were late or interrupted: nothing collects their replies."""
        spare = len(self._arena.slots) - 1
        for flight in [flight for flight in self._flights.open.values() if flight.slot == spare]:
            del self._flights.open[flight.seq]

    # -- failures ----------------------------------------------------------------------------------

    def end_late(self, workers: Iterable[int], limit: float) -> bool:
        """End workers that are late, as if they had crashed; False where one cannot be ended."""
        for worker in sorted(workers):
            if not self._backend.end(worker):
                return False
            ids = self._flights.ids_of([worker])
            doing = next((f.op for f in self._flights.open.values() if worker in f.waiting), Op.STEP).name.lower()
            text = f"no answer within {limit:g} s, so its worker was ended"
            failure = Failure(ids, doing, text, worker=worker, kind="crashed")
            self._flights.land([(worker, -1, Report(failures=[failure]))])
        return True

    def mend(self, flights: Sequence[Flight]) -> list[Failure]:
        """Make good what went wrong with these flights and write the rows of all that failed; what remains."""
        self._mending = flights
        left = self._handle([failure for flight in flights for failure in flight.failures])
        self._mending = ()
        unmended = {i for failure in left for i in failure.env_ids}
        for flight in flights:
            failed = {i for failure in flight.failures for i in failure.env_ids} - unmended
            asked = range(self._roster.num_envs) if flight.ids is None else flight.ids.tolist()
            self._write(flight, [i for i in asked if i in failed], [i for i in asked if i in flight.left_out])
        return left

    def mend_idle(self, failures: Sequence[Failure]) -> list[Failure]:
        """Make good the failures of workers that nobody waits for; what remains."""
        return self._handle(failures)

    def _handle(self, failures: Sequence[Failure]) -> list[Failure]:
        left: list[Failure] = []
        for failure in failures:
            if any(failure is known for known in (*self._handled, *left)):
                continue
            ids = [i for i in failure.env_ids if self.alive[i]]
            if ids and not self._within_budget(ids, failure.error):
                left.append(failure)  # and no more than that: what is done next finds it as it was
                continue
            self._handled.append(failure)
            if not ids:
                continue
            self._texts |= dict.fromkeys(ids, failure.error)
            if self._policy == "mask":
                self.alive[ids] = False
                self._lose(ids, [failure])
            elif problems := self._restart(failure, _ATTEMPTS):
                left += [failure, *problems]
                dead = self._flights.dead.get(failure.worker)
                self._handled = deque((f for f in self._handled if f is not dead), self._handled.maxlen)
        return left

    def _lose(self, ids: Sequence[int], failures: Sequence[Failure]) -> None:
        """Note whose episodes ended for these reasons, but for those who learn of it as the answer to what they do."""
        told: set[int] = set()
        for flight in [*self._mending, *self._flights.landed]:
            for failure in failures:
                if any(failure is own for own in flight.failures):
                    told.update(
                        failure.env_ids if flight.ids is None else set(failure.env_ids) & set(flight.ids.tolist())
                    )
        self.lost[[i for i in ids if i not in told]] = True

    def _within_budget(self, ids: Sequence[int], error: str) -> bool:
        now = time.monotonic()
        while self._times and now - self._times[0] > _HOUR:
            self._times.popleft()
        if len(self._times) >= self._per_hour:
            return False
        self._times.append(now)
        done = "left out" if self._policy == "mask" else "made anew"
        count = f"{len(self._times)} of {self._per_hour} within an hour"
        _log.warning("%s failed and are %s (%s): %s", self._roster.name(np.array(ids)), done, count, error)
        return True

    def _restart(self, failure: Failure, attempts: int) -> list[Failure]:
        """Have the environments of a failure begin anew; what goes wrong with that."""
        worker, ids = failure.worker, failure.env_ids
        crash = self._flights.dead.get(worker)
        if crash is None:
            problems = self._ask(worker, ids, Op.REMAKE, None)
        else:  # maybe it died after the failure: then all its environments are concerned
            self._handled.append(crash)
            ids = self._flights.ids_of([worker])
            self._texts |= dict.fromkeys(ids, crash.error) | dict.fromkeys(failure.env_ids, failure.error)
            self._lose(ids, [failure, crash])
            problems = self._replacements.replace([worker])
        if not problems:
            seeds = [self._next_seed(i) for i in ids]
            problems = self._ask(worker, ids, Op.RESET, (seeds, None))
        if problems and attempts > 1:
            failed = [p for problem in problems if (p := self._restart(problem, attempts - 1))]
            problems = list(itertools.chain.from_iterable(failed))
        return problems

    def _next_seed(self, env_id: int) -> int | None:
        self._restarts[env_id] += 1
        seed = self._seeds[env_id]
        return None if seed is None else seed_for(seed, 0, self._restarts[env_id])

    def _ask(self, worker: int, ids: Sequence[int], op: Op, extra: Any) -> list[Failure]:
        """Ask one worker, and keep what it says of those who begin anew; its failures."""
        slot = len(self._arena.slots) - 1
        rows = [i - int(self._roster.starts[worker]) for i in ids]
        torn, self._flights.torn = self._flights.torn, True  # where this raises, see `forget`
        flight = self._flights.launch(op, [worker], slot=slot)
        self._backend.send([(worker, Command(op, flight.seq, slot, rows=rows, extra=extra))])
        failures = self._gather(flight)
        self._flights.torn = torn
        for _, report in flight.reports:
            self._infos |= dict(report.infos.items())
            for leaf, pairs in report.objects.items():
                self._objects[leaf] |= dict(pairs)
        return failures

    # -- rows --------------------------------------------------------------------------------------

    def _write(self, flight: Flight, failed: Sequence[int], left_out: Sequence[int]) -> None:
        """Write the rows of those who failed now, and of those who were not asked."""
        flight.failed = [*failed, *left_out]
        for ids in (failed, left_out):
            for env_id in ids:
                ends = env_id in failed or bool(self.lost[env_id])
                self._write_one(flight, env_id, ends and not self._told[env_id])
                self._told[env_id] = not self.alive[env_id]
        self.lost[flight.failed] = False

    def _write_one(self, flight: Flight, i: int, ends: bool) -> None:
        slot, report = self._arena.slots[flight.slot], Report()
        info: dict[str, Any] = {"failed": True, "error": self._texts[i]}
        asked_to_begin = flight.op == Op.RESET or (flight.begin is not None and bool(flight.begin[i]))
        anew = bool(self.alive[i]) and (asked_to_begin or flight.eager)
        if anew and not asked_to_begin:
            _copy(self._last, self._arena.final_obs, i)
            report.final_infos.dicts.append((i, info))
            report.final_objects = {leaf: [(i, self._assembly.latest(leaf, i))] for leaf in self._objects}
            info = self._infos.get(i, {})
        elif anew:
            info = {**self._infos.get(i, {}), **info}
        if anew:
            _copy(self._spare.obs, slot.obs, i)
            report.objects = {leaf: [(i, first[i])] for leaf, first in self._objects.items()}
        else:
            _copy(self._last, slot.obs, i)
        report.infos.dicts.append((i, info))
        if not self._tell:
            report.infos, report.final_infos = Infos(), Infos()
        slot.reward[i] = 0.0
        slot.terminated[i], slot.truncated[i], slot.begun[i] = False, ends and not asked_to_begin, anew
        slot.returns[i], slot.lengths[i] = self._returns[i], self._lengths[i]
        self._infos.pop(i, None)
        for _, said in flight.reports:
            _forget(said, i)
        flight.reports.append((0, report))


def _copy(source: Sequence[Any], target: Sequence[Any], i: int) -> None:
    for old, new in zip(source, target, strict=True):
        if new is not None:
            new[i] = old[i]


def _forget(report: Report, i: int) -> None:
    """Drop what an environment said before it failed."""
    for infos in (report.infos, report.final_infos):
        infos.dicts = [pair for pair in infos.dicts if pair[0] != i]
        if any(block.start <= i < block.start + len(block.data) for block in infos.blocks):
            kept = [pair for pair in infos.items() if pair[0] != i]
            infos.blocks, infos.dicts = [], kept
    for objects in (report.objects, report.final_objects):
        for leaf, pairs in objects.items():
            objects[leaf] = [pair for pair in pairs if pair[0] != i]
