"""Workers in processes of their own: a pipe each for commands and for answers, rows in shared memory.

The caller waits on the pipes and on the workers' ends together, so a worker that dies is noticed as soon as one
that answers. Nothing spins, and nothing survives the caller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import select
import signal
import time
from collections.abc import Collection, Sequence
from typing import Literal

from ...errors import Failure, PendingError
from ...seeding import seed_for
from ..arena import Arena, anonymous_file
from ..layout import Layout
from ..worker import Command, Op, Plan, Report
from . import zygote
from .base import Answer
from .child import Home, Order
from .links import Link
from .nursery import Nursery
from .shipping import modules_in, pickle_plan, pickle_specs
from .wire import encode_command

StartMethod = Literal["forkserver", "spawn"]
_PATIENCE = 5.0  # seconds until a process that was killed is taken for one that cannot be
_SOON = 20.0  # milliseconds: so long one worker may be waited for before all are watched


class Processes:
    """See `Backend`.

    Args:
        plans: one a worker; their factories are pickled by value where they must be.
        start_method: "forkserver" forks a clean process that has the factories' modules imported; "spawn" starts a
            new interpreter a worker, for what must not be imported before a fork (CUDA).
        threads: how many threads numerical libraries may use in a worker.
        preload: further modules to import before workers are forked.
        pin: tie worker i to the i-th core, or `threads` cores, of those that this process may use, and so on in turn.

    Raises:
        ShipError: where a plan cannot be pickled.
    """

    in_turn = False

    def __init__(
        self,
        plans: Sequence[Plan],
        start_method: StartMethod = "forkserver",
        threads: int = 1,
        preload: Sequence[str] = (),
        pin: bool = False,
    ):
        if start_method not in ("forkserver", "spawn"):
            raise ValueError(f"Expected start_method to be 'forkserver' or 'spawn', but {start_method!r} came.")
        if threads < 1:
            raise ValueError(f"Expected threads_per_worker to be 1 or more, but {threads!r} came.")
        if missing := [name for name in preload if importlib.util.find_spec(name.partition(".")[0]) is None]:
            raise ModuleNotFoundError(
                f"Expected preload to name modules, but there is none of the name {missing[0]!r}."
            )
        if pin and not hasattr(os, "sched_setaffinity"):
            raise ValueError("This platform cannot tie processes to cores: leave pin_workers out.")
        payloads = [pickle_plan(plan) for plan in plans]
        modules = sorted(set(preload).union(*map(modules_in, payloads))) if start_method == "forkserver" else []
        self.num_workers = len(plans)
        self._threads = threads
        self._poll = select.poll()
        self._links: list[Link] = []
        self._by_fd: dict[int, Link] = {}
        self._owner = os.getpid()
        home = Home.here(zygote.thread_environment(threads))
        self._kept: list[Answer] = []  # that came while the end of another was waited for
        self._memory = -1  # kept for those who take another's place
        self._request = {"fork": start_method == "forkserver", "preload": modules, "path": home.path}
        self._orders: list[Command] = []
        for plan, payload in zip(plans, payloads, strict=True):
            own = dataclasses.replace(home, cores=_cores(plan.index, threads)) if pin else home
            order = Order(own, plan.index, _ids_of(plan), payload, pickle_specs(payload), plan.seed)
            self._orders.append(Command(Op.CONSTRUCT, extra=order))
        try:
            self._memory = anonymous_file()
            for plan in plans:
                self._links.append(self._start(plan.index, _ids_of(plan)))
            self.send(list(enumerate(self._orders)))
        except BaseException:  # no more descriptors, or Ctrl-C
            self.shutdown()
            raise

    def _start(self, index: int, ids: tuple[int, ...]) -> Link:
        """A new worker process, which waits for its order."""
        link = Link(index, ids, *Nursery.of(self._threads).start(self._request, self._memory))
        self._watch_link(link)
        return link

    def _watch_link(self, link: Link) -> None:
        for fd in () if link.ended else (link.answers, link.status):
            self._by_fd[fd] = link
            self._poll.register(fd, select.POLLIN)
        if link.kept:
            self._poll.register(link.commands, select.POLLOUT)

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> Arena:
        os.ftruncate(self._memory, Arena.size(obs, action, num_envs, slots))
        arena = Arena(obs, action, num_envs, slots, self._memory)
        self._attach = Command(Op.ATTACH, extra=(obs.space, action.space, num_envs, slots))
        self.broadcast(self._attach)
        for link in self._links:
            link.learn_pid()
        return arena

    def stuck(self, waiting: set[int]) -> set[int]:
        return waiting

    def end(self, worker: int) -> bool:
        link = self._links[worker]
        if not link.ended:
            link.learn_pid()
            link.kill(signal.SIGKILL)
            self._wait([link], _PATIENCE, self._kept)
        self._forget_kept(worker)
        return bool(link.ended)

    def _forget_kept(self, worker: int) -> None:
        self._kept = [answer for answer in self._kept if answer[0] != worker]

    def replace(self, worker: int) -> None:
        old = self._links[worker]
        self._links[worker] = self._start(worker, old.ids)  # first: Ctrl-C finds one or the other, whole
        for fd in (old.commands, old.answers, old.status):
            self._by_fd.pop(fd, None)
        old.close()
        order: Order = self._orders[worker].extra
        order.seed = seed_for(order.seed, worker)  # or it would repeat the random numbers of the old one
        self._forget_kept(worker)
        self.send([(worker, self._orders[worker])])

    def rejoin(self, worker: int) -> None:
        self._links[worker].learn_pid()
        self.send([(worker, self._attach)])

    def _forget_memory(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        encoded = [(self._links[worker], encode_command(command)) for worker, command in commands]
        for link, data in encoded:
            self._send(link, data)
            if link.ended:  # what was said of it may have been lost as Ctrl-C came
                self._kept.append(self._crash(link))

    def broadcast(self, command: Command) -> None:
        data = encode_command(command)
        for link in self._links:
            self._send(link, data)

    def _send(self, link: Link, data: bytes) -> None:
        if link.send(data):
            self._by_fd[link.commands] = link
            self._poll.register(link.commands, select.POLLOUT)

    def receive(self, timeout: float | None, expect: Collection[int] = ()) -> list[Answer]:
        answers, self._kept = self._kept, []
        if answers:
            return answers
        try:
            return self._receive(timeout, expect, answers)
        except RuntimeError as error:  # what `poll` says of two that wait at once
            raise PendingError("Expected one thread to wait for these workers, got a second. Use a lock.") from error

    def _receive(self, timeout: float | None, expect: Collection[int], answers: list[Answer]) -> list[Answer]:
        limit = None if timeout is None else timeout * 1000
        if expect and (limit is None or limit > _SOON) and self._links[max(expect)].read_soon(_SOON, answers):
            if len(self._links) > 3:  # the others are mostly ready by then, and one look at all is enough
                self._watch(0.0, answers)
            return answers
        end = None if timeout is None else time.monotonic() + timeout
        while not answers and self._links:
            limit = None if end is None else max(0.0, end - time.monotonic()) * 1000
            if not self._watch(limit, answers):
                break
        return answers

    def _watch(self, milliseconds: float | None, answers: list[Answer]) -> bool:
        """Wait for all workers at once, and take what comes; whether anything did."""
        ready = self._poll.poll(milliseconds)
        gone: list[Link] = []
        for fd, _ in ready:
            link = self._by_fd.get(fd)
            if link is None:  # all was closed meanwhile, by a signal's handler
                return False
            if fd == link.status:
                gone.append(link)
            elif fd == link.commands:
                if not link.flush():
                    self._poll.unregister(fd)
            elif not link.read(answers):
                self._poll.unregister(fd)  # its end is told by the status
        for link in gone:
            self._hear_status(link, answers)
        return bool(ready)

    def _hear_status(self, link: Link, answers: list[Answer]) -> None:
        """Read the process id when the worker begins, its exit status when it ends."""
        if link.pid == 0:
            link.learn_pid()
            return
        data = os.read(link.status, zygote.NUMBER.size)
        how = how_it_ended(zygote.NUMBER.unpack(data)[0]) if data else "vanished, and so did its parent process"
        link.ended = link.ended or how  # where Ctrl-C came between the two, here it is again
        while link.read(answers) and link.ready(link.answers):  # what it said last
            pass
        for fd in (link.status, link.answers, link.commands):
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
        answers.append(self._crash(link))

    def _crash(self, link: Link) -> Answer:
        text = f"its worker process {link.ended}"
        failure = Failure(link.ids, link.doing, text, "", link.index, link.pid, link.steps, kind="crashed")
        return link.index, -1, Report(failures=[failure])

    def shutdown(self, grace: float = 0.0) -> list[int]:
        if os.getpid() != self._owner:  # a fork of the owner must not end the owner's workers
            return []
        self._poll = select.poll()  # the other may be in use, by a thread that does not come back or below a signal
        for link in self._links:
            self._watch_link(link)
        # A worker that its zygote has not come to start ends by itself, as its channel is closed.
        alive = [link for link in self._links if not link.ended and link.started]
        for link in alive:
            self._send(link, encode_command(Command(Op.CLOSE)))
        self._wait(alive, grace)
        for signal_number, patience in ((signal.SIGTERM, 0.2), (signal.SIGKILL, _PATIENCE)):
            alive = [link for link in alive if not link.ended]
            for link in alive:
                link.kill(signal_number)
            self._wait(alive, patience)
        for link in self._links:
            link.close()
        self._links = []
        self._by_fd.clear()
        self._forget_memory()
        return [link.index for link in alive if not link.ended]

    def _wait(self, links: Sequence[Link], seconds: float, answers: list[Answer] | None = None) -> None:
        """Wait for workers to end; into `answers` what others say meanwhile."""
        answers = [] if answers is None else answers
        end = time.monotonic() + seconds
        while any(not link.ended for link in links):
            left = end - time.monotonic()
            if left <= 0:
                return
            self._watch(left * 1000, answers)


def _ids_of(plan: Plan) -> tuple[int, ...]:
    return tuple(range(plan.start, plan.start + plan.num_envs))


def start_method_of(context: str | None) -> StartMethod:
    """The way to start workers that gymnasium's and Tianshou's word `context` means.

    None and "fork" mean "forkserver", which starts workers as fast without taking this process's threads, locks and
    GPU contexts with them.

    >>> start_method_of("fork")
    'forkserver'
    """
    if context not in (None, "fork", "forkserver", "spawn"):
        raise ValueError(f"Expected context to be None, 'fork', 'forkserver' or 'spawn', but {context!r} came.")
    return "spawn" if context == "spawn" else "forkserver"


def _cores(index: int, count: int) -> set[int]:
    """Of the cores that this process may use, `count` for the worker of this number."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[i % len(cores)] for i in range(index * count, (index + 1) * count)}


def how_it_ended(status: int) -> str:
    """`waitpid`'s status in words.

    >>> how_it_ended(9)
    'was killed by SIGKILL (often: out of memory)'
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was killed by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
