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


class RowBuffers:
    """The rows that a worker owns in one slot of the arena, for its simulator to write.

    Attributes:
        obs: one array `[k, *leaf_shape]` a leaf of the observation space; None where the leaf is opaque.
        final_obs: likewise, for the final observations of rows that a step began anew.
        reward: `[k]` float64.
        terminated, truncated: `[k]` bool, all False when a step begins.
        was_reset, flags, returns, lengths: the worker's own; not for simulators.
    """

    __slots__ = ("final_obs", "flags", "lengths", "obs", "returns", "reward", "terminated", "truncated", "was_reset")

    def __init__(
        self,
        obs: list[Any],
        final_obs: list[Any],
        reward: np.ndarray,
        flags: np.ndarray,
        returns: np.ndarray,
        lengths: np.ndarray,
    ):
        self.obs = obs
        self.final_obs = final_obs
        self.reward = reward
        self.flags = flags
        self.terminated, self.truncated, self.was_reset = flags
        self.returns = returns
        self.lengths = lengths


InfoRows = list[tuple[int, Mapping[str, Any]]]
ObjectRows = dict[int, list[tuple[int, Any]]]


class StepNotes:
    """What a simulator has to say beside the rows it wrote.

    Attributes:
        done_rows: rows whose episode this step ended.
        infos: `(row, info)` of the rows whose info is not empty.
        final_infos: likewise of the step itself, in rows that it began anew.
        objects: for each opaque leaf, by its index, `(row, object)`.
        final_objects: likewise, of final observations.
        failures: `(row, exception)` of the rows that raised; their rows hold nothing.
    """

    __slots__ = ("done_rows", "failures", "final_infos", "final_objects", "infos", "objects")

    def __init__(self) -> None:
        self.done_rows: list[int] = []
        self.infos: InfoRows = []
        self.final_infos: InfoRows = []
        self.objects: ObjectRows = {}
        self.final_objects: ObjectRows = {}
        self.failures: list[tuple[int, BaseException]] = []


class RowFailures(Exception):
    """Raised by a simulator's constructor: some of its rows could not be made.

    Attributes:
        failures: `(row, exception)`.
    """

    def __init__(self, failures: Sequence[tuple[int, BaseException]]):
        super().__init__(*(error for _, error in failures))
        self.failures = list(failures)


class Simulator(Protocol):
    """k environments whose rows live in host memory. Wherever `rows` are asked, they are in ascending order.

    Optional methods are in protocols of their own, which the engine looks for: `SupportsState`, `SupportsRebuild`,
    `SupportsSetSpaces`.

    Attributes:
        num_envs: k.
        observation_space, action_space: of one row.
        metadata, render_mode, spec: as gymnasium's.
    """

    num_envs: int
    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    spec: Any

    def reset(
        self,
        rows: Sequence[int] | None,
        seeds: Sequence[int | None] | None,
        options: Mapping[str, Any] | None,
        out: RowBuffers,
    ) -> StepNotes:
        """Begin an episode in `rows` (None: all), `seeds[j]` for the j-th of them; write their `out.obs`."""
        ...

    def step(self, rows: Sequence[int] | None, actions: Sequence[Any], out: RowBuffers, reset_done: bool) -> StepNotes:
        """Advance `rows` (None: all), `actions[j]` for the j-th; write `out`'s obs, reward and flags.

        With `reset_done`, rows whose episode ends begin anew at once: what the step observed goes into `out.final_obs`
        and `final_infos`, what the reset observed into `out.obs` and `infos`.
        """
        ...

    def invoke(self, row: int, kind: str, name: str, value: Any) -> Any:
        """Reach into one environment: kind "get", "set", "call" (value: args and kwargs) or "render"."""
        ...

    def close(self) -> None:
        """Free what is held; twice is harmless."""
        ...


@runtime_checkable
class SupportsState(Protocol):
    """A `Simulator` whose environments can be saved and restored one by one."""

    def get_state(self, row: int) -> dict[str, Any]:
        """Returns the state of one environment as plain data."""
        ...

    def set_state(self, row: int, state: Mapping[str, Any], allow: Sequence[str]) -> None:
        """Restores what `get_state` returned. `allow` names classes that may be made, see `vecrl.snapshot.restore`."""
        ...


@runtime_checkable
class SupportsRebuild(Protocol):
    """A `Simulator` whose environments can be made one by one, as `on_failure` needs it."""

    def rebuild(self, row: int) -> None:
        """Closes the environment, whatever its state, and makes another in its place."""
        ...


@runtime_checkable
class SupportsSetSpaces(Protocol):
    """A `Simulator` that accepts spaces that the workers of a pool agreed on, other than its own."""

    def set_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Sets the spaces; called once, before anything is reset."""
        ...


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


@runtime_checkable
class SupportsStepAndReset(Protocol):
    """A `BatchSimulator` that steps and resets in one call, which saves time on a device."""

    def step_and_reset(self, actions: Array) -> tuple[BatchStep, Array, Array]:
        """Steps every row, then resets the rows whose episode is over.

        Returns:
            The step, `done` `[n]` bool, and the observations to act on next.
        """
        ...


@runtime_checkable
class SupportsStepWhere(Protocol):
    """A `BatchSimulator` that can step some of its rows. For others, vecrl saves and restores the state of the rest."""

    def step_where(self, mask: Array, actions: Array) -> BatchStep:
        """Steps the rows where the bool `mask` `[n]` holds. `actions` has all rows; other results are ignored."""
        ...
