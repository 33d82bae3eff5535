"""The worker's side of an actor: it takes a command in bytes, carries it out, and answers in bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arena import Arena
from ..layout import Layout
from .child import Host
from .freight import Freight
from .wire import Reports, decode_command

_LARGE = 1 << 16  # bytes: from here on Ray hands arrays over without a copy, while below it bytes are quicker


class Tenant:
    """Carries out the commands of one worker, whose arena is its own."""

    def __init__(self) -> None:
        self._host = Host(self._make_arena)
        self._freight: Freight | None = None

    def execute(self, data: bytes) -> bytes | np.ndarray:
        """The answer to a command: a report as on a pipe, then the rows."""
        command, actions = decode_command(data)
        slot, command.slot = command.slot, 0
        if self._freight is not None:
            self._freight.take_actions(command, actions)
        report = self._host.execute(command)
        answer = self._host.encode(Reports(), command, report)  # without memory: an answer may be lost on its way
        if self._freight is not None:
            answer += self._freight.pack(command)
        command.slot = slot
        return answer if len(answer) < _LARGE else np.frombuffer(answer, np.uint8)

    def _make_arena(self, obs: Any, action: Any, num_envs: int) -> tuple[Arena, Layout, Layout]:
        """One like the caller's with a single slot, where only own rows are ever touched, and so take any memory."""
        worker, layouts = self._host.worker, (Layout(obs), Layout(action))
        assert worker is not None
        arena = Arena(*layouts, num_envs, 1)
        start = worker.plan.start
        self._freight = Freight(arena, start, start + worker.plan.num_envs)
        return arena, *layouts
