"""Captures and restores what libraries of games keep outside Python: positions of pygame, and Atari's emulator for
several players. The objects are recognized by the modules of their classes. This module imports no libraries.
"""

from __future__ import annotations

import numpy as np

from .base import MISSING, PYGAME_VALUES, Get, LibraryHandler, LibraryObject, Node, Ref, Restored, loaded_module


class PygameValues(LibraryHandler):
    """pygame's rectangles and vectors."""

    tag = "pygame_value"
    library, class_names = "pygame", PYGAME_VALUES

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        return {"of": type(value).__name__, "values": list(value)}

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        if old is MISSING or type(old).__name__ != node["of"]:
            return getattr(loaded_module("pygame"), node["of"])(*node["values"]), None
        return old, lambda: old.update(*node["values"])


class PlayersEmulators(LibraryHandler):
    """The emulator of Atari games for several players, in its own serialization format with the random numbers."""

    tag = "multi_agent_ale"
    library, class_names = "multi_agent_ale_py", ("ALEInterface",)

    def capture(self, value: LibraryObject, ref: Ref) -> Node:
        state = value.cloneSystemState()
        try:
            return {"state": bytes(value.encodeState(state))}
        finally:
            value.deleteState(state)

    def restore(self, node: Node, old: LibraryObject, get: Get) -> Restored:
        self.require_match(old)

        def restore_state() -> None:
            state = old.decodeState(np.frombuffer(node["state"], np.uint8).copy())
            old.restoreSystemState(state)
            old.deleteState(state)

        return old, restore_state


HANDLERS = (PygameValues(), PlayersEmulators())
