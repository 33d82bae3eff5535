"""What batched simulators share: seeds, resets of some rows, time limits, states and checks.

`BatchDriver` is the base of all. `BatchAdapter` is that of an adapter of a library, and `SelfResetAdapter` that of a
library which resets rows itself.
"""

from __future__ import annotations

from ..imports import require_extra

require_extra("torch", __name__)

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.spaces import Discrete
from torch import Tensor

from ..engine.simulator import BatchStep, ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..errors import ClosedError, PendingError, SpaceError, StateError
from ..seeding import random_seeds, seed_for
from ..validation import check_discrete, check_length, check_seeds, normalize_device, parse_count, parse_optional_count
from .array_library import on_host

Seeds = Sequence[int | None] | None
NO_LIMIT = 2**31 - 1
OWN_ENTRIES = "seeds", "episodes", "episode_steps"  # of the states of a `BatchAdapter`; the last with a time limit


class RowStreams:
    """A stream of seeds for each row. The k-th seed of a row depends on the seed of the row and on k only.

    Args:
        count: the number of rows. A row that was not seeded starts with entropy of the operating system.

    Attributes:
        roots: `[n]` int64, the seeds of the rows, modulo 2**63; each is the first of its stream.
        counts: `[n]` int64, how many seeds were drawn.
    """

    def __init__(self, count: int):
        self.roots, self.counts = random_seeds(count, 63).astype(np.int64), np.zeros(count, np.int64)

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Starts new streams in the rows with a seed that is not None."""
        for row, seed in enumerate(seeds):
            if seed is not None:
                self.roots[row], self.counts[row] = seed % 2**63, 0

    def draw(self, rows: np.ndarray) -> list[int]:
        """Returns the next seed of each of `rows` `[m]`: at first that of the row, then numbers below 2**32."""
        drawn = zip(self.roots[rows].tolist(), self.counts[rows].tolist(), strict=True)
        self.counts[rows] += 1
        return [seed_for(root, 0, count) if count else root for root, count in drawn]


def as_tensors(label: str, state: object) -> dict[str, Tensor]:
    """Returns the entries of a state, which may be arrays, as tensors.

    Raises:
        StateError: it is no mapping from names to numbers in memory.
    """
    entries: dict[Any, Any] = dict(state) if isinstance(state, Mapping) else {None: state}
    try:
        tensors = {name: torch.as_tensor(value) for name, value in entries.items() if isinstance(name, str)}
    except (TypeError, ValueError, RuntimeError):
        tensors = {}
    if len(tensors) < len(entries) or any(tensor.is_meta for tensor in tensors.values()):
        raise StateError(f"Expected a state of {label}, tensors by name, got {state!r:.200}.")
    return tensors


def check_entries(label: str, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Checks that a state has tensors like those of `expected`; those of floats may have another precision.

    Raises:
        KeyError: an entry is missing.
        StateError: a tensor has another shape or dtype.
    """
    for name, own in expected.items():
        value = state[name]
        is_same_kind = value.dtype == own.dtype or (value.is_floating_point() and own.is_floating_point())
        if value.shape != own.shape or not is_same_kind:
            raise StateError(
                f"Expected {name!r} in a state of {label} to be {own.dtype} of shape {tuple(own.shape)}, got "
                f"{value.dtype} of shape {tuple(value.shape)}. Restore what get_state of a simulator with the same "
                "arguments returned."
            )


class BatchDriver(ABC):
    """What all batched simulators share; implements a part of `vecrl.engine.simulator.BatchSimulator`.

    A subclass defines `step`, `get_state` and the methods below `close`; `_draw` if it renders.

    Args:
        num_envs: n, the number of rows.
        observation_space, action_space: the spaces of one row.
        device: a torch device or its name; None for the CPU.
        render_mode: None or "rgb_array".
        render_fps: frames per second of a video in real time; None for a simulator that does not render.
        max_episode_steps: truncates episodes of this length; None or -1 for no limit.

    Attributes:
        label: the name in messages; by default that of the class.
        was_reset: whether there was a reset, without which rows cannot be stepped.

    Raises:
        ValueError: an argument is out of range.
    """

    label: str
    _takes_options: ClassVar[bool] = False  # whether there are reset options

    def __init__(
        self,
        num_envs: int,
        observation_space: AnySpace,
        action_space: AnySpace,
        *,
        device: str | torch.device | None = None,
        render_mode: str | None = None,
        render_fps: float | None = None,
        max_episode_steps: int | None = None,
    ):
        self.label = getattr(self, "label", type(self).__name__)
        modes = [] if render_fps is None else ["rgb_array"]
        if render_mode not in (None, *modes):
            expected = " or ".join(map(repr, [None, *modes]))
            raise ValueError(f"Expected render_mode to be {expected} for {self.label}, got {render_mode!r}.")
        self.num_envs = parse_count("num_envs", num_envs)
        self.observation_space, self.action_space = observation_space, action_space
        self.device = str(torch.device("cpu" if device is None else normalize_device(device)))
        self.render_mode = render_mode
        self.metadata: dict[str, Any] = {"render_modes": modes} | ({"render_fps": render_fps} if modes else {})
        limit = None if max_episode_steps == -1 else max_episode_steps
        self._limit = parse_optional_count("max_episode_steps", limit) or NO_LIMIT
        self.was_reset = self._closed = False

    def reset(self, seeds: Seeds = None, options: ResetOptions | None = None) -> Tree:
        """Starts an episode in every row and returns the observations.

        Args:
            seeds: `seeds[i]` seeds row i. If it is None, the random stream of the row continues, which starts from the
                operating system's entropy.
            options: for this reset only; must be empty for most simulators.

        Raises:
            SpaceError: there are options, not one seed per row, or a seed below 0 or of at least 2**64.
        """
        self._require_open()
        if options and not self._takes_options:
            raise SpaceError(f"Expected no reset options for {self.label}, got {sorted(options)}. Omit them.")
        if seeds is not None:
            check_length("seeds", seeds, self.num_envs)
            check_seeds(seeds)
            self._seed(seeds)
        obs = self._reset_all(seeds, options or {})
        self.was_reset = True
        return obs

    def reset_where(self, mask: Tensor) -> Tree:
        """Starts an episode in the rows of the bool `mask` `[n]` and returns the observations of all rows.

        Raises:
            SpaceError: `mask` has another shape or dtype.
            PendingError: there was no reset.
        """
        self._require_reset()
        self._check_mask(mask)
        return self._reset_rows(mask)

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores a state that `get_state` of this simulator, or of one with the same arguments, has returned.

        Raises:
            NotImplementedError: there are no states.
            StateError: it is none, of another number of rows, lacks entries, or has ones of another shape or dtype;
                nothing is changed.
        """
        self._require_open()
        state = as_tensors(self.label, state)
        sizes = {name: tuple(value.shape) for name, value in state.items() if value.shape[:1] != (self.num_envs,)}
        if sizes:
            raise StateError(f"Expected a state of {self.num_envs} rows, got tensors of the shapes {sizes}.")
        try:
            self._restore(state)
        except KeyError as missing:
            raise StateError(
                f"Expected a state of {self.label} with {list(missing.args)}, got {sorted(state)}. Restore what "
                "get_state of a simulator with the same arguments returned."
            ) from missing
        self.was_reset = True

    def render(self, row: int) -> np.ndarray | None:
        """Returns a frame `[height, width, 3]` uint8 of one row; None without a render mode."""
        return None if self.render_mode is None else self._draw(row)

    def close(self) -> None:  # noqa: B027  (most simulators have nothing to close)
        """Frees what rendering made. Further calls have no effect."""

    # -- what a subclass defines -------------------------------------------------------------------

    def _draw(self, row: int) -> np.ndarray:
        raise NotImplementedError(f"Expected {type(self).__name__} to define _draw(row) for frames.")

    @abstractmethod
    def _seed(self, seeds: Sequence[int | None]) -> None:
        """Seeds the rows of all seeds that are not None, for their next episodes."""

    @abstractmethod
    def _reset_all(self, seeds: Seeds, options: ResetOptions) -> Tree:
        """Starts an episode in all rows, which were seeded with `seeds`, and returns the observations."""

    @abstractmethod
    def _reset_rows(self, mask: Tensor) -> Tree:
        """Starts an episode in the rows of `mask`, and returns the observations of all rows."""

    @abstractmethod
    def _restore(self, state: Mapping[str, Tensor]) -> None:
        """Restores copies of the entries of `state`, which has all rows. A KeyError of it must not change anything."""

    # -- checks ------------------------------------------------------------------------------------

    def _check_mask(self, mask: Tensor) -> None:
        if mask.shape != (self.num_envs,) or mask.dtype != torch.bool:
            raise SpaceError(
                f"Expected a bool mask of shape {(self.num_envs,)}, got {mask.dtype} of shape {tuple(mask.shape)}. "
                "Give one bool per environment."
            )

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"Expected an open simulator of {self.label}, got one that was closed. Make a new one.")

    def _require_reset(self) -> None:
        self._require_open()
        if not self.was_reset:
            raise PendingError(f"No episode of {self.label} was started. Call reset first.")


class BatchAdapter(BatchDriver):
    """The base for an adapter of a library, which implements a `BatchSimulator` from a few methods; see `BatchDriver`.

    A subclass defines `start`, `advance` and `observe`; `draw` if it renders; `read_state` and `write_state` if it has
    states; `free` if a library must be closed. Tensors are on `device`. A tensor that a method has returned must not be
    changed later.

    Args:
        num_envs, observation_space, action_space: as in `BatchDriver`.
        options: as in `BatchDriver`. `max_episode_steps` is None if only the library ends episodes.

    Attributes:
        checks_range: whether to check that actions of a Discrete space are in range, which waits for a device.
        no_states: what to do if there are no states.
        streams: the random streams of the rows.
    """

    checks_range: ClassVar[bool] = True
    no_states: ClassVar[str] = "Reset the rows instead."

    def __init__(self, num_envs: int, observation_space: AnySpace, action_space: AnySpace, **options: Any):
        super().__init__(num_envs, observation_space, action_space, **options)
        self._has_choices = isinstance(action_space, Discrete)
        self.streams = RowStreams(self.num_envs)
        self._steps = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)  # of the running episodes

    # -- what a subclass defines -------------------------------------------------------------------

    @abstractmethod
    def start(self, rows: np.ndarray, seeds: Seeds) -> None:
        """Starts an episode in some rows.

        Args:
            rows: `[m]` int64, the numbers of the rows in ascending order, at least one; all in a `reset`.
            seeds: the seeds `[n]` of a `reset`, for a library with random streams of its own; None in a `reset_where`.
                A library that takes one seed per episode takes those of `streams.draw(rows)`.
        """

    @abstractmethod
    def advance(self, actions: Tree) -> BatchStep:
        """Steps all rows, without a reset."""

    @abstractmethod
    def observe(self) -> Tree:
        """Returns the observations of all rows."""

    def draw(self, row: int) -> np.ndarray:
        """Returns a frame `[height, width, 3]` uint8 of one row."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define draw(row), got render_fps without it.")

    def read_state(self) -> dict[str, Tensor]:
        """Returns copies of the state of the library, tensors of leading size n."""
        raise self._no_states("read")

    def write_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `read_state` returned; there may be other entries beside it."""
        raise self._no_states("write")

    def free(self) -> None:
        """Closes the library. It is called once."""

    # -- BatchSimulator ----------------------------------------------------------------------------

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Seeds the rows of all seeds that are not None, for their next episodes."""
        self.streams.seed(seeds)

    def step(self, actions: Tree) -> BatchStep:
        """Steps all rows.

        Raises:
            SpaceError: an action of a Discrete space is out of range.
            PendingError: there was no reset.
        """
        self._require_reset()
        self._check_range(actions)
        step = self.advance(actions)
        flags = getattr(step, "truncated", None)
        if self._limit == NO_LIMIT or not isinstance(flags, Tensor) or flags.dtype != torch.bool:
            return step  # a wrong result is refused by the checks of all simulators
        self._steps += 1
        return replace(step, truncated=flags | (self._steps >= self._limit))

    def get_state(self) -> dict[str, Tensor]:
        """Returns copies of the complete state: of the library, the random streams, and step counts of a time limit.

        Raises:
            NotImplementedError: the library has no states.
        """
        state = self.read_state()
        names = self._own_entries
        if used := state.keys() & set(names):
            raise StateError(
                f"Expected read_state of {self.label} to use other names than {sorted(used)}. Rename them."
            )
        own = zip(names, self._own_values, strict=False)
        return state | {name: torch.as_tensor(value, device=self.device).clone() for name, value in own}

    def close(self) -> None:
        """Closes the library. Further calls have no effect."""
        if not self._closed:
            self._closed = True
            self.free()

    # -- BatchDriver -------------------------------------------------------------------------------

    def _draw(self, row: int) -> np.ndarray:
        return self.draw(row)

    def _seed(self, seeds: Sequence[int | None]) -> None:
        self.seed(seeds)

    def _reset_all(self, seeds: Seeds, options: ResetOptions) -> Tree:
        self._start(np.arange(self.num_envs), [None] * self.num_envs if seeds is None else seeds)
        return self.observe()

    def _reset_rows(self, mask: Tensor) -> Tree:
        self._start(on_host(mask).nonzero()[0], None)
        return self.observe()

    def _restore(self, state: Mapping[str, Tensor]) -> None:
        if type(self).write_state is BatchAdapter.write_state:
            raise self._no_states("write")
        roots, counts, *steps = (state[name] for name in self._own_entries)
        own = dict(zip(self._own_entries, map(torch.as_tensor, self._own_values), strict=False))
        check_entries(self.label, state, own)
        self.write_state(state)
        self.streams.roots, self.streams.counts = on_host(roots).copy(), on_host(counts).copy()
        self._steps = steps[0].clone() if steps else self._steps

    # -- private methods ---------------------------------------------------------------------------

    @property
    def _own_entries(self) -> tuple[str, ...]:
        return OWN_ENTRIES[:2] if self._limit == NO_LIMIT else OWN_ENTRIES

    @property
    def _own_values(self) -> tuple[Any, ...]:
        return self.streams.roots, self.streams.counts, self._steps

    def _no_states(self, verb: str) -> NotImplementedError:
        text = f"Expected a simulator with states, got {self.label}, which cannot {verb} its states. {self.no_states}"
        return NotImplementedError(text)

    def _start(self, rows: np.ndarray, seeds: Seeds) -> None:
        if len(rows):
            self.start(rows, seeds)
            if self._limit != NO_LIMIT:
                self._steps[torch.from_numpy(rows)] = 0

    def _check_range(self, actions: Any, ids: Any = None) -> None:
        """Checks the actions of a Discrete space: those of all rows, or of the rows `ids`."""
        if self._has_choices and self.checks_range:
            array = on_host(actions) if isinstance(actions, Tensor) else actions
            check_discrete(array, self.action_space, self.label, ids)


class SelfResetAdapter(BatchAdapter):
    """The base for a library that starts the next episodes of ended rows itself, in the same or in the next step.

    The first observations of these episodes are kept until a reset asks for them. `advance` sets `at_start`.

    Attributes:
        at_start: `[n]` bool, the rows at the start of an episode that the library has started itself.
        resets_again: whether a second reset of such rows, before a step, starts another episode. If it does not,
            rows are also in `at_start` after a reset.
    """

    resets_again: ClassVar[bool] = True
    at_start: np.ndarray

    def _reset_all(self, seeds: Seeds, options: ResetOptions) -> Tree:
        obs = super()._reset_all(seeds, options)
        self.at_start = np.full(self.num_envs, not self.resets_again)
        return obs

    def _reset_rows(self, mask: Tensor) -> Tree:
        self._restart(on_host(mask))
        return self.observe()

    def _restart(self, rows: np.ndarray) -> None:
        """Starts an episode in the rows of the bool `rows` `[n]` that are not at the start of one."""
        self._start((rows & ~self.at_start).nonzero()[0], None)
        self.at_start = self.at_start & ~rows if self.resets_again else self.at_start | rows

    def step_and_reset(self, actions: Tree) -> tuple[BatchStep, Tensor, Tree]:
        """Steps all rows, then resets those with an ended episode; see `SupportsStepAndReset`."""
        step = self.step(actions)
        done = torch.logical_or(step.terminated, step.truncated)
        return step, done, self.reset_where(done)


def named_infos(infos: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested infos, with names as "a/b"."""
    for name, value in infos.items():
        if isinstance(value, Mapping):
            yield from named_infos(value, f"{path}{name}/")
        else:
            yield f"{path}{name}", value


def space_of_rows(obs: Tree) -> AnySpace:
    """Returns the space of one row of a nested dict of tensors `[n, ...]`, without bounds."""
    if isinstance(obs, Mapping):
        return spaces.Dict({name: space_of_rows(part) for name, part in obs.items()})
    dtype: Any = torch.empty(0, dtype=obs.dtype).numpy().dtype.type
    if obs.dtype.is_floating_point:
        low, high = -np.inf, np.inf
    elif obs.dtype == torch.bool:
        low, high = 0, 1
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, tuple(obs.shape[1:]), dtype)
