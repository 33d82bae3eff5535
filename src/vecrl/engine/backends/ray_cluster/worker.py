"""Runs in an actor: decodes a command, executes it on a `Worker`, and returns the encoded reply and rows.

Actions are sent, and results returned, as one block of raw bytes, array after array, with only the rows of the command.
Both sides know the layout, so it is not sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...batch_buffers import BatchBuffers
from ...space_layout import AnySpace, DType, Layout
from ...worker import Command, Op
from ..process_worker import WorkerHost
from ..protocol import ReplyCodec, decode_command

# bytes: from this size on, Ray passes arrays without a copy; below it, `bytes` are faster
_ZERO_COPY_MIN_BYTES = 1 << 16


class RayWorker:
    """Executes the commands of one worker, with batch buffers in the actor's own memory."""

    def __init__(self) -> None:
        self._host = WorkerHost(self._make_buffers)
        self._row_codec: RowCodec | None = None

    def execute(self, data: bytes) -> bytes | np.ndarray:
        """Executes an encoded command. Returns the reply, encoded as for a pipe, followed by the rows."""
        command, actions = decode_command(data)
        slot, command.slot = command.slot, 0
        if self._row_codec is not None:
            self._row_codec.unpack_actions(command, actions)
        reply = self._host.execute(command)
        encoded = self._host.encode(ReplyCodec(), command, reply)  # a new codec each time, since a reply may be lost
        if self._row_codec is not None:
            encoded += self._row_codec.pack(command)
        command.slot = slot
        return encoded if len(encoded) < _ZERO_COPY_MIN_BYTES else np.frombuffer(encoded, np.uint8)

    def _make_buffers(self, obs: AnySpace, action: AnySpace, num_envs: int) -> tuple[BatchBuffers, Layout, Layout]:
        """Makes buffers like the caller's, with one slot. Only the worker's own rows are used and take up memory."""
        worker, layouts = self._host.worker, (Layout(obs), Layout(action))
        assert worker is not None
        buffers = BatchBuffers(*layouts, num_envs, 1)
        start = worker.worker_spec.start
        self._row_codec = RowCodec(buffers, start, start + worker.worker_spec.num_envs)
        return buffers, *layouts


Bytes = bytes | memoryview | np.ndarray
RowSelection = slice | np.ndarray


class RowCodec:
    """Packs and unpacks the rows of one worker, on one side.

    Args:
        buffers: the batch buffers of this side.
        start, stop: the worker's rows in them; `stop` is exclusive.
    """

    def __init__(self, buffers: BatchBuffers, start: int, stop: int):
        self._count = stop - start
        self._rows = buffers.rows(start, stop)
        self._reset_mask = buffers.reset_mask[start:stop]
        self._actions = [leaf[start:stop] for leaf in buffers.actions if leaf is not None]

    def pack_actions(self, command: Command) -> bytes:
        """Packs the actions of a command's rows, and its mask. Empty if the command is not a step."""
        if command.op != Op.STEP:
            return b""
        selection, _ = self._row_selection(command.rows)
        parts = [leaf[selection] for leaf in self._actions]
        return _join([*parts, self._reset_mask] if command.masked else parts)

    def unpack_actions(self, command: Command, data: Bytes) -> None:
        """Writes the packed actions and the mask of a command into the buffers."""
        if command.op == Op.STEP:
            selection, count = self._row_selection(command.rows)
            reader = _Reader(data)
            for leaf in self._actions:
                leaf[selection] = reader.read((count, *leaf.shape[1:]), leaf.dtype)
            if command.masked:
                self._reset_mask[:] = reader.read(self._reset_mask.shape, self._reset_mask.dtype)

    def pack(self, command: Command) -> bytes:
        """Packs the rows that a reset or step wrote into the command's slot, with final observations of reset rows."""
        if command.op not in (Op.STEP, Op.RESET):
            return b""
        selection, _ = self._row_selection(command.rows)
        slot = self._rows[command.slot]
        final_rows = self._final_rows(command.slot, selection)
        final_obs = [leaf[final_rows] for leaf in slot.final_obs if leaf is not None] if len(final_rows) else []
        return _join([slot.flags[:, selection], *[leaf[selection] for leaf in self._leaves(command.slot)], *final_obs])

    def unpack(self, command: Command, data: Bytes) -> None:
        """Writes packed results into the command's slot."""
        if command.op not in (Op.STEP, Op.RESET):
            return
        selection, count = self._row_selection(command.rows)
        reader, slot = _Reader(data), self._rows[command.slot]
        slot.flags[:, selection] = reader.read((3, count), slot.flags.dtype)
        for leaf in self._leaves(command.slot):
            leaf[selection] = reader.read((count, *leaf.shape[1:]), leaf.dtype)
        final_rows = self._final_rows(command.slot, selection)
        if len(final_rows):
            for leaf in slot.final_obs:
                if leaf is not None:
                    leaf[final_rows] = reader.read((len(final_rows), *leaf.shape[1:]), leaf.dtype)

    def _row_selection(self, rows: Sequence[int] | None) -> tuple[RowSelection, int]:
        """Returns an index of a command's rows, and their number."""
        if rows is None:
            return slice(None), self._count
        return np.array([row if row >= 0 else ~row for row in rows], np.int64), len(rows)

    def _leaves(self, slot_index: int) -> Iterator[np.ndarray]:
        slot = self._rows[slot_index]
        yield from (slot.reward, slot.returns, slot.lengths)
        yield from (leaf for leaf in slot.obs if leaf is not None)

    def _final_rows(self, slot: int, selection: RowSelection) -> np.ndarray:
        """Returns those rows of `selection` in which an episode ended and which were reset in the same step."""
        terminated, truncated, was_reset = self._rows[slot].flags[:, selection]
        positions = ((terminated | truncated) & was_reset).nonzero()[0]
        return positions if isinstance(selection, slice) else selection[positions]


class _Reader:
    """Reads arrays from a block of bytes, one after another."""

    def __init__(self, data: Bytes):
        self._data = data
        self._offset = 0

    def read(self, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        count = math.prod(shape)
        values = np.frombuffer(self._data, dtype, count, self._offset) if count else np.empty(0, dtype)
        self._offset += count * dtype.itemsize
        return values.reshape(shape)


def _join(parts: Sequence[np.ndarray]) -> bytes:
    return b"".join([part.tobytes() for part in parts])
