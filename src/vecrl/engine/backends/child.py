"""The worker's side of a process: read a command, carry it out, answer."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
from dataclasses import dataclass
from typing import Any

from ...errors import Failure
from ..arena import Arena
from ..layout import Layout
from ..worker import Command, Op, Plan, Report, Worker, describe_failure
from .wire import encode_answer, read_command, write_all


@dataclass(slots=True)
class Home:
    """What makes a worker's process like the caller's: environment variables, working folder, import path."""

    environment: dict[str, str]
    folder: str
    path: list[str]

    @classmethod
    def here(cls, threads: dict[str, str]) -> Home:
        return cls({**os.environ, **threads}, os.getcwd(), list(sys.path))

    def enter(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path


@dataclass(slots=True)
class Order:
    """The first command's extra: where to live, whom it concerns, and the pickled plan."""

    home: Home
    index: int
    ids: tuple[int, ...]
    plan: bytes


def serve(fd: int) -> None:
    """Carry out commands until told to close or the caller is gone."""
    worker: Worker | None = None
    order: Order | None = None
    gc.freeze()
    while (command := read_command(fd)) is not None:
        try:
            if worker is not None and command.extra is None:  # the usual case
                pass
            elif command.op == Op.CONSTRUCT:
                order = pickle.loads(command.extra)
                assert isinstance(order, Order)
                order.home.enter()
                plan: Plan = pickle.loads(order.plan)
                worker = Worker(plan)
                command.extra = None
            elif command.op == Op.ATTACH:
                command.extra = _map_arena(fd, *pickle.loads(command.extra))
            elif command.extra is not None:
                command.extra = pickle.loads(command.extra)
            report = None if worker is None else worker.execute(command)
        except BaseException as error:  # anything but an answer would leave the caller waiting
            report = Report(failures=[_failure(order, command, error)])
        try:
            data = encode_answer(command.seq, report)
        except Exception as error:
            data = encode_answer(command.seq, Report(failures=[_failure(order, command, error)]))
        try:
            write_all(fd, data)
        except BrokenPipeError:
            return
        if command.op == Op.CLOSE:
            return


def _map_arena(fd: int, obs: Any, action: Any, num_envs: int, slots: int) -> tuple[Arena, Layout, Layout]:
    with socket.socket(fileno=os.dup(fd)) as channel:
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    layouts = Layout(obs), Layout(action)
    try:
        return Arena(*layouts, num_envs, slots, fds[0]), *layouts
    finally:
        os.close(fds[0])


def _failure(order: Order | None, command: Command, error: BaseException) -> Failure:
    ids, index = ((), 0) if order is None else (order.ids, order.index)
    return describe_failure(ids, command.op.name.lower(), error, index, 0)
