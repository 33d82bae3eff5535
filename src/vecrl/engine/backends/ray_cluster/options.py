"""Defines the options of `backend="ray"`. It must not import Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

PlacementStrategy = Literal["SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK"]


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The Ray to use, and the resources and placement of its actors. There is one actor per worker.

    >>> RayOptions(address="auto", placement_strategy="SPREAD", resources={"simulators": 1}).num_gpus
    0.0

    Args:
        address: the address of a cluster: "auto" for the one that runs on this machine, "host:port", or "local" for a
            private Ray. The default is `RAY_ADDRESS`, or "local" if that is not set. If this process has initialized
            Ray, that one is used unchanged. A private Ray logs nothing, uses the loopback address only, and ends with
            the last pool that uses it.
        num_cpus: logical cores that an actor requests. The default is 1, or 0 on a private Ray, where there may be more
            workers than cores.
        num_gpus: GPUs, or the fraction of one, that an actor requests.
        resources: custom resources that an actor requests, by name.
        placement_strategy: the first placement of actors: "SPREAD" over nodes or "PACK" onto few, as far as possible,
            "STRICT_SPREAD" on one node each, "STRICT_PACK" all on one node. The default is Ray's own placement.
        runtime_env: Ray's runtime environment of the actors: environment variables, packages, a folder to upload. Ray
            uploads folders only when this process connects. If it is connected already, pass them to `ray.init`.
        start_timeout: seconds in which an actor must start. After that, it is an error. The default leaves Ray time to
            replace a process that did not register within 60 s, as on busy machines.
        object_store_memory: size of the object store of a private Ray, in bytes. The default is Ray's.

    Raises:
        ValueError: an argument has no valid value.
    """

    address: str | None = None
    num_cpus: float | None = None
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    placement_strategy: PlacementStrategy | None = None
    runtime_env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start_timeout: float = 180.0
    object_store_memory: int | None = None

    def __post_init__(self) -> None:
        amounts = {"num_cpus": self.num_cpus or 0.0, "num_gpus": self.num_gpus, **self.resources}
        for name, value in amounts.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"Expected {name} of 0 or more, got {value!r}.")
        if not self.start_timeout > 0:
            raise ValueError(f"Expected start_timeout to be seconds above 0, got {self.start_timeout!r}.")
        strategies = get_args(PlacementStrategy)
        if self.placement_strategy not in (None, *strategies):
            raise ValueError(f"Expected placement_strategy to be one of {strategies}, got {self.placement_strategy!r}.")
        if self.placement_strategy and self.num_cpus == 0 and not any([self.num_gpus, *self.resources.values()]):
            raise ValueError(
                "Expected actors that request resources, as Ray needs them for a placement_strategy, got none. "
                "Give num_cpus above 0."
            )
        if (self.address or "").startswith("ray://"):
            raise ValueError(
                f"Expected an address of the cluster, got the client address {self.address!r}, which would send rows "
                "one by one. Run on a node of the cluster, with address='auto'."
            )
