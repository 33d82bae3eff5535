"""Runs in an actor: decodes a command, executes it on a `Worker`, and returns the encoded reply and rows."""

from __future__ import annotations

import numpy as np

from ...batch_buffers import BatchBuffers
from ...space_layout import AnySpace, Layout
from ..process_worker import WorkerHost
from ..protocol import ReplyCodec, decode_command
from .row_codec import RowCodec

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
