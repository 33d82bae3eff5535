"""What of gymnasium's spaces is state: the generators that they draw by. All else about them stays what it is.

A space may be a class's, and so be shared by all of its environments: it is never changed on account of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import StateError
from .kinds import Get, Kind, Node, Ref, look_of
from .libraries import is_of

_PARTS = ("_np_random", "spaces", "feature_space", "node_space", "edge_space")


class Spaces:
    """Spaces, those within others too."""

    tag = "space"

    def fits(self, cls: type) -> bool:
        """See `Kind`."""
        return is_of(cls, "gymnasium", "Space") or is_of(cls, "gym", "Space")

    def take(self, value: Any, ref: Ref) -> Node:
        """See `Kind`."""
        there = vars(value)
        parts = {name: ref(there[name], f".{name}") for name in _PARTS if there.get(name) is not None}
        return {"look": look_of(value), "parts": parts}

    def put(self, node: Node, old: Any, get: Get) -> tuple[Any, Callable[[], None] | None]:
        """See `Kind`."""
        if not self.fits(type(old)) or look_of(old) != node["look"]:
            raise StateError(
                f"Expected the space {node['look']}, as it was when the state was taken, but it is {old!r:.80}."
            )
        there = vars(old)
        parts = {name: get(part, there.get(name)) for name, part in node["parts"].items() if name in _PARTS}
        rng = parts.get("_np_random")

        def go_on() -> None:
            old._np_random = rng

        return old, go_on


KINDS: list[Kind] = [Spaces()]
