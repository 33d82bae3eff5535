"""Defines the interface of a backend, which sends commands to workers, receives replies and detects crashes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from ..batch_buffers import BatchBuffers
from ..space_layout import Layout
from ..worker import Command, Worker, WorkerReply

Reply = tuple[int, int, WorkerReply | None]
"""The worker, the number of the command, and the reply. If the worker crashed, the number is -1 and the reply has its
failure."""


class Backend(Protocol):
    """Sends commands to the workers 0 to `num_workers - 1`. Its constructor sends `Op.CONSTRUCT` to all (number 0)."""

    num_workers: int

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> BatchBuffers:
        """Allocates the batch buffers and sends `Op.ATTACH` to every worker (number 0)."""
        ...

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        """Sends one command to each of these workers. Does not block if a worker is busy.

        Raises:
            SerializationError: the extra of a command cannot be pickled. Then no command is sent.
        """
        ...

    def broadcast(self, command: Command) -> None:
        """Sends the same command to every worker."""
        ...

    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> list[Reply]:
        """Waits for replies and returns those that have arrived.

        Args:
            timeout: seconds to wait for the first reply; None for no limit.
            awaited: workers with replies that the caller needs. The backend may use it to wait faster.

        Returns:
            At least one reply, or none after a timeout.
        """
        ...

    def timed_out(self, overdue: set[int]) -> set[int]:
        """Returns those of the `overdue` workers that have really started their command and timed out."""
        ...

    def kill(self, worker: int) -> bool:
        """Kills a worker and returns whether that was possible. No reply of it is received any more."""
        ...

    def respawn(self, worker: int) -> None:
        """Starts a new worker in place of a crashed one and sends it `Op.CONSTRUCT` (number 0)."""
        ...

    def reattach(self, worker: int) -> None:
        """Sends `Op.ATTACH` to a worker that `respawn` started (number 0)."""
        ...

    def shutdown(self, grace: float = 0.0) -> list[int]:
        """Ends every worker within about `grace` seconds, kills the rest, and frees all resources.

        A second call does nothing. Returns the workers that could not be killed.
        """
        ...


@runtime_checkable
class StepsInline(Protocol):
    """A `Backend` with workers that execute commands in the caller's thread, so that no reply need be waited for."""

    workers: list[Worker]
