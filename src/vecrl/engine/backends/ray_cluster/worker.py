"""The worker's side of an actor: it takes a command in bytes, carries it out, and answers in bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...batch_buffers import BatchBuffers
from ...space_layout import Layout
from ..process_worker import WorkerHost
from ..protocol import ReplyCodec, decode_command
from .row_codec import RowCodec

# bytes: from here on Ray hands arrays over without a copy, while below it bytes are quicker
_ZERO_COPY_MIN_BYTES = 1 << 16


class RayWorker:
    """Carries out the commands of one worker, whose arena is its own."""

    def __init__(self) -> None:
        self._host = WorkerHost(self._make_buffers)
        self._row_codec: RowCodec | None = None

    def execute(self, data: bytes) -> bytes | np.ndarray:
        """The answer to a command: a report as on a pipe, then the rows."""
        command, actions = decode_command(data)
        slot, command.slot = command.slot, 0
        if self._row_codec is not None:
            self._row_codec.unpack_actions(command, actions)
        report = self._host.execute(command)
        reply = self._host.encode(ReplyCodec(), command, report)  # without memory: an answer may be lost on its way
        if self._row_codec is not None:
            reply += self._row_codec.pack(command)
        command.slot = slot
        return reply if len(reply) < _ZERO_COPY_MIN_BYTES else np.frombuffer(reply, np.uint8)

    def _make_buffers(self, obs: Any, action: Any, num_envs: int) -> tuple[BatchBuffers, Layout, Layout]:
        """One like the caller's with a single slot, where only own rows are ever touched, and so take any memory."""
        worker, layouts = self._host.worker, (Layout(obs), Layout(action))
        assert worker is not None
        buffers = BatchBuffers(*layouts, num_envs, 1)
        start = worker.worker_spec.start
        self._row_codec = RowCodec(buffers, start, start + worker.worker_spec.num_envs)
        return buffers, *layouts
