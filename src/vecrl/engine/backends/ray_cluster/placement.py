"""Which node an actor is to live on: at first as the options say, later wherever one is left."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from .options import RayOptions
from .session import RaySession

# seconds for which a node where an actor died is shunned: Ray may not have noticed that it is gone
_AVOID_NODE_S = 30.0


class RayPlacement:
    """Places for the actors of one pool.

    Args:
        options: what an actor claims.
        session: the use of Ray.
        count: how many actors there are.
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

    def initial_options(self, index: int) -> dict[str, Any]:
        """Ray's options for an actor, as it begins."""
        actor_options = self._actor_options(self.requested.get("CPU", 0))
        if self._group is not None:
            actor_options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, index)
        return actor_options

    def replacement_options(self, nodes: Iterable[str]) -> dict[str, Any]:
        """Ray's options for an actor that replaces a lost one: on the node that has the fewest of ours.

        It claims no cores, for those that are left may be taken; GPUs and custom resources it waits for.

        Args:
            nodes: where the others live.
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
        """An actor died there."""
        self._avoided_until[node] = time.monotonic()

    def release(self) -> None:
        """Give back what was reserved."""
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _actor_options(self, cpus: float) -> dict[str, Any]:
        options = self._options
        actor_options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": options.num_gpus}
        actor_options["resources"] = dict(options.resources)
        if self._runtime_env:
            actor_options["runtime_env"] = self._runtime_env
        return actor_options
