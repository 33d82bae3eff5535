"""This process's connection to Ray: the one that somebody else made, or one of its own while anybody uses it.

Ray knows one connection a process. What is started here is quiet, serves this machine's loopback address only, and ends
with the last pool that uses it; a Ray that was there before is left as it was.
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
_users: list[RaySession] = []  # those who use a connection that was made here
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


class RaySession:
    """A use of this process's Ray, which is connected first where it is not.

    Attributes:
        local: whether it is a Ray of this process alone.

    Raises:
        ValueError: an address other than that of the Ray that this process is connected to, or a folder to ship, when
            it is connected already.
        ConnectionError: there is no cluster at the address.
    """

    address = ""  # what the connection that was made here was made with
    runtime_env: Mapping[str, Any] = {}  # likewise

    def __init__(self, options: RayOptions):
        with _lock:
            if not ray.is_initialized():
                _users.clear()  # whoever ended it also ended what they had
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
        """Whether every actor has the runtime environment of the options, as the connection was made with it."""
        return bool(_users) and RaySession.runtime_env == options.runtime_env

    def _check_folders(self, options: RayOptions) -> None:
        """See that Ray need not ship folders now, which it does as a process connects, and never later."""
        env = options.runtime_env
        folders = [*map(str, (env.get("working_dir"), *env.get("py_modules", ())))]
        if any(os.path.isdir(folder) for folder in folders) and not self.ships_runtime_env(options):
            raise ValueError(
                "Expected to connect to Ray here, since folders are shipped only then, but this process is connected. "
                "Give them to ray.init(runtime_env=...), or close what uses Ray first."
            )

    @property
    def alive(self) -> bool:
        """Whether Ray can still be asked."""
        return ray.is_initialized()

    def release(self) -> None:
        """Use it no more; twice is harmless."""
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
    """See that a connection which is there is one to the address asked."""
    current: str = ray.get_runtime_context().gcs_address
    if (
        requested in (None, current)
        or (owned and requested == RaySession.address)
        or (requested in ("auto", "local") and not owned)
    ):
        return
    raise ValueError(
        f"Expected address {current!r}, for a process has one Ray and this one's is connected there, but {requested!r} "
        f"came. "
        "Close what uses it first, or leave the address out."
    )


@contextmanager
def _loopback() -> Generator[None]:
    """Ray serves the loopback address alone where it takes clusters to be impossible; and it should not phone home."""
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
