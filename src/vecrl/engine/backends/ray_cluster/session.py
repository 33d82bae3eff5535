"""Manages this process's connection to Ray, and chooses the nodes of actors.

Ray allows one connection per process.
If the process is connected already, that connection is used and left unchanged. Otherwise a connection is made here and
is closed with the last pool that uses it. A Ray that is started here logs nothing and uses the loopback address only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ..worker_connection import ForkserverClient
from ..worker_options import RayOptions

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
    server = ForkserverClient.for_threads(1)
    for pid in _agents():
        server.end_with_caller(pid)


def _agents() -> list[int]:
    """Returns the process ids of Ray's agents on this machine, which would outlive a killed caller.

    They are the children of its local scheduler (raylet), which is a child of this process.
    """
    parents: dict[int, int] = {}
    schedulers: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parents[pid] == os.getpid() and os.readlink(folder / "exe").endswith("/raylet"):
                schedulers.add(pid)
    return [pid for pid, parent in parents.items() if parent in schedulers]


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


# seconds for which a node is avoided after an actor crashed on it, since Ray may not have detected yet that it is lost
_AVOID_NODE_S = 30.0

ActorOptions = dict[str, Any]
"""Keyword arguments of Ray's `options` of an actor."""


class RayPlacement:
    """Chooses the nodes for the actors of one pool.

    Args:
        options: the resources of an actor, and the placement strategy.
        session: the connection to Ray.
        count: the number of actors.

    Attributes:
        requested: the resources that an actor requests, by name; without zeros.
    """

    def __init__(self, options: RayOptions, session: RaySession, count: int):
        cpus = float(not session.local) if options.num_cpus is None else options.num_cpus
        requested = {"CPU": cpus, "GPU": options.num_gpus, **options.resources}
        self.requested = {name: value for name, value in requested.items() if value}
        self._options = options
        self._runtime_env = None if session.ships_runtime_env(options) else dict(options.runtime_env)
        self._avoided_until: dict[str, float] = {}
        self._group: PlacementGroup | None = None
        if options.placement_strategy is not None and self.requested:
            self._group = placement_group([self.requested] * count, options.placement_strategy)

    def initial_options(self, index: int) -> ActorOptions:
        """Returns Ray's options for the first actor of worker `index`."""
        actor_options = self._actor_options(self.requested.get("CPU", 0))
        if self._group is not None:
            actor_options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, index)
        return actor_options

    def replacement_options(self, nodes: Iterable[str]) -> ActorOptions:
        """Returns Ray's options for an actor that replaces a crashed one.

        It is placed on the node with the fewest actors of the pool. It requests no cores, since the remaining ones may
        be in use. It waits for GPUs and custom resources.

        Args:
            nodes: the nodes of the other actors.
        """
        actor_options = self._actor_options(0)
        if not actor_options["num_gpus"] and not actor_options["resources"]:
            alive = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            avoided_before = time.monotonic() - _AVOID_NODE_S
            candidates = [
                node for node in alive if self._avoided_until.get(node, avoided_before) <= avoided_before
            ] or alive
            used_nodes = list(nodes)
            if candidates:
                actor_options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                    min(candidates, key=used_nodes.count), soft=True
                )
        return actor_options

    def avoid(self, node: str) -> None:
        """Records that an actor crashed on this node."""
        self._avoided_until[node] = time.monotonic()

    def release(self) -> None:
        """Releases the reserved resources."""
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _actor_options(self, cpus: float) -> ActorOptions:
        options = self._options
        actor_options: ActorOptions = {"num_cpus": cpus, "num_gpus": options.num_gpus}
        actor_options["resources"] = dict(options.resources)
        if self._runtime_env:
            actor_options["runtime_env"] = self._runtime_env
        return actor_options
