"""The lowest seam: what an adapter must say so that vecrl can drive a simulator.

A simulator is always a batch. It knows its single spaces, how to begin and how to advance rows, and
nothing of workers, processes, auto-reset modes or dialects. There are two kinds, by where the rows live:

* `Simulator` writes rows into host arrays that it is handed (the arena). Lifted Python environments and
  CPU libraries are of this kind.
* `BatchSimulator` returns whole batches of its own arrays or tensors, on any device, which nobody copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import Space

Array = Any
"""A NumPy array, a torch tensor or a JAX array: the engine never looks inside."""


@dataclass(frozen=True, slots=True)
class BatchStep:
    """What a step of a `BatchSimulator` yields, one row an environment, before anything is reset.

    Attributes:
        next_obs: `[n, *obs_shape]`, the true successors, final observations included.
        reward: `[n]`, floating.
        terminated: `[n]`, bool.
        truncated: `[n]`, bool.
        info: arrays of leading size n, by name.
    """

    next_obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    info: Mapping[str, Array] = field(default_factory=dict)


@runtime_checkable
class BatchSimulator(Protocol):
    """A simulator that is a batch by birth and lives on one device.

    Attributes:
        num_envs: n, the number of rows.
        observation_space: the space of one row.
        action_space: the space of one row.
        device: where its tensors live, as text ("cpu", "cuda:0").
        metadata: gymnasium's metadata ("render_modes", "render_fps").
        render_mode: as gymnasium's.
    """

    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]
    device: str
    metadata: dict[str, Any]
    render_mode: str | None

    def reset(self, seeds: Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None) -> Array:
        """Begin an episode in every row; `seeds[i]` reseeds row i, None lets its stream go on. Returns obs."""
        ...

    def reset_where(self, mask: Array) -> Array:
        """Begin an episode in the rows where the bool `mask` `[n]` holds; returns the obs of ALL rows."""
        ...

    def step(self, actions: Array) -> BatchStep:
        """Advance every row by one step. Rows whose episode is over go on undefined but harmless."""
        ...

    def render(self, row: int) -> np.ndarray | None:
        """A frame `[height, width, 3]` uint8 of one row, or None without a render mode."""
        ...

    def get_state(self) -> dict[str, Array]:
        """All that a later `set_state` needs to go on from here exactly: tensors of leading size n."""
        ...

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Go back to what `get_state` gave."""
        ...

    def close(self) -> None:
        """Free what is held; twice is harmless."""
        ...
