"""Encodes commands and replies for the pipes between a caller and a worker process.

A command is a header of 16 bytes, its rows, and pickled extra arguments. A reply is a header of 8 bytes and a
pickled `WorkerReply`. Most steps need only the headers, since everything else is in the batch buffers. If all infos are
numbers, their structured array is pickled once and then sent as raw bytes. If workers
run on another interpreter, they send plain data instead of pickles.

This module also reads, writes and waits for pipes.
"""

from __future__ import annotations

import builtins
import os
import pickle
import select
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from ... import errors
from ...cores import num_cores
from ...errors import Failure, SerializationError, pickle_exceptions, unpickle_exceptions
from ..infos import InfoBatch, Infos
from ..large_boxes import dump_by_reference, dump_by_value
from ..space_layout import AnySpace
from ..worker import Command, Op, WorkerInfo, WorkerReply, describe_failure
from .foreign_worker.plain_data import loads
from .worker_options import Wait

COMMAND = struct.Struct("<BBHIII")  # op, flags, slot, seq, number of rows, size of the extra in bytes
REPLY = struct.Struct("<II")  # seq, size of the rest in bytes
ALL_ROWS = 0xFFFFFFFF
_RESET_DONE, _MASKED = 1, 2
_OPS = tuple(Op)
_PICKLED, _RAW = b"P", b"R"
PLAIN = b"V"  # plain data, from a worker on another interpreter
_CHUNK = 1 << 16  # bytes to read at once: the capacity of a pipe


def encode_command(command: Command, dumps: Callable[[object], bytes] = cloudpickle.dumps) -> bytes:
    """Returns a command as bytes; `dumps` pickles its extra.

    Raises:
        SerializationError: its extra cannot be pickled.
    """
    rows = b"" if command.rows is None else array("i", command.rows).tobytes()
    extra = b"" if command.extra is None else _pickle_extra(command, dumps)
    count = ALL_ROWS if command.rows is None else len(command.rows)
    flags = _RESET_DONE * command.reset_done | _MASKED * command.masked
    return COMMAND.pack(command.op, flags, command.slot, command.seq, count, len(extra)) + rows + extra


def _pickle_extra(command: Command, dumps: Callable[[object], bytes]) -> bytes:
    try:
        return dumps(command.extra)
    except Exception as error:
        raise SerializationError(
            f"The arguments of {command.op.name.lower()!r} cannot be pickled and sent to a worker process: "
            f'{type(error).__name__}: {error}. Pass picklable arguments, or use backend="threads".'
        ) from error


def read_command(fd: int) -> Command | None:
    """Reads the next command from a blocking descriptor, with `extra` still pickled. Returns None at its end."""
    header = read_exactly(fd, COMMAND.size)
    if header is None:
        return None
    op, flags, slot, seq, count, size = COMMAND.unpack(header)
    if count == ALL_ROWS and not size:
        return Command(_OPS[op], seq, slot, bool(flags & _RESET_DONE), bool(flags & _MASKED))
    rows = None
    extra = None
    if count != ALL_ROWS:
        data = read_exactly(fd, 4 * count)
        if data is None:
            return None
        rows = array("i", data).tolist()
    if size:
        extra = read_exactly(fd, size)
        if extra is None:
            return None
    return Command(_OPS[op], seq, slot, bool(flags & _RESET_DONE), bool(flags & _MASKED), rows, extra)


def decode_command(data: bytes) -> tuple[Command, memoryview]:
    """Decodes a command, with `extra` still pickled, from the start of `data`. Returns it and the remaining bytes."""
    op, flags, slot, seq, count, size = COMMAND.unpack_from(data)
    view = memoryview(data)[COMMAND.size :]
    length = 0 if count == ALL_ROWS else 4 * count
    rows = None if count == ALL_ROWS else array("i", view[:length].tobytes()).tolist()
    extra = view[length : length + size].tobytes() if size else None
    command = Command(_OPS[op], seq, slot, bool(flags & _RESET_DONE), bool(flags & _MASKED), rows, extra)
    return command, view[length + size :]


class ReplyCodec:
    """Encodes or decodes the replies of one worker.

    It keeps the dtype of the latest infos. It is the same on both sides, since replies arrive in order.
    """

    def __init__(self) -> None:
        self._start = 0
        self._dtype: np.dtype[np.void] | None = None

    def encode(self, seq: int, reply: WorkerReply | None) -> bytes:
        """Returns a reply as bytes. An exception that cannot be pickled and unpickled is sent as text.

        Raises:
            Exception: any exception from pickling the reply.
        """
        if reply is None:
            return REPLY.pack(seq, 0)
        batch = _single_batch(reply)
        if batch is not None and batch.start == self._start and batch.data.dtype == self._dtype:
            body = _RAW + batch.data.tobytes()
        else:
            has_spaces = isinstance(reply.result, WorkerInfo)
            body = _PICKLED + _dumps(replace(reply, failures=pickle_exceptions(reply.failures)), has_spaces)
            self._remember_layout(batch)
        return REPLY.pack(seq, len(body)) + body

    def decode(self, body: bytes) -> WorkerReply:
        """Decodes a reply from bytes, with those exceptions that this process can unpickle."""
        if body[:1] == _RAW:
            return WorkerReply(
                infos=Infos(batches=[InfoBatch(self._start, np.frombuffer(body, self._dtype or bool, offset=1))])
            )
        if body[:1] == PLAIN:
            return parse_plain_reply(body[1:])
        reply: WorkerReply = pickle.loads(memoryview(body)[1:])
        reply.failures = unpickle_exceptions(reply.failures)
        self._remember_layout(_single_batch(reply))
        return reply

    def _remember_layout(self, batch: InfoBatch | None) -> None:
        if batch is not None:
            self._start, self._dtype = batch.start, batch.data.dtype


def _single_batch(reply: WorkerReply) -> InfoBatch | None:
    """Returns the batch of infos if the reply consists of nothing else, otherwise None."""
    infos, final_infos = reply.infos, reply.final_infos
    if (
        len(infos.batches) != 1
        or infos.dicts
        or final_infos
        or reply.objects
        or reply.failures
        or reply.result is not None
    ):
        return None
    return infos.batches[0]


def _dumps(value: object, has_spaces: bool) -> bytes:
    """Pickles a value with pickle, or with the slower cloudpickle if that fails.

    It must not be used for data to a worker: pickle refers to classes in `__main__`, which is another module there.
    """
    try:
        return dump_by_reference(value) if has_spaces else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return dump_by_value(value) if has_spaces else cloudpickle.dumps(value)


def remove_unpicklable(reply: WorkerReply, ids: Sequence[int]) -> list[tuple[int, Exception]]:
    """Removes what cannot be pickled from a reply.

    Args:
        reply: the reply, which is changed.
        ids: the environments of the reply's results, in their order.

    Returns:
        `(env_id, exception)` for each removed value.
    """
    unpicklable: list[tuple[int, Exception]] = []

    def picklable(env_id: int, value: object) -> bool:
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            unpicklable.append((env_id, error))
            return False
        return True

    for infos in (reply.infos, reply.final_infos):
        infos.dicts = [pair for pair in infos.dicts if picklable(*pair)]
    for objects in (reply.objects, reply.final_objects):
        for leaf, pairs in objects.items():
            objects[leaf] = [pair for pair in pairs if picklable(*pair)]
    if isinstance(reply.result, list):
        results: list[Any] = reply.result  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        reply.result = [value if picklable(i, value) else None for i, value in zip(ids, results, strict=True)]
    return unpicklable


def unreadable_reply(error: Exception, ids: Sequence[int], op: Op, worker: int, steps: int, pid: int) -> WorkerReply:
    """Returns a reply with a failure, in place of a reply that this process cannot unpickle."""
    serialization_error = SerializationError(
        f"the reply cannot be unpickled in this process: {type(error).__name__}: {error}. "
        "Return objects of classes that this process can import, or pass infos=False."
    )
    serialization_error.__cause__ = error
    failure = describe_failure(tuple(ids), op.name.lower(), serialization_error, worker, steps)
    return WorkerReply(failures=[replace(failure, pid=pid)])


def read_exactly(fd: int, size: int) -> bytes | None:
    """Reads `size` bytes from a blocking descriptor. Returns None if it ends before."""
    data = os.read(fd, size) if size <= _CHUNK else b""
    if len(data) == size:
        return data
    buffer = bytearray(size)
    buffer[: len(data)] = data
    rest = memoryview(buffer)[len(data) :]
    while rest:
        count = os.readv(fd, [rest])
        if not count:
            return None
        rest = rest[count:]
    return bytes(buffer)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of `data` to a blocking descriptor."""
    sent = os.write(fd, data)
    while sent < len(data):
        sent += os.write(fd, memoryview(data)[sent:])


# -- replies in plain data ------------------------------------------------------------------------


def parse_plain_reply(body: bytes) -> WorkerReply:
    """Returns the reply that a worker on another interpreter has sent."""
    reply = loads(body, _make)
    failures = [_failure(*values) for values in reply.get("failures", ())]
    result: Any = reply.get("result")
    if isinstance(result, list):  # of a call: one pickle for each environment
        items: list[bytes | None] = result
        result = [None if item is None else loads(item, _make) for item in items]
    elif result is not None:
        result = WorkerInfo(**result)
    infos, final_infos = Infos(dicts=reply.get("infos")), Infos(dicts=reply.get("final_infos"))
    return WorkerReply(infos=infos, final_infos=final_infos, failures=failures, result=result)


def _failure(
    ids: list[int], command: str, text: str, trace: str, worker: int, pid: int, step: int, class_name: str
) -> Failure:
    """Returns a failure; its exception is one of the same class if that is vecrl's or built in, else None."""
    exception = None
    cls: object = getattr(errors, class_name, getattr(builtins, class_name, None))
    if isinstance(cls, type) and issubclass(cls, BaseException):
        try:
            exception = cls(text.partition(": ")[2])
        except TypeError:  # it needs other arguments
            exception = None
    return Failure(tuple(ids), command, text, trace, worker, pid, step, exception)


def _make(kind: str, *values: Any) -> AnySpace | EnvSpec | None:
    """Makes a space, or the spec of an environment, from its description."""
    if kind == "space":
        name, *arguments = values
        return _SPACES[name](*arguments)
    env_id, max_episode_steps = values
    try:
        return EnvSpec(env_id, max_episode_steps=max_episode_steps)
    except Exception:  # gymnasium does not accept the name
        return None


def _box(low: np.ndarray, high: np.ndarray, shape: tuple[int, ...], dtype: str) -> AnySpace:
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


def _discrete(n: int, start: int) -> AnySpace:
    return spaces.Discrete(n, start=start)


def _multi_discrete(nvec: np.ndarray, dtype: str) -> AnySpace:
    return spaces.MultiDiscrete(nvec, dtype=np.dtype(dtype).type)


def _dict(items: Sequence[tuple[str, AnySpace]]) -> AnySpace:
    return spaces.Dict(dict(items))


_SPACES: dict[str, Callable[..., AnySpace]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": spaces.MultiBinary,
    "Dict": _dict,
    "Tuple": spaces.Tuple,
}


# -- waiting for a pipe: asleep, or polling it for a while before ----------------------------------
# To wake a sleeping process can take longer than a step of eight environments. A process that polls lets others run
# after every poll.

_SPIN_S = {"sleep": 0.0, "auto": 1e-4, "spin": 2e-2}
_BUSY_S = 2e-4  # seconds without the core after which it counts as needed by others
_PAUSE_S = 1.0  # seconds for which nothing polls then
_yield_core = getattr(os, "sched_yield", partial(time.sleep, 0))


def spin_seconds(wait: Wait, num_workers: int) -> float:
    """Returns for how many seconds to poll before sleeping: 0 if there are more workers than cores."""
    return _SPIN_S[wait] if num_workers <= num_cores() else 0.0


class Spin:
    """Polls for up to `seconds` before its caller sleeps, as long as no other program needs the core.

    Each poll is followed by an offer of the core to other programs. If one takes it, the next poll comes some
    milliseconds late, whereas a process that sleeps is woken at once. So it then stops to poll for a while.

    Args:
        seconds: for how many seconds to poll; 0 for never.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._resume_at = 0.0

    def __call__(self, poll: select.poll) -> Sequence[tuple[int, int]]:
        """Returns the descriptors that are ready, with their events."""
        if not self._seconds:
            return ()
        now = time.monotonic()
        if now < self._resume_at:
            return ()
        end = now + self._seconds
        while not (ready := poll.poll(0)) and now < end:
            _yield_core()
            before, now = now, time.monotonic()
            if now - before > _BUSY_S:
                self._resume_at = now + _PAUSE_S
                return poll.poll(0)
        return ready
