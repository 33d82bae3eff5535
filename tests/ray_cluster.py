"""A small Ray cluster for tests marked `ray`. Its head node outlives the nodes that tests kill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

STORE = 80 * 2**20  # bytes of an object store, the minimum that Ray accepts
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 10}
SMALL = {"object_store_memory": STORE, "include_dashboard": False}


class TestCluster:
    """A cluster on this machine, to which this process is connected."""

    __test__ = False

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 6, "_system_config": QUICK, **SMALL}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self.address: str = self._cluster.address
        self.head: Any = self._cluster.head_node

    @contextmanager
    def node(self, **resources: float) -> Iterator[Any]:
        """Adds a node for the duration of the block, unless it is killed before."""
        cpus = resources.pop("num_cpus", 4)
        node = self._cluster.add_node(num_cpus=cpus, resources=resources, **SMALL)
        try:
            yield node
        finally:
            if node in self._cluster.worker_nodes:
                self.kill(node)
            self.notices(node)

    def kill(self, node: Any) -> None:
        """Kills all processes of a node without warning, including its workers."""
        workers = psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)
        self._cluster.remove_node(node, allow_graceful=False)
        for process in workers:  # all at once, as in a power failure; otherwise they notice within a second or two
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def notices(self, node: Any) -> bool:
        """Waits until Ray knows that a node is gone."""
        import ray

        return wait_for(lambda: not any(n["Alive"] for n in ray.nodes() if n["NodeID"] == node.node_id))

    def actors(self) -> list[str]:
        """Returns the states of the actors that are not dead."""
        import ray

        states = {name: actor["State"] for name, actor in ray._private.state.actors().items()}
        return [f"{name} {state}" for name, state in states.items() if state != "DEAD"]

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def wait_for(condition: Any, seconds: float = 10.0) -> Any:
    """Returns the value of a condition when it becomes true, or at the deadline."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value
