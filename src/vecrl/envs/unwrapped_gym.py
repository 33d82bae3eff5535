"""The record of an environment that only adds specs to a gymnasium environment.

A batched environment steps these gymnasium environments directly, and applies the specs to whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .spec_container import Key


@dataclass(frozen=True, slots=True)
class UnwrappedGymEnv:
    """The gymnasium environment under an `EnvBase`.

    Attributes:
        env: the `gymnasium.Env`. `reset` and `step` of the `EnvBase` only call it and apply the specs.
        keys: the keys of its observation leaves, in the order of `engine.space_layout.Layout`.
    """

    env: Any
    keys: tuple[Key, ...]
