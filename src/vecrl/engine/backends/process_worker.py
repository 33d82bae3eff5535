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

from ...errors import Failure, SerializationError
from ...random_streams import seed_streams
from ..batch_buffers import BatchBuffers
from ..space_layout import Layout
from ..worker import Command, Op, Worker, WorkerReply, WorkerSpec, describe_failure
from .protocol import ReplyCodec, read_command, remove_unpicklable, write_all


@dataclass(slots=True)
class ProcessContext:
    """What makes a worker's process like the caller's: environment variables, working folder, import path; and the
    cores that are its own, if any."""

    environment: dict[str, str]
    folder: str
    path: list[str]
    cores: set[int] | None = None

    @classmethod
    def of_this_process(cls, threads: dict[str, str]) -> ProcessContext:
        return cls({**os.environ, **threads}, os.getcwd(), [entry for entry in sys.path if type(entry) is str])

    def apply(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)


@dataclass(slots=True)
class ConstructPayload:
    """The first command's extra: what the process should be like (None: unchanged), the index and environments,
    the pickled plan, gymnasium's registrations, and the seed of the process's global random generators."""

    context: ProcessContext | None
    index: int
    ids: tuple[int, ...]
    worker_spec: bytes
    specs: bytes
    seed: int


def serve(commands: int, replies: int, memory: int) -> None:
    """Carry out commands until told to close or the caller is gone.

    Args:
        commands, replies: descriptors to read from and to write to.
        memory: descriptor of the arena, which is laid out when the spaces are known.
    """
    reports = ReplyCodec()
    host = WorkerHost(partial(_map_buffers, memory))
    gc.freeze()
    while (command := read_command(commands)) is not None:
        report = host.execute(command)
        try:
            write_all(replies, host.encode(reports, command, report))
        except BrokenPipeError:
            return
        if command.op == Op.CLOSE:
            return


class WorkerHost:
    """A worker in a process of its own: made as it was ordered, and never without an answer.

    Args:
        make_buffers: makes the worker's arena of what comes with `Op.ATTACH`: what `Worker` wants to attach to.

    Attributes:
        worker: it, once it was ordered.
    """

    def __init__(self, make_buffers: Callable[..., tuple[BatchBuffers, Layout, Layout]]):
        self.worker: Worker | None = None
        self._payload: ConstructPayload | None = None
        self._make_buffers = make_buffers

    def execute(self, command: Command) -> WorkerReply | None:
        """Carry out a command whose extra is still in bytes."""
        try:
            if self.worker is not None and command.extra is None:  # the usual case
                pass
            elif command.op == Op.CONSTRUCT:
                self.worker = self._make_worker(pickle.loads(command.extra))
                command.extra = None
            elif command.op == Op.ATTACH:
                command.extra = self._make_buffers(*pickle.loads(command.extra))
            elif command.extra is not None:
                command.extra = pickle.loads(command.extra)
            return None if self.worker is None else self.worker.execute(command)
        except BaseException as error:  # anything but an answer would leave the caller waiting
            return WorkerReply(failures=[_failure(self._payload, command, error)])

    def _make_worker(self, construct_payload: ConstructPayload) -> Worker:
        self._payload = construct_payload
        if construct_payload.context is not None:
            construct_payload.context.apply()
        worker_spec: WorkerSpec = pickle.loads(construct_payload.worker_spec)
        # before environments are made, and after imports that bring generators along
        seed_streams(construct_payload.seed)
        for spec in pickle.loads(construct_payload.specs):  # after the plan, whose modules may register the same
            gymnasium.registry.setdefault(spec.id, spec)
        return Worker(worker_spec)

    def encode(self, reports: ReplyCodec, command: Command, report: WorkerReply | None) -> bytes:
        """The bytes of an answer; what cannot be pickled is left out, and a failure of its environment."""
        try:
            return reports.encode(command.seq, report)
        except Exception as error:
            construct_payload = self._payload
            assert construct_payload is not None
            assert report is not None
            ids = (
                construct_payload.ids
                if command.rows is None
                else [construct_payload.ids[row] for row in command.rows if row >= 0]
            )
            unpicklable = remove_unpicklable(report, ids)
            report.failures += [
                _failure(replace(construct_payload, ids=(i,)), command, _serialization_error(e)) for i, e in unpicklable
            ]
            if not unpicklable:  # it is something else than what an environment said
                report = WorkerReply(failures=[_failure(construct_payload, command, _serialization_error(error))])
            return reports.encode(command.seq, report)


def _serialization_error(error: Exception) -> SerializationError:
    serialization_error = SerializationError(
        f"what it returned cannot be pickled, so it cannot leave its worker process: {type(error).__name__}: {error}"
    )
    return serialization_error.with_traceback(error.__traceback__)


def _map_buffers(memory: int, obs: Any, action: Any, num_envs: int, slots: int) -> tuple[BatchBuffers, Layout, Layout]:
    layouts = Layout(obs), Layout(action)
    try:
        return BatchBuffers(*layouts, num_envs, slots, memory), *layouts
    finally:
        os.close(memory)


def _failure(construct_payload: ConstructPayload | None, command: Command, error: BaseException) -> Failure:
    ids, index = ((), 0) if construct_payload is None else (construct_payload.ids, construct_payload.index)
    return describe_failure(ids, command.op.name.lower(), error, index, 0)
