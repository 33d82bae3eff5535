"""Environments that are no more than another library's environment under specs, and so can do without them.

A batched environment steps what such ones wrap, a batch at a time, and applies the specs to whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .spec_container import Key


@dataclass(frozen=True, slots=True)
class UnwrappedGymEnv:
    """What is under an environment.

    Attributes:
        env: a `gymnasium.Env` whose `reset` and `step` are all that the environment's own do, but for the specs.
        keys: where the leaves of its observations lie, in the order of `engine.layout.Layout`.
    """

    env: Any
    keys: tuple[Key, ...]
