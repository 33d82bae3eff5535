"""Workers in actors of a Ray cluster, each of which owns several environments, on whatever nodes there are.

A command goes out as one call with one block of bytes (the actions of the rows asked) and comes back as one object of
Ray's store (their rows), which is copied into the caller's arena. The caller waits for all calls at once, and Ray ends
the calls of an actor that is gone. (Not named after Ray, which it would hide from a script beside it.)
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from ...errors import Failure
from ...seeding import seed_for
from ..arena import Arena
from ..layout import Layout
from ..worker import Command, Op, Plan, Report
from . import zygote
from .base import Answer
from .child import Order
from .cluster import RayOptions
from .freight import Freight
from .placing import Placing
from .session import Session
from .shipping import pickle_plan, pickle_specs
from .wire import ANSWER, Reports, encode_command, unreadable

_SOON = 0.02  # seconds: so long some workers may be waited for before all are watched
_NOT_OURS = ("RAY_", "CUDA_", "LD_")  # environment variables that Ray sets for each worker, or that come too late


def _tenant_class() -> Any:
    """What Ray makes an actor of. It travels by value, so that nothing is imported there before its first line."""

    class VecrlWorker:
        def __init__(self, environment: dict[str, str], folder: str | None, path: list[str]):
            import sys

            os.environ.update(environment)  # before NumPy asks how many threads it may have
            if folder is not None:
                os.chdir(folder)
            sys.path[:] = path + [entry for entry in sys.path if entry not in path]
            from vecrl.engine.backends.tenant import Tenant

            self._tenant = Tenant()

        def hello(self) -> tuple[int, str]:
            return os.getpid(), ray.get_runtime_context().get_node_id()

        def execute(self, data: bytes) -> Any:
            return self._tenant.execute(data)

    return VecrlWorker


_ACTOR = ray.remote(_tenant_class())
_HELLO = Command(Op.CONSTRUCT, -1)  # no command of the pool's: what an actor answers as soon as it lives


class Seat:
    """The caller's side of one worker.

    Attributes:
        plan: what the worker is to be; `payload`, in bytes.
        seed: of the random generators of the process that is made next.
        ids: its environments.
        actor: Ray's handle; None while there is none.
        pid, node: where it lives; 0 and "" before that is known.
        deadline: until when that must be known.
        doing: what it was last asked for; `steps`, how many steps.
        closed: whether it closed its environments.
        freight: what packs and unpacks its rows, once there is an arena.
    """

    def __init__(self, plan: Plan, payload: bytes):
        self.plan, self.payload = plan, payload
        self.seed = plan.seed
        self.ids = tuple(range(plan.start, plan.start + plan.num_envs))
        self.actor: Any = None
        self.pid, self.node = 0, ""
        self.deadline = 0.0
        self.doing, self.steps = Op.CONSTRUCT, 0
        self.closed = False
        self.freight: Freight | None = None

    def crash(self, text: str, told: str) -> Report:
        """The report of its end, and what Ray tells of it."""
        command = self.doing.name.lower()
        failure = Failure(self.ids, command, text, told, self.plan.index, self.pid, self.steps, kind="crashed")
        return Report(failures=[failure])


class Actors:
    """See `Backend`.

    Args:
        plans: one a worker; their factories are pickled by value where they must be.
        threads: how many threads numerical libraries may use in a worker.
        options: which Ray, and what an actor asks of a node.

    Raises:
        ShipError: where a plan cannot be pickled.
        ValueError, ConnectionError: Ray cannot be had as the options say.
    """

    in_turn = False

    def __init__(self, plans: Sequence[Plan], threads: int = 1, options: RayOptions | None = None):
        self._options = options or RayOptions()
        self._seats = [Seat(plan, pickle_plan(plan)) for plan in plans]
        self.num_workers = len(plans)
        self._owner = os.getpid()
        self._calls: dict[Any, tuple[Seat, Command]] = {}  # under way, by the reference of the answer, in their order
        self._kept: list[Answer] = []  # ends of actors, reported again
        self._spaces: tuple[Any, ...] = ()  # what workers attach to
        self._session = Session(self._options)
        self._placing: Placing | None = None
        try:
            self._placing = Placing(self._options, self._session, len(plans))
            self._home = _home(threads, self._session.local)
            _open.add(self)
            for seat in self._seats:
                self._start(seat, self._placing.first(seat.plan.index))
                self._construct(seat)
        except BaseException:  # Ctrl-C, or options that Ray refuses
            self.shutdown()
            raise

    # -- one worker --------------------------------------------------------------------------------

    def _start(self, seat: Seat, where: dict[str, Any], deadline: float | None = None) -> None:
        """Have Ray make the actor."""
        seat.pid, seat.node, seat.closed = 0, "", False
        seat.deadline = time.monotonic() + self._options.start_timeout if deadline is None else deadline
        seat.actor = _ACTOR.options(max_restarts=0, max_task_retries=0, enable_task_events=False, **where).remote(
            *self._home
        )
        self._calls[seat.actor.hello.remote()] = seat, _HELLO

    def _construct(self, seat: Seat) -> None:
        order = Order(None, seat.plan.index, seat.ids, seat.payload, pickle_specs(seat.payload), seat.seed)
        seat.seed = seed_for(seat.seed, seat.plan.index)  # a restart must not repeat the random numbers
        self._call(seat, Command(Op.CONSTRUCT, extra=order))

    def _attach(self, seat: Seat) -> None:
        self._call(seat, Command(Op.ATTACH, extra=self._spaces))

    def _call(self, seat: Seat, command: Command, data: bytes | None = None) -> None:
        if seat.actor is None:  # its end was told, or is about to be
            return
        data = encode_command(command) if data is None else data
        if seat.freight is not None:
            data += seat.freight.pack_actions(command)
        seat.doing = command.op
        seat.steps += command.op == Op.STEP
        self._calls[seat.actor.execute.remote(data)] = seat, command

    def stuck(self, waiting: set[int]) -> set[int]:
        return waiting

    def end(self, worker: int) -> bool:
        self._end(self._seats[worker])
        return True

    def replace(self, worker: int) -> None:
        self._kept = [answer for answer in self._kept if answer[0] != worker]
        self._restart(self._seats[worker])

    def _restart(self, seat: Seat, deadline: float | None = None) -> None:
        """Have another actor made, wherever there is a node for it."""
        assert self._placing is not None
        where = self._placing.again(other.node for other in self._seats if other is not seat)
        self._start(seat, where, deadline)
        self._construct(seat)

    def rejoin(self, worker: int) -> None:
        self._attach(self._seats[worker])

    def _end(self, seat: Seat) -> None:
        """End an actor by force, and expect nothing of it any more."""
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] is not seat}
        actor, seat.actor = seat.actor, None
        if actor is not None and self._session.alive:
            ray.kill(actor, no_restart=True)

    # -- all of them -------------------------------------------------------------------------------

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> Arena:
        arena = Arena(obs, action, num_envs, slots)
        self._spaces = obs.space, action.space, num_envs
        for seat in self._seats:
            seat.freight = Freight(arena, seat.ids[0], seat.ids[-1] + 1)
            self._attach(seat)
        return arena

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        encoded = [(self._seats[worker], command, encode_command(command)) for worker, command in commands]
        for seat, command, data in encoded:
            self._call(seat, command, data)
            if seat.actor is None:  # what was said of its end may have been lost as Ctrl-C came
                self._kept.append((seat.plan.index, -1, seat.crash("its actor is gone", "")))

    def broadcast(self, command: Command) -> None:
        data = encode_command(command)
        for seat in self._seats:
            self._call(seat, command, data)

    def receive(self, timeout: float | None, expect: Collection[int] = ()) -> list[Answer]:
        answers, self._kept = self._kept, []
        end = None if timeout is None else time.monotonic() + timeout
        while self._calls and not answers:
            left = None if end is None else max(0.0, end - time.monotonic())
            self._take(*self._wait(left, expect), answers)
            expect = ()
            self._give_up_unplaced(answers)
            if end is not None and time.monotonic() >= end:
                break
        return answers

    def _wait(self, seconds: float | None, expect: Collection[int]) -> tuple[list[Any], Iterable[Any]]:
        """The calls that were answered, in the order in which they were made, and their replies; at least one, unless
        time is over."""
        calls = self._calls
        unplaced = [seat.deadline for seat, command in calls.values() if command is _HELLO]
        if unplaced:
            until = max(0.0, min(unplaced) - time.monotonic())
            seconds = until if seconds is None else min(seconds, until)
        elif expect:
            wanted = [ref for ref, (seat, _) in calls.items() if seat.plan.index in expect]
            with suppress(RayError):  # one is gone, or they take longer
                return wanted, ray.get(wanted, timeout=_SOON if seconds is None else min(seconds, _SOON))
        ray.wait(list(calls), num_returns=1, timeout=seconds)
        here = seconds != 0.0  # else what is ready on another node counts too, and is fetched
        done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=here)
        try:
            return done, ray.get(done)
        except RayError:  # some of them failed: one by one
            return done, map(_fetch, done)

    def _take(self, done: Sequence[Any], replies: Iterable[Any], answers: list[Answer]) -> None:
        """Make answers of what was answered."""
        for ref, reply in zip(done, replies, strict=True):
            if ref not in self._calls:  # of an actor whose end was told by an earlier one
                continue
            seat, command = self._calls[ref]
            if isinstance(reply, Exception):
                self._lose(seat, reply, answers)
            elif command is _HELLO:
                seat.pid, seat.node = reply
                del self._calls[ref]
            else:
                answers.append(self._answer(seat, command, reply))
                del self._calls[ref]

    def _answer(self, seat: Seat, command: Command, reply: Any) -> Answer:
        seq, size = ANSWER.unpack_from(reply)
        body, rows = reply[ANSWER.size : ANSWER.size + size], reply[ANSWER.size + size :]
        seat.closed |= command.op == Op.CLOSE
        if len(rows):
            assert seat.freight is not None
            seat.freight.take(command, rows)
        if not size:
            return seat.plan.index, seq, None
        try:
            report = Reports().decode(bytes(body))
        except Exception as error:
            report = unreadable(error, seat.ids, seat.doing, seat.plan.index, seat.steps, seat.pid)
        return seat.plan.index, seq, report

    def _lose(self, seat: Seat, error: Exception, answers: list[Answer]) -> None:
        """An actor is gone, or cannot be reached, which is the same to the caller; but one that was sent to a node of
        which Ray did not know that it was gone never began, and is sent elsewhere."""
        assert self._placing is not None
        if not seat.pid and "node has died" in str(error):
            self._end(seat)
            self._restart(seat, seat.deadline)
            return
        if seat.node:
            self._placing.doubt(seat.node)
        where = f" on node {seat.node[:8]}" if seat.node else ""
        report = seat.crash(f"its actor{where} is gone: {_reason(error)}", f"{type(error).__name__}: {error}")
        self._end(seat)
        answers.append((seat.plan.index, -1, report))

    def _give_up_unplaced(self, answers: list[Answer]) -> None:
        """Take actors that found no place in time for lost."""
        now = time.monotonic()
        for seat in [s for s, command in self._calls.values() if command is _HELLO and s.deadline <= now]:
            assert self._placing is not None
            claims = ", ".join(f"{value:g} {name}" for name, value in self._placing.claims.items()) or "nothing"
            there = {k: v for k, v in ray.available_resources().items() if not k.startswith(("node:", "memory", "obj"))}
            free = ", ".join(f"{value:g} {name}" for name, value in there.items()) or "nothing"
            text = (
                f"its actor, which claims {claims}, did not begin within {self._options.start_timeout:g} s; free in "
                f"the cluster: {free}. Claim less (num_cpus=0 shares cores), take fewer workers, or wait longer"
            )
            answers.append((seat.plan.index, -1, seat.crash(text, "")))
            self._end(seat)

    def shutdown(self, grace: float = 0.0) -> list[int]:
        if os.getpid() != self._owner:  # a fork of the owner must not end the owner's workers
            return []
        seats, self._seats = self._seats, []
        _open.discard(self)
        try:
            if self._session.alive and grace > 0:
                self._ask_to_close(seats, grace)
        finally:
            for seat in seats:
                self._end(seat)
            self._calls.clear()
            if self._placing is not None and self._session.alive:
                self._placing.free()
            self._session.leave()
        return []

    def _ask_to_close(self, seats: Sequence[Seat], grace: float) -> None:
        """Have environments closed, as far as nobody did and they are there to do it."""
        command = encode_command(Command(Op.CLOSE))
        asked = [seat.actor.execute.remote(command) for seat in seats if seat.pid and seat.actor and not seat.closed]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=grace)


_open: weakref.WeakSet[Actors] = weakref.WeakSet()


@atexit.register  # later than Ray's own, and so run before it
def _close_all() -> None:
    for actors in list(_open):
        actors.shutdown(1.0)


def _home(threads: int, local: bool) -> tuple[dict[str, str], str | None, list[str]]:
    """What makes an actor's process like the caller's: environment variables, working folder and import path, all of
    which mean something on this machine alone; and the number of threads, wherever it is."""
    own = zygote.thread_environment(threads)
    if not local:
        return own, None, []
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
    return inherited | own, os.getcwd(), [entry for entry in sys.path if type(entry) is str]


def _fetch(ref: Any) -> Any:
    """What a call returned, or why it did not."""
    try:
        return ray.get(ref)
    except RayError as error:
        return error


def _reason(error: Exception) -> str:
    """What Ray says of an end, in one line; the rest is in the traceback's place."""
    if isinstance(error, ActorUnavailableError):
        return "Ray cannot reach it any more"
    lines = [line.strip() for line in str(error).splitlines()]
    if "in its creation task" in str(error):
        return f"it could not begin ({lines[-1]}): every node needs the same Python, vecrl and Ray as this process"
    said = [line for line in lines if line.startswith("The actor ")] or lines or [type(error).__name__]
    return said[-1].partition(" Some common causes include")[0]
