"""Captures the state of gymnasium's spaces: their random number generators.

A space may be an attribute of a class, which all its environments share. So nothing else of a space is changed.
"""

from __future__ import annotations

from ...errors import StateError
from .base import Get, LibraryObject, Node, Ref, Restored, describe_space, is_instance_of_library

_STATEFUL_ATTRIBUTES = ("_np_random", "spaces", "feature_space", "node_space", "edge_space")


class Spaces:
    """Spaces, including nested ones."""

    tag = "space"

    def matches(self, cls: type) -> bool:
        return is_instance_of_library(cls, "gymnasium", "Space") or is_instance_of_library(cls, "gym", "Space")

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        attrs = vars(value)
        parts = {name: ref(attrs[name], f".{name}") for name in _STATEFUL_ATTRIBUTES if attrs.get(name) is not None}
        return {"description": describe_space(value), "parts": parts}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        if not self.matches(type(old)) or describe_space(old) != node["description"]:
            raise StateError(f"Expected the space {node['description']}, as in the state, got {old!r:.80}.")
        attrs = vars(old)
        parts = {
            name: get(part, attrs.get(name)) for name, part in node["parts"].items() if name in _STATEFUL_ATTRIBUTES
        }
        rng = parts.get("_np_random")

        def set_generator() -> None:
            attrs["_np_random"] = rng

        return old, set_generator


HANDLERS = (Spaces(),)
