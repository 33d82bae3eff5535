"""What of gymnasium's spaces is state: the generators that they draw by. All else about them stays what it is.

A space may be a class's, and so be shared by all of its environments: it is never changed on account of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import StateError
from .base import Get, Node, Ref, StateHandler, describe_space
from .torch import is_instance_of_library

_STATEFUL_ATTRIBUTES = ("_np_random", "spaces", "feature_space", "node_space", "edge_space")


class Spaces:
    """Spaces, those within others too."""

    tag = "space"

    def matches(self, cls: type) -> bool:
        """See `StateHandler`."""
        return is_instance_of_library(cls, "gymnasium", "Space") or is_instance_of_library(cls, "gym", "Space")

    def capture(self, value: Any, ref: Ref) -> Node:
        """See `StateHandler`."""
        there = vars(value)
        parts = {name: ref(there[name], f".{name}") for name in _STATEFUL_ATTRIBUTES if there.get(name) is not None}
        return {"look": describe_space(value), "parts": parts}

    def restore(self, node: Node, old: Any, get: Get) -> tuple[Any, Callable[[], None] | None]:
        """See `StateHandler`."""
        if not self.matches(type(old)) or describe_space(old) != node["look"]:
            raise StateError(
                f"Expected the space {node['look']}, as it was when the state was taken, but it is {old!r:.80}."
            )
        there = vars(old)
        parts = {
            name: get(part, there.get(name)) for name, part in node["parts"].items() if name in _STATEFUL_ATTRIBUTES
        }
        rng = parts.get("_np_random")

        def go_on() -> None:
            old._np_random = rng

        return old, go_on


HANDLERS: list[StateHandler] = [Spaces()]
