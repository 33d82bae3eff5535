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

from ....errors import Failure
from ....seeding import seed_for
from ...batch_buffers import BatchBuffers
from ...space_layout import Layout
from ...worker import Command, Op, WorkerReply, WorkerSpec
from .. import forkserver
from ..base import Reply
from ..pickling import pickle_worker_spec, pickle_specs
from ..process_worker import ConstructPayload
from ..protocol import REPLY, ReplyCodec, encode_command, unreadable_report
from .options import RayOptions
from .placement import RayPlacement
from .row_codec import RowCodec
from .session import RaySession

_FIRST_POLL_S = 0.02  # seconds: so long some workers may be waited for before all are watched
_NOT_INHERITED = ("RAY_", "CUDA_", "LD_")  # environment variables that Ray sets for each worker, or that come too late


def _actor_class() -> Any:
    """What Ray makes an actor of. It travels by value, so that nothing is imported there before its first line."""

    class VecrlWorker:
        def __init__(self, environment: dict[str, str], folder: str | None, path: list[str]):
            import sys

            os.environ.update(environment)  # before NumPy asks how many threads it may have
            if folder is not None:
                os.chdir(folder)
            sys.path[:] = path + [entry for entry in sys.path if entry not in path]
            from vecrl.engine.backends.ray_cluster.worker import RayWorker

            self._worker = RayWorker()

        def ping(self) -> tuple[int, str]:
            return os.getpid(), ray.get_runtime_context().get_node_id()

        def execute(self, data: bytes) -> Any:
            return self._worker.execute(data)

    return VecrlWorker


_ACTOR = ray.remote(_actor_class())
_PING = Command(Op.CONSTRUCT, -1)  # no command of the pool's: what an actor answers as soon as it lives


class RayWorkerHandle:
    """The caller's side of one worker.

    Attributes:
        worker_spec: what the worker is to be; `payload`, in bytes.
        seed: of the random generators of the process that is made next.
        ids: its environments.
        actor: Ray's handle; None while there is none.
        pid, node: where it lives; 0 and "" before that is known.
        deadline: until when that must be known.
        doing: what it was last asked for; `steps`, how many steps.
        closed: whether it closed its environments.
        row_codec: what packs and unpacks its rows, once there is an arena.
    """

    def __init__(self, worker_spec: WorkerSpec, payload: bytes):
        self.worker_spec, self.payload = worker_spec, payload
        self.seed = worker_spec.seed
        self.ids = tuple(range(worker_spec.start, worker_spec.start + worker_spec.num_envs))
        self.actor: Any = None
        self.pid, self.node = 0, ""
        self.deadline = 0.0
        self.doing, self.steps = Op.CONSTRUCT, 0
        self.closed = False
        self.row_codec: RowCodec | None = None

    def crash(self, text: str, details: str) -> WorkerReply:
        """The report of its end, and what Ray tells of it."""
        command = self.doing.name.lower()
        failure = Failure(
            self.ids, command, text, details, self.worker_spec.index, self.pid, self.steps, kind="crashed"
        )
        return WorkerReply(failures=[failure])


class RayBackend:
    """See `Backend`.

    Args:
        worker_specs: one a worker; their factories are pickled by value where they must be.
        threads: how many threads numerical libraries may use in a worker.
        options: which Ray, and what an actor asks of a node.

    Raises:
        SerializationError: where a plan cannot be pickled.
        ValueError, ConnectionError: Ray cannot be had as the options say.
    """

    runs_inline = False

    def __init__(self, worker_specs: Sequence[WorkerSpec], threads: int = 1, options: RayOptions | None = None):
        self._options = options or RayOptions()
        self._handles = [RayWorkerHandle(worker_spec, pickle_worker_spec(worker_spec)) for worker_spec in worker_specs]
        self.num_workers = len(worker_specs)
        self._owner = os.getpid()
        # under way, by the reference of the answer, in their order
        self._pending_calls: dict[Any, tuple[RayWorkerHandle, Command]] = {}
        self._kept: list[Reply] = []  # ends of actors, reported again
        self._spaces: tuple[Any, ...] = ()  # what workers attach to
        self._session = RaySession(self._options)
        self._placement: RayPlacement | None = None
        try:
            self._placement = RayPlacement(self._options, self._session, len(worker_specs))
            self._context = _process_context(threads, self._session.local)
            _open_backends.add(self)
            for handle in self._handles:
                self._start(handle, self._placement.initial_options(handle.worker_spec.index))
                self._construct(handle)
        except BaseException:  # Ctrl-C, or options that Ray refuses
            self.shutdown()
            raise

    # -- one worker --------------------------------------------------------------------------------

    def _start(self, handle: RayWorkerHandle, actor_options: dict[str, Any], deadline: float | None = None) -> None:
        """Have Ray make the actor."""
        handle.pid, handle.node, handle.closed = 0, "", False
        handle.deadline = time.monotonic() + self._options.start_timeout if deadline is None else deadline
        handle.actor = _ACTOR.options(
            max_restarts=0, max_task_retries=0, enable_task_events=False, **actor_options
        ).remote(*self._context)
        self._pending_calls[handle.actor.ping.remote()] = handle, _PING

    def _construct(self, handle: RayWorkerHandle) -> None:
        construct_payload = ConstructPayload(
            None, handle.worker_spec.index, handle.ids, handle.payload, pickle_specs(handle.payload), handle.seed
        )
        handle.seed = seed_for(handle.seed, handle.worker_spec.index)  # a restart must not repeat the random numbers
        self._call(handle, Command(Op.CONSTRUCT, extra=construct_payload))

    def _attach(self, handle: RayWorkerHandle) -> None:
        self._call(handle, Command(Op.ATTACH, extra=self._spaces))

    def _call(self, handle: RayWorkerHandle, command: Command, data: bytes | None = None) -> None:
        if handle.actor is None:  # its end was told, or is about to be
            return
        data = encode_command(command) if data is None else data
        if handle.row_codec is not None:
            data += handle.row_codec.pack_actions(command)
        handle.doing = command.op
        handle.steps += command.op == Op.STEP
        self._pending_calls[handle.actor.execute.remote(data)] = handle, command

    def timed_out(self, overdue: set[int]) -> set[int]:
        return overdue

    def kill(self, worker: int) -> bool:
        self._kill(self._handles[worker])
        return True

    def respawn(self, worker: int) -> None:
        self._kept = [reply for reply in self._kept if reply[0] != worker]
        self._respawn(self._handles[worker])

    def _respawn(self, handle: RayWorkerHandle, deadline: float | None = None) -> None:
        """Have another actor made, wherever there is a node for it."""
        assert self._placement is not None
        actor_options = self._placement.replacement_options(
            other_handle.node for other_handle in self._handles if other_handle is not handle
        )
        self._start(handle, actor_options, deadline)
        self._construct(handle)

    def reattach(self, worker: int) -> None:
        self._attach(self._handles[worker])

    def _kill(self, handle: RayWorkerHandle) -> None:
        """End an actor by force, and expect nothing of it any more."""
        self._pending_calls = {ref: call for ref, call in self._pending_calls.items() if call[0] is not handle}
        actor, handle.actor = handle.actor, None
        if actor is not None and self._session.alive:
            ray.kill(actor, no_restart=True)

    # -- all of them -------------------------------------------------------------------------------

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> BatchBuffers:
        buffers = BatchBuffers(obs, action, num_envs, slots)
        self._spaces = obs.space, action.space, num_envs
        for handle in self._handles:
            handle.row_codec = RowCodec(buffers, handle.ids[0], handle.ids[-1] + 1)
            self._attach(handle)
        return buffers

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        encoded = [(self._handles[worker], command, encode_command(command)) for worker, command in commands]
        for handle, command, data in encoded:
            self._call(handle, command, data)
            if handle.actor is None:  # what was said of its end may have been lost as Ctrl-C came
                self._kept.append((handle.worker_spec.index, -1, handle.crash("its actor is gone", "")))

    def broadcast(self, command: Command) -> None:
        data = encode_command(command)
        for handle in self._handles:
            self._call(handle, command, data)

    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> list[Reply]:
        replies, self._kept = self._kept, []
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._pending_calls and not replies:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._collect(*self._wait(remaining, awaited), replies)
            awaited = ()
            self._fail_unplaced(replies)
            if deadline is not None and time.monotonic() >= deadline:
                break
        return replies

    def _wait(self, seconds: float | None, awaited: Collection[int]) -> tuple[list[Any], Iterable[Any]]:
        """The calls that were answered, in the order in which they were made, and their replies; at least one, unless
        time is over."""
        calls = self._pending_calls
        unplaced = [handle.deadline for handle, command in calls.values() if command is _PING]
        if unplaced:
            next_deadline = max(0.0, min(unplaced) - time.monotonic())
            seconds = next_deadline if seconds is None else min(seconds, next_deadline)
        elif awaited:
            awaited_refs = [ref for ref, (handle, _) in calls.items() if handle.worker_spec.index in awaited]
            with suppress(RayError):  # one is gone, or they take longer
                return awaited_refs, ray.get(
                    awaited_refs, timeout=_FIRST_POLL_S if seconds is None else min(seconds, _FIRST_POLL_S)
                )
        ray.wait(list(calls), num_returns=1, timeout=seconds)
        here = seconds != 0.0  # else what is ready on another node counts too, and is fetched
        completed_refs, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=here)
        try:
            return completed_refs, ray.get(completed_refs)
        except RayError:  # some of them failed: one by one
            return completed_refs, map(_result_or_error, completed_refs)

    def _collect(self, completed_refs: Sequence[Any], results: Iterable[Any], replies: list[Reply]) -> None:
        """Make answers of what was answered."""
        for ref, result in zip(completed_refs, results, strict=True):
            if ref not in self._pending_calls:  # of an actor whose end was told by an earlier one
                continue
            handle, command = self._pending_calls[ref]
            if isinstance(result, Exception):
                self._handle_lost_actor(handle, result, replies)
            elif command is _PING:
                handle.pid, handle.node = result
                del self._pending_calls[ref]
            else:
                replies.append(self._decode_reply(handle, command, result))
                del self._pending_calls[ref]

    def _decode_reply(self, handle: RayWorkerHandle, command: Command, reply: Any) -> Reply:
        seq, size = REPLY.unpack_from(reply)
        body, rows = reply[REPLY.size : REPLY.size + size], reply[REPLY.size + size :]
        handle.closed |= command.op == Op.CLOSE
        if len(rows):
            assert handle.row_codec is not None
            handle.row_codec.unpack(command, rows)
        if not size:
            return handle.worker_spec.index, seq, None
        try:
            report = ReplyCodec().decode(bytes(body))
        except Exception as error:
            report = unreadable_report(
                error, handle.ids, handle.doing, handle.worker_spec.index, handle.steps, handle.pid
            )
        return handle.worker_spec.index, seq, report

    def _handle_lost_actor(self, handle: RayWorkerHandle, error: Exception, replies: list[Reply]) -> None:
        """An actor is gone, or cannot be reached, which is the same to the caller; but one that was sent to a node of
        which Ray did not know that it was gone never began, and is sent elsewhere."""
        assert self._placement is not None
        if not handle.pid and "node has died" in str(error):
            self._kill(handle)
            self._respawn(handle, handle.deadline)
            return
        if handle.node:
            self._placement.avoid(handle.node)
        node_name = f" on node {handle.node[:8]}" if handle.node else ""
        report = handle.crash(
            f"its actor{node_name} is gone: {_describe_error(error)}", f"{type(error).__name__}: {error}"
        )
        self._kill(handle)
        replies.append((handle.worker_spec.index, -1, report))

    def _fail_unplaced(self, replies: list[Reply]) -> None:
        """Take actors that found no place in time for lost."""
        now = time.monotonic()
        for handle in [s for s, command in self._pending_calls.values() if command is _PING and s.deadline <= now]:
            assert self._placement is not None
            requested = ", ".join(f"{value:g} {name}" for name, value in self._placement.requested.items()) or "nothing"
            available = {
                k: v for k, v in ray.available_resources().items() if not k.startswith(("node:", "memory", "obj"))
            }
            free = ", ".join(f"{value:g} {name}" for name, value in available.items()) or "nothing"
            text = (
                f"its actor, which claims {requested}, did not begin within {self._options.start_timeout:g} s; free in "
                f"the cluster: {free}. Claim less (num_cpus=0 shares cores), take fewer workers, or wait longer"
            )
            replies.append((handle.worker_spec.index, -1, handle.crash(text, "")))
            self._kill(handle)

    def shutdown(self, grace: float = 0.0) -> list[int]:
        if os.getpid() != self._owner:  # a fork of the owner must not end the owner's workers
            return []
        handles, self._handles = self._handles, []
        _open_backends.discard(self)
        try:
            if self._session.alive and grace > 0:
                self._close_environments(handles, grace)
        finally:
            for handle in handles:
                self._kill(handle)
            self._pending_calls.clear()
            if self._placement is not None and self._session.alive:
                self._placement.release()
            self._session.release()
        return []

    def _close_environments(self, handles: Sequence[RayWorkerHandle], grace: float) -> None:
        """Have environments closed, as far as nobody did and they are there to do it."""
        command = encode_command(Command(Op.CLOSE))
        close_calls = [
            handle.actor.execute.remote(command)
            for handle in handles
            if handle.pid and handle.actor and not handle.closed
        ]
        if close_calls:
            ray.wait(close_calls, num_returns=len(close_calls), timeout=grace)


_open_backends: weakref.WeakSet[RayBackend] = weakref.WeakSet()


@atexit.register  # later than Ray's own, and so run before it
def _close_all() -> None:
    for backend in list(_open_backends):
        backend.shutdown(1.0)


def _process_context(threads: int, local: bool) -> tuple[dict[str, str], str | None, list[str]]:
    """What makes an actor's process like the caller's: environment variables, working folder and import path, all of
    which mean something on this machine alone; and the number of threads, wherever it is."""
    thread_variables = forkserver.thread_environment(threads)
    if not local:
        return thread_variables, None, []
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    return inherited | thread_variables, os.getcwd(), [entry for entry in sys.path if type(entry) is str]


def _result_or_error(ref: Any) -> Any:
    """What a call returned, or why it did not."""
    try:
        return ray.get(ref)
    except RayError as error:
        return error


def _describe_error(error: Exception) -> str:
    """What Ray says of an end, in one line; the rest is in the traceback's place."""
    if isinstance(error, ActorUnavailableError):
        return "Ray cannot reach it any more"
    lines = [line.strip() for line in str(error).splitlines()]
    if "in its creation task" in str(error):
        return f"it could not begin ({lines[-1]}): every node needs the same Python, vecrl and Ray as this process"
    ray_message = [line for line in lines if line.startswith("The actor ")] or lines or [type(error).__name__]
    return ray_message[-1].partition(" Some common causes include")[0]
