"""Manages this process's connection to Ray. Ray allows one connection per process.

If the process is connected already, that connection is used and left unchanged. Otherwise a connection is made here and
is closed with the last pool that uses it. A Ray that is started here logs nothing and uses the loopback address only.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants

from .options import RayOptions

_lock = threading.RLock()
_users: list[RaySession] = []  # the sessions that use a connection made here
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


class RaySession:
    """One pool's use of this process's connection to Ray. Connects first if the process is not connected.

    Args:
        options: the address, runtime environment and memory of the connection.

    Attributes:
        local: whether it is a private Ray of this process.

    Raises:
        ValueError: the process is connected already, and the options have another address or a folder to upload.
        ConnectionError: there is no cluster at the address.
    """

    # the arguments of the connection made here
    address = ""
    runtime_env: Mapping[str, Any] = {}

    def __init__(self, options: RayOptions):
        with _lock:
            if not ray.is_initialized():
                _users.clear()  # a connection that they used was closed elsewhere
                RaySession.address = options.address or os.environ.get("RAY_ADDRESS") or "local"
                RaySession.runtime_env = dict(options.runtime_env)
                _connect(RaySession.address, options)
                _users.append(self)
            else:
                _check_address(options.address, bool(_users))
                self._check_folders(options)
                if _users:
                    _users.append(self)
            self.local = bool(_users) and RaySession.address == "local"

    def ships_runtime_env(self, options: RayOptions) -> bool:
        """Returns whether the connection was made with the options' `runtime_env`, so that every actor has it."""
        return bool(_users) and RaySession.runtime_env == options.runtime_env

    def _check_folders(self, options: RayOptions) -> None:
        """Checks that the options have no folder to upload. Ray uploads folders only when a process connects."""
        env = options.runtime_env
        folders = [*map(str, (env.get("working_dir"), *env.get("py_modules", ())))]
        if any(os.path.isdir(folder) for folder in folders) and not self.ships_runtime_env(options):
            raise ValueError(
                "Expected a process that is not connected to Ray, since folders are uploaded only when it connects, "
                "got a connected one. Pass the folders to ray.init(runtime_env=...), or close what uses Ray first."
            )

    @property
    def alive(self) -> bool:
        """Whether this process is still connected to Ray."""
        return ray.is_initialized()

    def release(self) -> None:
        """Ends this use of the connection. A second call does nothing."""
        with _lock:
            if self in _users:
                _users.remove(self)
                if not _users:
                    ray.shutdown()


def _connect(address: str, options: RayOptions) -> None:
    env = dict(options.runtime_env) or None
    if address != "local":
        ray.init(address=address, runtime_env=env, **_QUIET)
        return
    with _loopback():
        memory = options.object_store_memory
        ray.init(address="local", include_dashboard=False, object_store_memory=memory, runtime_env=env, **_QUIET)


def _check_address(requested: str | None, owned: bool) -> None:
    """Checks that the existing connection is to the requested address."""
    current: str = ray.get_runtime_context().gcs_address
    if (
        requested in (None, current)
        or (owned and requested == RaySession.address)
        or (requested in ("auto", "local") and not owned)
    ):
        return
    raise ValueError(
        f"Expected address {current!r}, to which this process is connected, got {requested!r}. "
        "Close what uses that connection first, or give no address."
    )


@contextmanager
def _loopback() -> Generator[None]:
    """Makes Ray use only the loopback address, by disabling clusters, and disables its usage statistics."""
    overrides: dict[str, str] = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0", "RAY_USAGE_STATS_ENABLED": "0"}
    previous_values: dict[str, Any] = {name: os.environ.get(name) for name in overrides}
    enabled = ray_constants.ENABLE_RAY_CLUSTER
    os.environ.update(overrides)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        for name, value in previous_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
