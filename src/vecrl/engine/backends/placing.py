"""Which node an actor is to live on: at first as the options say, later wherever one is left."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from .cluster import RayOptions
from .session import Session

_DOUBT = 30.0  # seconds for which a node where an actor died is shunned: Ray may not have noticed that it is gone


class Placing:
    """Places for the actors of one pool.

    Args:
        options: what an actor claims.
        session: the use of Ray.
        count: how many actors there are.
    """

    def __init__(self, options: RayOptions, session: Session, count: int):
        cpus = float(not session.local) if options.num_cpus is None else options.num_cpus
        claims = {"CPU": cpus, "GPU": options.num_gpus, **options.resources}
        self.claims = {name: value for name, value in claims.items() if value}
        self._options = options
        self._runtime_env = None if session.ships(options) else dict(options.runtime_env)
        self._doubtful: dict[str, float] = {}
        self._group: PlacementGroup | None = None
        if options.placement_strategy is not None and self.claims:
            self._group = placement_group([self.claims] * count, options.placement_strategy)

    def first(self, index: int) -> dict[str, Any]:
        """Ray's options for an actor, as it begins."""
        found = self._actor_options(self.claims.get("CPU", 0))
        if self._group is not None:
            found["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, index)
        return found

    def again(self, nodes: Iterable[str]) -> dict[str, Any]:
        """Ray's options for an actor that replaces a lost one: on the node that has the fewest of ours.

        It claims no cores, for those that are left may be taken; GPUs and custom resources it waits for.

        Args:
            nodes: where the others live.
        """
        found = self._actor_options(0)
        if not found["num_gpus"] and not found["resources"]:
            alive = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
            recent = time.monotonic() - _DOUBT
            sound = [node for node in alive if self._doubtful.get(node, recent) <= recent] or alive
            taken = list(nodes)
            if sound:
                found["scheduling_strategy"] = NodeAffinitySchedulingStrategy(min(sound, key=taken.count), soft=True)
        return found

    def doubt(self, node: str) -> None:
        """An actor died there."""
        self._doubtful[node] = time.monotonic()

    def free(self) -> None:
        """Give back what was reserved."""
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _actor_options(self, cpus: float) -> dict[str, Any]:
        options = self._options
        found: dict[str, Any] = {"num_cpus": cpus, "num_gpus": options.num_gpus}
        found["resources"] = dict(options.resources)
        if self._runtime_env:
            found["runtime_env"] = self._runtime_env
        return found
