"""Chooses the nodes of actors: the first time as the options say, after a crash any node that is alive.

It must not know commands or rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from .options import RayOptions
from .session import RaySession

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
