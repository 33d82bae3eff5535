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

from ...errors import ShipError, packed, unpacked
from ..infos import Block, Infos
from ..worker import Command, Op, Report, describe_failure

COMMAND = struct.Struct("<BBHIII")  # op, flags, slot, seq, number of rows, bytes of extras
ANSWER = struct.Struct("<II")  # seq, bytes of the report
ALL_ROWS = 0xFFFFFFFF
_EAGER, _MASKED = 1, 2
_OPS = tuple(Op)
_PICKLED, _RAW = b"P", b"R"
_CHUNK = 1 << 20  # bytes: `os.read` makes room for all it is asked for, so a little at a time


def encode_command(command: Command) -> bytes:
    """The bytes of a command.

    Raises:
        ShipError: where its extra cannot be pickled.
    """
    rows = b"" if command.rows is None else array("i", command.rows).tobytes()
    extra = b"" if command.extra is None else _pickle_extra(command)
    count = ALL_ROWS if command.rows is None else len(command.rows)
    flags = _EAGER * command.eager | _MASKED * command.masked
    return COMMAND.pack(command.op, flags, command.slot, command.seq, count, len(extra)) + rows + extra


def _pickle_extra(command: Command) -> bytes:
    try:
        return cloudpickle.dumps(command.extra)
    except Exception as error:
        raise ShipError(
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
        return Command(_OPS[op], seq, slot, bool(flags & _EAGER), bool(flags & _MASKED))
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
    return Command(_OPS[op], seq, slot, bool(flags & _EAGER), bool(flags & _MASKED), rows, extra)


def decode_command(data: bytes) -> tuple[Command, memoryview]:
    """A command out of bytes that begin with it, with `extra` still in bytes; and what follows."""
    op, flags, slot, seq, count, size = COMMAND.unpack_from(data)
    view = memoryview(data)[COMMAND.size :]
    length = 0 if count == ALL_ROWS else 4 * count
    rows = None if count == ALL_ROWS else array("i", view[:length].tobytes()).tolist()
    extra = view[length : length + size].tobytes() if size else None
    command = Command(_OPS[op], seq, slot, bool(flags & _EAGER), bool(flags & _MASKED), rows, extra)
    return command, view[length + size :]


class Reports:
    """One end's memory of how the worker's infos look, the same at both ends since answers come in order."""

    def __init__(self) -> None:
        self._start = 0
        self._dtype: np.dtype[Any] | None = None

    def encode(self, seq: int, report: Report | None) -> bytes:
        """The bytes of an answer. Exceptions that do not survive pickling travel as text alone.

        Raises:
            Exception: whatever pickling the report raises.
        """
        if report is None:
            return ANSWER.pack(seq, 0)
        block = _only_block(report)
        if block is not None and block.start == self._start and block.data.dtype == self._dtype:
            body = _RAW + block.data.tobytes()
        else:
            body = _PICKLED + _dumps(replace(report, failures=packed(report.failures)))
            self._remember(block)
        return ANSWER.pack(seq, len(body)) + body

    def decode(self, body: bytes) -> Report:
        """A report out of its bytes, with the exceptions that this process can rebuild."""
        if body[:1] == _RAW:
            return Report(infos=Infos(blocks=[Block(self._start, np.frombuffer(body, self._dtype or bool, offset=1))]))
        report: Report = pickle.loads(memoryview(body)[1:])
        report.failures = unpacked(report.failures)
        self._remember(_only_block(report))
        return report

    def _remember(self, block: Block | None) -> None:
        if block is not None:
            self._start, self._dtype = block.start, block.data.dtype


def _only_block(report: Report) -> Block | None:
    """The block of infos that is all a report has to say, or None."""
    infos, final = report.infos, report.final_infos
    if len(infos.blocks) != 1 or infos.dicts or final or report.objects or report.failures or report.result is not None:
        return None
    return infos.blocks[0]


def _dumps(value: Any) -> bytes:
    """Pickled, the fast way where that will do. (Not for the way to a worker, which has another `__main__`.)"""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return cloudpickle.dumps(value)


def drop_unpicklable(report: Report, ids: Sequence[int]) -> list[tuple[int, Exception]]:
    """Take out of a report what cannot be pickled: whose it was, and why not.

    Args:
        ids: whose the report's results are, in their order.
    """
    lost: list[tuple[int, Exception]] = []

    def keep(env_id: int, value: Any) -> bool:
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            lost.append((env_id, error))
            return False
        return True

    for infos in (report.infos, report.final_infos):
        infos.dicts = [pair for pair in infos.dicts if keep(*pair)]
    for objects in (report.objects, report.final_objects):
        for leaf, pairs in objects.items():
            objects[leaf] = [pair for pair in pairs if keep(*pair)]
    if isinstance(report.result, list):
        results: list[Any] = report.result  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        report.result = [value if keep(i, value) else None for i, value in zip(ids, results, strict=True)]
    return lost


def unreadable(error: Exception, ids: Sequence[int], op: Op, worker: int, steps: int, pid: int) -> Report:
    """What is said in place of a report that this process cannot rebuild."""
    shipped = ShipError(
        f"what they returned cannot be unpickled in this process: {type(error).__name__}: {error}. "
        "Return what this process can import and rebuild, or leave infos out."
    )
    shipped.__cause__ = error
    failure = describe_failure(tuple(ids), op.name.lower(), shipped, worker, steps)
    return Report(failures=[replace(failure, pid=pid)])


def read_exactly(fd: int, size: int) -> bytes | None:
    """`size` bytes of a blocking descriptor; None where it ends before."""
    data = os.read(fd, size) if size else b""
    if len(data) == size:
        return data
    whole = bytearray(data)
    while len(whole) < size:
        more = os.read(fd, min(size - len(whole), _CHUNK))
        if not more:
            return None
        whole += more
    return bytes(whole)


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    sent = os.write(fd, data)
    while sent < len(data):
        sent += os.write(fd, memoryview(data)[sent:])
