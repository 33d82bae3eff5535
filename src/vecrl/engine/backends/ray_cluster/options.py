"""Where actors of a Ray cluster are to live: the options of `backend="ray"`. Knows nothing of Ray itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

PlacementStrategy = Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"]


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Which Ray, and what an actor (one a worker, which owns several environments) asks of the node that it lives on.

    >>> RayOptions(address="auto", placement_strategy="SPREAD", resources={"simulators": 1}).num_gpus
    0.0

    Args:
        address: of a cluster: "auto" for the one that runs on this machine, "host:port", or "local" for one of its
            own. By default what `RAY_ADDRESS` says, else "local". A Ray that this process has initialised is used as
            it is; one of its own is started quietly, on the loopback address only, and ends with the last that uses it.
        num_cpus: logical cores an actor claims; by default 1, and none on a Ray of its own, where workers may
            outnumber the cores.
        num_gpus: GPUs an actor claims, or shares of one.
        resources: custom resources that an actor claims, by name.
        placement_strategy: how actors are shared out at first: "SPREAD" over nodes or "PACK" onto few as far as it
            goes, "STRICT_SPREAD" one a node, "STRICT_PACK" all on one. By default Ray's own mind.
        runtime_env: of the actors, as Ray takes it: environment variables, packages, a folder to ship (which
            Ray does as this process connects: where it is connected, give that to `ray.init`).
        start_timeout: seconds until an actor that no node has room for, or whose process does not come up, is an error.
        object_store_memory: bytes, of a Ray of its own; by default Ray's own mind.

    Raises:
        ValueError: an argument out of its range.
    """

    address: str | None = None
    num_cpus: float | None = None
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    placement_strategy: PlacementStrategy | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start_timeout: float = 60.0
    object_store_memory: int | None = None

    def __post_init__(self) -> None:
        amounts = {"num_cpus": self.num_cpus or 0.0, "num_gpus": self.num_gpus, **self.resources}
        for name, value in amounts.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected {name} of 0 or more, but {value!r} came.")
        if not self.start_timeout > 0:
            raise ValueError(f"Expected start_timeout to be seconds above 0, but {self.start_timeout!r} came.")
        strategies = get_args(PlacementStrategy)
        if self.placement_strategy not in (None, *strategies):
            raise ValueError(
                f"Expected placement_strategy to be one of {strategies}, but {self.placement_strategy!r} came."
            )
        if self.placement_strategy and self.num_cpus == 0 and not any([self.num_gpus, *self.resources.values()]):
            raise ValueError("Expected actors to claim something, or Ray cannot share them out: give num_cpus above 0.")
        if (self.address or "").startswith("ray://"):
            raise ValueError(
                "Expected an address as nodes of the cluster know it, but a client's came, through which rows would "
                "pass one by one: run on a node of the cluster, with address='auto'."
            )
