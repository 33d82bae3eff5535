"""Runs each worker, with its environments, in an actor of a Ray cluster.

A command is one call with one block of bytes (which includes the actions). Its reply is one object of Ray's store
(which includes the rows), and is copied into the caller's batch buffers. The caller waits for all calls at once. Ray
ends the calls of a crashed actor with an error.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections import Counter
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
from ..process_worker import ConstructPayload
from ..protocol import REPLY, ReplyCodec, encode_command, unreadable_reply
from ..worker_options import RayOptions, WorkerOptions
from ..worker_programs import pickle_specs, pickle_worker_spec
from .session import RayPlacement, RaySession
from .worker import RowCodec

_FIRST_POLL_S = 0.02  # seconds to wait for the awaited workers only, which is faster, before all are polled
_SHARED_MIN_BYTES = 100_000  # Ray sends shorter arguments with the call
# prefixes of environment variables that Ray sets for each worker, or that have no effect in a running process
_NOT_INHERITED = ("RAY_", "CUDA_", "LD_")


def _actor_class() -> Any:
    """Returns the class of the actors. Ray pickles it by value, so its constructor runs before any import of vecrl."""

    class VecrlWorker:
        def __init__(self, environment: dict[str, str], folder: str | None, path: list[str]):
            import sys

            os.environ.update(environment)  # before NumPy is imported, which reads the number of threads
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
_PING = Command(Op.CONSTRUCT, -1)  # not a command of the pool: an actor replies to it as soon as it runs


class RayWorkerHandle:
    """The caller's side of one worker.

    Attributes:
        worker_spec, payload: the spec of the worker, and the same pickled.
        seed: seeds the random generators of the next process of this worker.
        ids: its environments.
        actor: Ray's handle; None if there is no actor.
        pid, node: its process id and the id of its node; 0 and "" before they are known.
        deadline: the time at which the actor counts as failed if it has not started, as from `time.monotonic`.
        last_op, steps: the operation of the last command, and the number of step commands sent.
        closed: whether it has closed its environments.
        row_codec: packs and unpacks its rows; None before the batch buffers exist.
    """

    def __init__(self, worker_spec: WorkerSpec, payload: bytes):
        self.worker_spec, self.payload = worker_spec, payload
        self.seed = worker_spec.seed
        self.ids = tuple(range(worker_spec.start, worker_spec.start + worker_spec.num_envs))
        self.actor: Any = None
        self.pid, self.node = 0, ""
        self.deadline = 0.0
        self.last_op, self.steps = Op.CONSTRUCT, 0
        self.closed = False
        self.row_codec: RowCodec | None = None

    def crash(self, text: str, details: str) -> WorkerReply:
        """Returns a reply with the failure of a crashed actor; `details` is Ray's description."""
        command = self.last_op.name.lower()
        failure = Failure(
            self.ids, command, text, details, self.worker_spec.index, self.pid, self.steps, kind="crashed"
        )
        return WorkerReply(failures=[failure])


class RayBackend:
    """A `Backend` with one Ray actor per worker.

    Args:
        worker_specs: one per worker; factories of `__main__` are pickled by value.
        options: `threads_per_worker` and `ray_options`; it ignores the others.

    Raises:
        SerializationError: a worker spec cannot be pickled.
        ValueError, ConnectionError: Ray cannot be used with these options, see `RaySession`.
    """

    def __init__(self, worker_specs: Sequence[WorkerSpec], options: WorkerOptions):
        self._options = options.ray_options or RayOptions()
        self._handles = [RayWorkerHandle(worker_spec, pickle_worker_spec(worker_spec)) for worker_spec in worker_specs]
        self.num_workers = len(worker_specs)
        self._owner = os.getpid()
        # keyed by the reference of the reply, in the order of the calls
        self._pending_calls: dict[Any, tuple[RayWorkerHandle, Command]] = {}
        self._crash_replies: list[Reply] = []  # crashes that `send` found, for the next `receive`
        self._spaces: tuple[Any, ...] = ()  # the extra of `Op.ATTACH`
        self._session = RaySession(self._options)
        self._placement: RayPlacement | None = None
        try:
            self._placement = RayPlacement(self._options, self._session, len(worker_specs))
            self._context = _process_context(options.threads_per_worker, self._session.local)
            _open_backends.add(self)
            for handle in self._handles:
                self._start(handle, self._placement.initial_options(handle.worker_spec.index))
                self._construct(handle)
        except BaseException:  # Ctrl-C, or options that Ray refuses
            self.shutdown()
            raise

    # -- one worker --------------------------------------------------------------------------------

    def _start(self, handle: RayWorkerHandle, actor_options: dict[str, Any], deadline: float | None = None) -> None:
        """Creates the actor."""
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

    def _call(self, handle: RayWorkerHandle, command: Command, data: Any = None) -> None:
        """Calls the actor with a command that is encoded in `data`, or in the object of a reference."""
        if handle.actor is None:  # its crash was reported, or will be
            return
        data = encode_command(command) if data is None else data
        if handle.row_codec is not None and (actions := handle.row_codec.pack_actions(command)):
            data += actions
        handle.last_op = command.op
        handle.steps += command.op == Op.STEP
        self._pending_calls[handle.actor.execute.remote(data)] = handle, command

    def timed_out(self, overdue: set[int]) -> set[int]:
        return overdue

    def kill(self, worker: int) -> bool:
        self._kill(self._handles[worker])
        return True

    def respawn(self, worker: int) -> None:
        self._crash_replies = [reply for reply in self._crash_replies if reply[0] != worker]
        self._respawn(self._handles[worker])

    def _respawn(self, handle: RayWorkerHandle, deadline: float | None = None) -> None:
        """Creates another actor for a worker, on any node that has room for it."""
        assert self._placement is not None
        actor_options = self._placement.replacement_options(
            other_handle.node for other_handle in self._handles if other_handle is not handle
        )
        self._start(handle, actor_options, deadline)
        self._construct(handle)

    def reattach(self, worker: int) -> None:
        self._attach(self._handles[worker])

    def _kill(self, handle: RayWorkerHandle) -> None:
        """Kills an actor and drops its pending calls."""
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
        stored = _store_once([data for _, command, data in encoded if command.op != Op.STEP])
        for handle, command, data in encoded:
            self._call(handle, command, stored.get(data, data))
            if handle.actor is None:  # Ctrl-C may have lost the reply that reported the crash
                self._crash_replies.append((handle.worker_spec.index, -1, handle.crash("its actor is lost", "")))

    def broadcast(self, command: Command) -> None:
        data = encode_command(command)
        for handle in self._handles:
            self._call(handle, command, data)

    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> list[Reply]:
        replies, self._crash_replies = self._crash_replies, []
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
        """Waits for replies. Returns completed calls, in the order in which they were made, and their results.

        There is at least one, unless `seconds` have passed.
        """
        calls = self._pending_calls
        unplaced = [handle.deadline for handle, command in calls.values() if command is _PING]
        if unplaced:
            next_deadline = max(0.0, min(unplaced) - time.monotonic())
            seconds = next_deadline if seconds is None else min(seconds, next_deadline)
        elif awaited:
            awaited_refs = [ref for ref, (handle, _) in calls.items() if handle.worker_spec.index in awaited]
            with suppress(RayError):  # an actor has crashed, or the calls take longer
                return awaited_refs, ray.get(
                    awaited_refs, timeout=_FIRST_POLL_S if seconds is None else min(seconds, _FIRST_POLL_S)
                )
        ray.wait(list(calls), num_returns=1, timeout=seconds)
        fetch_local = (
            seconds != 0.0
        )  # without time to wait, results on other nodes count as ready too; `get` fetches them
        completed_refs, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=fetch_local)
        try:
            return completed_refs, ray.get(completed_refs)
        except RayError:  # some of them failed, so get them one by one
            return completed_refs, map(_result_or_error, completed_refs)

    def _collect(self, completed_refs: Sequence[Any], results: Iterable[Any], replies: list[Reply]) -> None:
        """Converts the results of completed calls to replies."""
        for ref, result in zip(completed_refs, results, strict=True):
            if ref not in self._pending_calls:  # an earlier result has reported the crash of this actor
                continue
            handle, command = self._pending_calls[ref]
            if isinstance(result, Exception):
                self._handle_lost_actor(handle, result, replies)
            elif command is _PING:
                handle.pid, handle.node = result
                del self._pending_calls[ref]
            else:
                replies.append(self._decode_reply(handle, command, memoryview(result)))
                del self._pending_calls[ref]

    def _decode_reply(self, handle: RayWorkerHandle, command: Command, encoded: memoryview) -> Reply:
        seq, size = REPLY.unpack_from(encoded)
        body, rows = encoded[REPLY.size : REPLY.size + size], encoded[REPLY.size + size :]
        handle.closed |= command.op == Op.CLOSE
        if len(rows):
            assert handle.row_codec is not None
            handle.row_codec.unpack(command, rows)
        if not size:
            return handle.worker_spec.index, seq, None
        try:
            reply = ReplyCodec().decode(bytes(body))
        except Exception as error:
            reply = unreadable_reply(
                error, handle.ids, handle.last_op, handle.worker_spec.index, handle.steps, handle.pid
            )
        return handle.worker_spec.index, seq, reply

    def _handle_lost_actor(self, handle: RayWorkerHandle, error: Exception, replies: list[Reply]) -> None:
        """Reports an actor that crashed or cannot be reached.

        If the actor never started because Ray placed it on a node that was lost, it is placed on another node instead.
        """
        assert self._placement is not None
        if not handle.pid and "node has died" in str(error):
            self._kill(handle)
            self._respawn(handle, handle.deadline)
            return
        if handle.node:
            self._placement.avoid(handle.node)
        node_name = f" on node {handle.node[:8]}" if handle.node else ""
        reply = handle.crash(
            f"its actor{node_name} is lost: {_describe_error(error)}", f"{type(error).__name__}: {error}"
        )
        self._kill(handle)
        replies.append((handle.worker_spec.index, -1, reply))

    def _fail_unplaced(self, replies: list[Reply]) -> None:
        """Reports actors that did not start before their deadline, and kills them."""
        now = time.monotonic()
        for handle in [s for s, command in self._pending_calls.values() if command is _PING and s.deadline <= now]:
            assert self._placement is not None
            requested = ", ".join(f"{value:g} {name}" for name, value in self._placement.requested.items()) or "nothing"
            available = {
                k: v for k, v in ray.available_resources().items() if not k.startswith(("node:", "memory", "obj"))
            }
            free = ", ".join(f"{value:g} {name}" for name, value in available.items()) or "nothing"
            text = (
                f"its actor, which requests {requested}, did not start within {self._options.start_timeout:g} s; "
                f"free in the cluster: {free}. Request less (num_cpus=0 shares cores), use fewer workers, or increase "
                "start_timeout"
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
        """Closes the environments of all running actors that have not closed them yet."""
        command = encode_command(Command(Op.CLOSE))
        close_calls = [
            handle.actor.execute.remote(command)
            for handle in handles
            if handle.pid and handle.actor and not handle.closed
        ]
        if close_calls:
            ray.wait(close_calls, num_returns=len(close_calls), timeout=grace)


_open_backends: weakref.WeakSet[RayBackend] = weakref.WeakSet()


@atexit.register  # registered after Ray's own function, so it runs before that
def _close_all() -> None:
    for backend in list(_open_backends):
        backend.shutdown(1.0)


def _process_context(threads: int, local: bool) -> tuple[dict[str, str], str | None, list[str]]:
    """Returns the environment variables, working directory and import path for an actor's process.

    On this machine (`local`), they are those of the caller. In a cluster, only the number of threads is set.
    """
    thread_variables = forkserver.thread_environment(threads)
    if not local:
        return thread_variables, None, []
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    return inherited | thread_variables, os.getcwd(), [entry for entry in sys.path if type(entry) is str]


def _store_once(encoded: Sequence[bytes]) -> dict[bytes, Any]:
    """Puts long commands that several actors get into the object store, from which each node fetches them once.

    Returns:
        The references, by the commands.
    """
    counts = Counter(data for data in encoded if len(data) >= _SHARED_MIN_BYTES)
    return {data: ray.put(data) for data, count in counts.items() if count > 1}


def _result_or_error(ref: Any) -> Any:
    """Returns the result of a call, or the error that it raised."""
    try:
        return ray.get(ref)
    except RayError as error:
        return error


def _describe_error(error: Exception) -> str:
    """Returns Ray's description of a lost actor in one line. The full text is in the failure's `traceback`."""
    if isinstance(error, ActorUnavailableError):
        return "Ray cannot reach it any more"
    lines = [line.strip() for line in str(error).splitlines()]
    if "in its creation task" in str(error):
        return f"it could not start ({lines[-1]}): every node needs the same Python, vecrl and Ray as this process"
    ray_message = [line for line in lines if line.startswith("The actor ")] or lines or [type(error).__name__]
    return ray_message[-1].partition(" Some common causes include")[0]
