"""Starts Unity players and exchanges messages with them, on this machine only.

ML-Agents is the gRPC server and the player is its client. The server of ML-Agents listens on all interfaces without
authentication; this one listens on 127.0.0.1. This module imports ML-Agents, and must not know agents or environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import Any

import grpc
from mlagents_envs.communicator_objects.unity_message_pb2 import UnityMessageProto
from mlagents_envs.communicator_objects.unity_to_external_pb2_grpc import add_UnityToExternalProtoServicer_to_server
from mlagents_envs.environment import UnityEnvironment
from mlagents_envs.exception import UnityException, UnityTimeOutException, UnityWorkerInUseException
from mlagents_envs.rpc_communicator import RpcCommunicator, UnityToExternalServicerImplementation

HOST = "127.0.0.1"
CLOSE_TIMEOUT = 5.0  # seconds that a player has to end when it is closed
_POLL_INTERVAL = 0.1  # seconds between checks whether the player runs; a message is received at once


class LoopbackCommunicator(RpcCommunicator):
    """The server of ML-Agents on 127.0.0.1. Port 0 is any free port, and `port` is then the one that was taken."""

    def create_server(self) -> None:
        """Starts the server.

        Raises:
            UnityWorkerInUseException: the port is in use.
        """
        self.unity_to_external = UnityToExternalServicerImplementation()
        self.server = grpc.server(ThreadPoolExecutor(max_workers=10), options=(("grpc.so_reuseport", 0),))
        add_UnityToExternalProtoServicer_to_server(self.unity_to_external, self.server)
        try:
            port = self.server.add_insecure_port(f"{HOST}:{self.port}")
        except RuntimeError:  # older versions of gRPC return 0 instead
            port = 0
        if not port:
            raise UnityWorkerInUseException(self.worker_id)
        self.port = port
        self.server.start()
        self.is_open = True

    def initialize(self, inputs: Any, poll_callback: Callable[[], None] | None = None) -> Any:
        """Receives the description of the player, sends `inputs`, and receives its first state, which is not used.

        ML-Agents waits for that state without a timeout.
        """
        self.poll_for_timeout(poll_callback)
        connection: Any = self.unity_to_external.parent_conn
        description = connection.recv().unity_output
        message = UnityMessageProto()
        message.header.status = 200
        message.unity_input.CopyFrom(inputs)
        connection.send(message)
        self.poll_for_timeout(poll_callback)
        connection.recv()
        return description

    def poll_for_timeout(self, poll_callback: Callable[[], None] | None = None) -> None:
        """Waits for a message of the player, and calls `poll_callback`, which raises if the player has ended.

        Raises:
            UnityTimeOutException: there was no message within the timeout.
        """
        connection: Any = self.unity_to_external.parent_conn
        deadline = time.monotonic() + self.timeout_wait
        while (remaining := deadline - time.monotonic()) > 0:
            if connection.poll(min(_POLL_INTERVAL, remaining)):
                return
            if poll_callback is not None:
                poll_callback()
        raise UnityTimeOutException(f"no message within {self.timeout_wait:g} s")


class UnityPlayer(UnityEnvironment):
    """A `UnityEnvironment` with a server on 127.0.0.1 only, which notices the exit of its player at once.

    Args:
        file_name: path of the build; None waits for the Unity editor.
        base_port: the port of the server; by default any free one, or that of the editor (5004).
        timeout: seconds to wait for a message of the player.
        kwargs: further arguments of `UnityEnvironment`.

    Raises:
        UnityException: the build cannot be started, or sent no message.
    """

    def __init__(
        self, file_name: str | None = None, *, base_port: int | None = None, timeout: float = 60, **kwargs: Any
    ):
        if base_port is None:
            base_port = 0 if file_name else self.DEFAULT_EDITOR_PORT
        self._communicator = None  # until the server has started
        try:
            super().__init__(file_name, base_port=base_port, timeout_wait=timeout, **kwargs)  # pyright: ignore[reportArgumentType]
        except UnityException:
            self._close(0)
            raise

    def _get_communicator(self, worker_id: int, base_port: int, timeout_wait: float) -> LoopbackCommunicator:  # pyright: ignore[reportIncompatibleMethodOverride]
        communicator = LoopbackCommunicator(worker_id, base_port, timeout_wait)  # pyright: ignore[reportArgumentType]
        self._port = communicator.port  # which the player gets as an argument
        return communicator

    def _close(self, timeout: float | None = None) -> None:
        """Ends the player, by force after `timeout` seconds, and closes the server. A second call does nothing."""
        process, self._process, self._loaded = self._process, None, False
        if self._communicator is not None:
            self._communicator.close()
        if process is not None:
            with suppress(TimeoutExpired):
                process.wait(CLOSE_TIMEOUT if timeout is None else timeout)
            process.kill()
            process.wait()


def registered_build(name: str) -> str:
    """Returns the path of a build in the default registry of ML-Agents, which downloads its list, and the build once.

    Raises:
        ValueError: the registry cannot be downloaded or has no such name.
    """
    from mlagents_envs.registry import default_registry
    from mlagents_envs.registry.binary_utils import get_local_binary_path

    try:
        entry: Any = default_registry[name]
        return get_local_binary_path(name, entry._linux_url)
    except (KeyError, OSError) as error:
        raise ValueError(
            f"Expected a name of ML-Agents' registry and a connection to download it, got {name!r} ({error}). Give the "
            "path of a build instead."
        ) from error
