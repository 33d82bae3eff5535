"""What a pool asks of a backend: how a command arrives at a worker, and how its end is noticed. Nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ..batch_buffers import BatchBuffers
from ..space_layout import Layout
from ..worker import Command, WorkerReply

Reply = tuple[int, int, WorkerReply | None]
"""Whose answer it is, the number of the command, and what it says. A number of -1: the worker is gone, and the report
tells how."""


class Backend(Protocol):
    """Carries commands to workers 0 to `num_workers - 1`. Made with the plans, it begins their construction (seq 0)."""

    num_workers: int
    runs_inline: bool
    """Whether commands are carried out one after another while answers are waited for, each in its own time."""

    def attach(self, obs: Layout, action: Layout, num_envs: int, slots: int) -> BatchBuffers:
        """Make the arena and hand it to every worker (seq 0 again)."""
        ...

    def send(self, commands: Sequence[tuple[int, Command]]) -> None:
        """Have workers carry out a command each; never blocks on a busy worker.

        Raises:
            SerializationError: where one cannot be sent (what goes with it cannot be pickled); then none is.
        """
        ...

    def broadcast(self, command: Command) -> None:
        """Have every worker carry out the same command."""
        ...

    def receive(self, timeout: float | None, awaited: Collection[int] = ()) -> list[Reply]:
        """Answers as they come: at least one, or none where `timeout` seconds (None: no limit) went by.

        `awaited` names workers whose answers the caller cannot do without: a hint.
        """
        ...

    def timed_out(self, overdue: set[int]) -> set[int]:
        """Of those who are waited for and should have answered by now, those who had the time to."""
        ...

    def kill(self, worker: int) -> bool:
        """End one worker by force; whether that could be done. Nothing that it was asked is answered any more."""
        ...

    def respawn(self, worker: int) -> None:
        """Begin to construct another in the place of a worker that is gone (seq 0)."""
        ...

    def reattach(self, worker: int) -> None:
        """Hand the arena to a worker that took another's place (seq 0 again)."""
        ...

    def shutdown(self, grace: float = 0.0) -> list[int]:
        """End every worker within about `grace` seconds, by force if need be, and free all; twice is harmless.

        Returns the workers that could not be ended.
        """
        ...
