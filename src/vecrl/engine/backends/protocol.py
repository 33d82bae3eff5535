"""How commands and answers look on the pipes between a caller and a worker process.

A command is 16 bytes, then its rows, then pickled extras; an answer is 8 bytes, then a report. Most steps have neither
rows nor extras nor a report: 16 bytes go there, 8 come back, and everything else is in the arena. Where infos are
all numbers, their structured array is pickled once and sent as it lies in memory from then on.
"""

from __future__ import annotations

import os
import pickle
import struct
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np

from ...errors import SerializationError, pickle_exceptions, unpickle_exceptions
from ..infos import InfoBatch, Infos
from ..worker import Command, Op, WorkerReply, describe_failure

COMMAND = struct.Struct("<BBHIII")  # op, flags, slot, seq, number of rows, bytes of extras
REPLY = struct.Struct("<II")  # seq, bytes of the report
ALL_ROWS = 0xFFFFFFFF
_RESET_DONE, _MASKED = 1, 2
_OPS = tuple(Op)
_PICKLED, _RAW = b"P", b"R"
_CHUNK = 1 << 20  # bytes: `os.read` makes room for all it is asked for, so a little at a time


def encode_command(command: Command) -> bytes:
    """The bytes of a command.

    Raises:
        SerializationError: where its extra cannot be pickled.
    """
    rows = b"" if command.rows is None else array("i", command.rows).tobytes()
    extra = b"" if command.extra is None else _pickle_extra(command)
    count = ALL_ROWS if command.rows is None else len(command.rows)
    flags = _RESET_DONE * command.reset_done | _MASKED * command.masked
    return COMMAND.pack(command.op, flags, command.slot, command.seq, count, len(extra)) + rows + extra


def _pickle_extra(command: Command) -> bytes:
    try:
        return cloudpickle.dumps(command.extra)
    except Exception as error:
        raise SerializationError(
            f"What goes with {command.op.name.lower()!r} cannot be pickled, so no worker process can have it: "
            f'{type(error).__name__}: {error}. Give what can be pickled, or use backend="threads".'
        ) from error


def read_command(fd: int) -> Command | None:
    """The next command of a blocking descriptor, with `extra` still in bytes; None where the caller is gone."""
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
    """A command out of bytes that begin with it, with `extra` still in bytes; and what follows."""
    op, flags, slot, seq, count, size = COMMAND.unpack_from(data)
    view = memoryview(data)[COMMAND.size :]
    length = 0 if count == ALL_ROWS else 4 * count
    rows = None if count == ALL_ROWS else array("i", view[:length].tobytes()).tolist()
    extra = view[length : length + size].tobytes() if size else None
    command = Command(_OPS[op], seq, slot, bool(flags & _RESET_DONE), bool(flags & _MASKED), rows, extra)
    return command, view[length + size :]


class ReplyCodec:
    """One end's memory of how the worker's infos look, the same at both ends since answers come in order."""

    def __init__(self) -> None:
        self._start = 0
        self._dtype: np.dtype[Any] | None = None

    def encode(self, seq: int, reply: WorkerReply | None) -> bytes:
        """The bytes of an answer. Exceptions that do not survive pickling travel as text alone.

        Raises:
            Exception: whatever pickling the report raises.
        """
        if reply is None:
            return REPLY.pack(seq, 0)
        batch = _single_batch(reply)
        if batch is not None and batch.start == self._start and batch.data.dtype == self._dtype:
            body = _RAW + batch.data.tobytes()
        else:
            body = _PICKLED + _dumps(replace(reply, failures=pickle_exceptions(reply.failures)))
            self._remember_layout(batch)
        return REPLY.pack(seq, len(body)) + body

    def decode(self, body: bytes) -> WorkerReply:
        """A report out of its bytes, with the exceptions that this process can rebuild."""
        if body[:1] == _RAW:
            return WorkerReply(
                infos=Infos(batches=[InfoBatch(self._start, np.frombuffer(body, self._dtype or bool, offset=1))])
            )
        reply: WorkerReply = pickle.loads(memoryview(body)[1:])
        reply.failures = unpickle_exceptions(reply.failures)
        self._remember_layout(_single_batch(reply))
        return reply

    def _remember_layout(self, batch: InfoBatch | None) -> None:
        if batch is not None:
            self._start, self._dtype = batch.start, batch.data.dtype


def _single_batch(reply: WorkerReply) -> InfoBatch | None:
    """The block of infos that is all a report has to say, or None."""
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


def _dumps(value: Any) -> bytes:
    """Pickled, the fast way where that will do. (Not for the way to a worker, which has another `__main__`.)"""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return cloudpickle.dumps(value)


def remove_unpicklable(reply: WorkerReply, ids: Sequence[int]) -> list[tuple[int, Exception]]:
    """Take out of a report what cannot be pickled: whose it was, and why not.

    Args:
        ids: whose the report's results are, in their order.
    """
    unpicklable: list[tuple[int, Exception]] = []

    def picklable(env_id: int, value: Any) -> bool:
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


def unreadable_report(error: Exception, ids: Sequence[int], op: Op, worker: int, steps: int, pid: int) -> WorkerReply:
    """What is said in place of a report that this process cannot rebuild."""
    serialization_error = SerializationError(
        f"what they returned cannot be unpickled in this process: {type(error).__name__}: {error}. "
        "Return what this process can import and rebuild, or leave infos out."
    )
    serialization_error.__cause__ = error
    failure = describe_failure(tuple(ids), op.name.lower(), serialization_error, worker, steps)
    return WorkerReply(failures=[replace(failure, pid=pid)])


def read_exactly(fd: int, size: int) -> bytes | None:
    """`size` bytes of a blocking descriptor; None where it ends before."""
    data = os.read(fd, size) if size else b""
    if len(data) == size:
        return data
    buffer = bytearray(data)
    while len(buffer) < size:
        chunk = os.read(fd, min(size - len(buffer), _CHUNK))
        if not chunk:
            return None
        buffer += chunk
    return bytes(buffer)


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    sent = os.write(fd, data)
    while sent < len(data):
        sent += os.write(fd, memoryview(data)[sent:])
