"""Runs in a worker process: reads commands, executes them on a `Worker`, and writes the replies."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import resource
import select
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import gymnasium

from ...errors import Failure, SerializationError
from ...random_streams import seed_streams
from ..batch_buffers import BatchBuffers
from ..space_layout import AnySpace, Layout
from ..worker import Command, Op, Worker, WorkerReply, WorkerSpec, describe_failure
from .preloading import importing
from .protocol import ReplyCodec, Spin, read_command, remove_unpicklable, write_all


@dataclass(slots=True)
class ProcessContext:
    """The properties of the caller's process that its workers copy, and the cores to which a worker is pinned.

    Attributes:
        environment: the environment variables.
        folder: the working directory.
        path: the import path.
        cores: the cores to use; None for no change.
        spin_seconds: for how many seconds the worker polls for a command before it sleeps.
        descriptors: how many descriptors it may open (the soft limit).
    """

    environment: dict[str, str]
    folder: str
    path: list[str]
    cores: set[int] | None = None
    spin_seconds: float = 0.0
    descriptors: int = resource.RLIM_INFINITY

    @classmethod
    def of_this_process(cls, threads: dict[str, str], spin_seconds: float = 0.0) -> ProcessContext:
        """Returns the context of this process, with the environment variables `threads` added."""
        path = [entry for entry in sys.path if type(entry) is str]
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls({**os.environ, **threads}, os.getcwd(), path, None, spin_seconds, descriptors)

    def apply(self) -> None:
        """Changes this process to this context."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError):  # more than this process may have
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.descriptors, most))
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)


@dataclass(slots=True)
class ConstructPayload:
    """The extra of `Op.CONSTRUCT`.

    Attributes:
        context: the context to apply to the process; None for no change.
        index: index of the worker.
        ids: its environments.
        worker_spec: the pickled `WorkerSpec`.
        specs: gymnasium registrations, pickled.
        seed: seeds the global random generators of the process.
        preload: modules to import before; those that a fork server has imported are there already.
    """

    context: ProcessContext | None
    index: int
    ids: tuple[int, ...]
    worker_spec: bytes
    specs: bytes
    seed: int
    preload: Sequence[str] = ()


def serve(commands: int, replies: int, memory: int) -> None:
    """Executes commands until `Op.CLOSE`, or until the caller has ended.

    Args:
        commands, replies: descriptors to read from and to write to.
        memory: descriptor of the shared memory for the batch buffers. Its size is set when the spaces are known.
    """
    codec = ReplyCodec()
    host = WorkerHost(partial(_map_buffers, memory))
    gc.freeze()
    poll = select.poll()
    poll.register(commands, select.POLLIN)
    while (command := read_command(commands)) is not None:
        reply = host.execute(command)
        try:
            write_all(replies, host.encode(codec, command, reply))
        except BrokenPipeError:
            return
        if command.op == Op.CLOSE:
            return
        host.spin(poll)


class WorkerHost:
    """Constructs and runs the worker of a process. Every command gets a reply, whatever is raised.

    Args:
        make_buffers: makes the batch buffers and layouts for `Worker` from the extra of `Op.ATTACH`.

    Attributes:
        worker: the worker; None before `Op.CONSTRUCT`.
        spin: polls for a command before the worker sleeps.
    """

    def __init__(self, make_buffers: Callable[..., tuple[BatchBuffers, Layout, Layout]]):
        self.worker: Worker | None = None
        self.spin = Spin(0.0)
        self._payload: ConstructPayload | None = None
        self._make_buffers = make_buffers

    def execute(self, command: Command) -> WorkerReply | None:
        """Executes a command with an extra that is still pickled."""
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
        except BaseException as error:  # without a reply the caller would wait forever
            return WorkerReply(failures=[_failure(self._payload, command, error)])

    def _make_worker(self, construct_payload: ConstructPayload) -> Worker:
        self._payload = construct_payload
        if construct_payload.context is not None:
            construct_payload.context.apply()
            self.spin = Spin(construct_payload.context.spin_seconds)
        with importing():
            for name in construct_payload.preload:
                importlib.import_module(name)
        worker_spec: WorkerSpec = pickle.loads(construct_payload.worker_spec)
        # before environments are constructed, and after the imports of modules with global generators
        seed_streams(construct_payload.seed)
        for spec in pickle.loads(
            construct_payload.specs
        ):  # modules of the worker spec may have registered the same ids
            gymnasium.registry.setdefault(spec.id, spec)
        return Worker(worker_spec)

    def encode(self, codec: ReplyCodec, command: Command, reply: WorkerReply | None) -> bytes:
        """Returns a reply as bytes. A value that cannot be pickled is replaced by a failure of its environment."""
        try:
            return codec.encode(command.seq, reply)
        except Exception as error:
            construct_payload = self._payload
            assert construct_payload is not None
            assert reply is not None
            ids = (
                construct_payload.ids
                if command.rows is None
                else [construct_payload.ids[row] for row in command.rows if row >= 0]
            )
            unpicklable = remove_unpicklable(reply, ids)
            reply.failures += [
                _failure(replace(construct_payload, ids=(i,)), command, _serialization_error(e)) for i, e in unpicklable
            ]
            if not unpicklable:  # the value that cannot be pickled does not belong to one environment
                reply = WorkerReply(failures=[_failure(construct_payload, command, _serialization_error(error))])
            return codec.encode(command.seq, reply)


def _serialization_error(error: Exception) -> SerializationError:
    serialization_error = SerializationError(
        f"a value that it returned cannot be pickled and sent from its worker process: {type(error).__name__}: {error}"
    )
    return serialization_error.with_traceback(error.__traceback__)


def _map_buffers(
    memory: int, obs: AnySpace, action: AnySpace, num_envs: int, slots: int
) -> tuple[BatchBuffers, Layout, Layout]:
    layouts = Layout(obs), Layout(action)
    try:
        return BatchBuffers(*layouts, num_envs, slots, memory), *layouts
    finally:
        os.close(memory)


def _failure(construct_payload: ConstructPayload | None, command: Command, error: BaseException) -> Failure:
    ids, index = ((), 0) if construct_payload is None else (construct_payload.ids, construct_payload.index)
    return describe_failure(ids, command.op.name.lower(), error, index, 0)
