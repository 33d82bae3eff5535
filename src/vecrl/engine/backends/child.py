"""The worker's side of a process: read a command, carry it out, answer."""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium

from ...errors import Failure, ShipError
from ...random_streams import seed_streams
from ..arena import Arena
from ..layout import Layout
from ..worker import Command, Op, Plan, Report, Worker, describe_failure
from .wire import Reports, drop_unpicklable, read_command, write_all


@dataclass(slots=True)
class Home:
    """What makes a worker's process like the caller's: environment variables, working folder, import path; and the
    cores that are its own, if any."""

    environment: dict[str, str]
    folder: str
    path: list[str]
    cores: set[int] | None = None

    @classmethod
    def here(cls, threads: dict[str, str]) -> Home:
        return cls({**os.environ, **threads}, os.getcwd(), [entry for entry in sys.path if type(entry) is str])

    def enter(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)


@dataclass(slots=True)
class Order:
    """The first command's extra: what the process should be like (None: unchanged), the index and environments,
    the pickled plan, gymnasium's registrations, and the seed of the process's global random generators."""

    home: Home | None
    index: int
    ids: tuple[int, ...]
    plan: bytes
    specs: bytes
    seed: int


def serve(commands: int, answers: int, memory: int) -> None:
    """Carry out commands until told to close or the caller is gone.

    Args:
        commands, answers: descriptors to read from and to write to.
        memory: descriptor of the arena, which is laid out when the spaces are known.
    """
    reports = Reports()
    host = Host(partial(_map_arena, memory))
    gc.freeze()
    while (command := read_command(commands)) is not None:
        report = host.execute(command)
        try:
            write_all(answers, host.encode(reports, command, report))
        except BrokenPipeError:
            return
        if command.op == Op.CLOSE:
            return


class Host:
    """A worker in a process of its own: made as it was ordered, and never without an answer.

    Args:
        make_arena: makes the worker's arena of what comes with `Op.ATTACH`: what `Worker` wants to attach to.

    Attributes:
        worker: it, once it was ordered.
    """

    def __init__(self, make_arena: Callable[..., tuple[Arena, Layout, Layout]]):
        self.worker: Worker | None = None
        self._order: Order | None = None
        self._make_arena = make_arena

    def execute(self, command: Command) -> Report | None:
        """Carry out a command whose extra is still in bytes."""
        try:
            if self.worker is not None and command.extra is None:  # the usual case
                pass
            elif command.op == Op.CONSTRUCT:
                self.worker = self._make_worker(pickle.loads(command.extra))
                command.extra = None
            elif command.op == Op.ATTACH:
                command.extra = self._make_arena(*pickle.loads(command.extra))
            elif command.extra is not None:
                command.extra = pickle.loads(command.extra)
            return None if self.worker is None else self.worker.execute(command)
        except BaseException as error:  # anything but an answer would leave the caller waiting
            return Report(failures=[_failure(self._order, command, error)])

    def _make_worker(self, order: Order) -> Worker:
        self._order = order
        if order.home is not None:
            order.home.enter()
        plan: Plan = pickle.loads(order.plan)
        seed_streams(order.seed)  # before environments are made, and after imports that bring generators along
        for spec in pickle.loads(order.specs):  # after the plan, whose modules may register the same
            gymnasium.registry.setdefault(spec.id, spec)
        return Worker(plan)

    def encode(self, reports: Reports, command: Command, report: Report | None) -> bytes:
        """The bytes of an answer; what cannot be pickled is left out, and a failure of its environment."""
        try:
            return reports.encode(command.seq, report)
        except Exception as error:
            order = self._order
            assert order is not None
            assert report is not None
            ids = order.ids if command.rows is None else [order.ids[row] for row in command.rows if row >= 0]
            lost = drop_unpicklable(report, ids)
            report.failures += [_failure(replace(order, ids=(i,)), command, _unshippable(e)) for i, e in lost]
            if not lost:  # it is something else than what an environment said
                report = Report(failures=[_failure(order, command, _unshippable(error))])
            return reports.encode(command.seq, report)


def _unshippable(error: Exception) -> ShipError:
    shipped = ShipError(
        f"what it returned cannot be pickled, so it cannot leave its worker process: {type(error).__name__}: {error}"
    )
    return shipped.with_traceback(error.__traceback__)


def _map_arena(memory: int, obs: Any, action: Any, num_envs: int, slots: int) -> tuple[Arena, Layout, Layout]:
    layouts = Layout(obs), Layout(action)
    try:
        return Arena(*layouts, num_envs, slots, memory), *layouts
    finally:
        os.close(memory)


def _failure(order: Order | None, command: Command, error: BaseException) -> Failure:
    ids, index = ((), 0) if order is None else (order.ids, order.index)
    return describe_failure(ids, command.op.name.lower(), error, index, 0)
