"""What the adapters of batched simulators share: streams, resets of some rows, time limits, states and checks.

`BatchAdapter` is the base of an adapter, and `SelfResetAdapter` that of a library which resets rows itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..engine.simulator import BatchStep, ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..errors import ClosedError, PendingError, SpaceError, StateError
from ..seeding import random_seeds, seed_for
from ..validation import check_discrete, check_length, check_seeds, normalize_device, parse_count, parse_optional_count

Seeds = Sequence[int | None] | None
STEPS = "episode_steps"


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


class BatchAdapter(ABC):
    """Implements `vecrl.engine.simulator.BatchSimulator` from a few methods of a subclass.

    A subclass defines `start`, `advance` and `observe`; `draw` if it renders; `read_state` and `write_state` if it has
    states; `free` if a library must be closed. Tensors are on `device`. A tensor that a method has returned must not be
    changed later.

    Args:
        num_envs: n, the number of rows.
        observation_space, action_space: the spaces of one row.
        device: a torch device or its name; None for the CPU.
        render_mode: None or "rgb_array".
        render_fps: frames per second of a video in real time; None for a simulator that does not render.
        max_episode_steps: truncates episodes of this length; None or -1 if only the library ends episodes.

    Attributes:
        label: the name in messages; by default that of the class.
        checks_range: whether to check that actions of a Discrete space are in range, which waits for a device.
        no_states: what to do if there are no states.
        streams: the random streams of the rows.
        was_reset: whether there was a reset, without which rows cannot be stepped.

    Raises:
        ValueError: an argument is out of range.
    """

    label: str
    checks_range: ClassVar[bool] = True
    no_states: ClassVar[str] = "Reset the rows instead."

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
        modes = [] if render_fps is None else ["rgb_array"]
        if render_mode not in (None, *modes):
            raise ValueError(f"Expected render_mode {' or '.join(map(repr, [None, *modes]))}, got {render_mode!r}.")
        self.label = getattr(self, "label", type(self).__name__)
        self.num_envs = parse_count("num_envs", num_envs)
        self.observation_space, self.action_space = observation_space, action_space
        self.device = str(torch.device(normalize_device(device or "cpu")))
        self.render_mode, self._has_choices = render_mode, isinstance(action_space, Discrete)
        self.metadata: dict[str, Any] = {"render_modes": modes} | ({"render_fps": render_fps} if modes else {})
        self.streams = RowStreams(self.num_envs)
        self.was_reset = self._closed = False
        limit = None if max_episode_steps == -1 else max_episode_steps
        self._limit = parse_optional_count("max_episode_steps", limit)
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

    def free(self) -> None:  # noqa: B027  (most libraries have nothing to close)
        """Closes the library. It is called once."""

    # -- BatchSimulator ----------------------------------------------------------------------------

    def seed(self, seeds: Sequence[int | None]) -> None:
        """Seeds the rows of all seeds that are not None, for their next episodes.

        Raises:
            SpaceError: there is not one seed per row, or one is below 0 or at least 2**64.
        """
        check_length("seeds", seeds, self.num_envs)
        check_seeds(seeds)
        self.streams.seed(seeds)

    def reset(self, seeds: Seeds = None, options: ResetOptions | None = None) -> Tree:
        """Starts an episode in every row and returns the observations.

        Args:
            seeds: `seeds[i]` seeds row i, unless it is None.
            options: must be empty.
        """
        self._require_open()
        if options:
            raise SpaceError(f"Expected no reset options for {self.label}, got {sorted(options)}. Omit them.")
        seeds = [None] * self.num_envs if seeds is None else seeds
        self.seed(seeds)
        self._start(np.arange(self.num_envs), seeds)
        self.was_reset = True
        return self.observe()

    def reset_where(self, mask: Tensor) -> Tree:
        """Starts an episode in the rows of the bool `mask` `[n]` and returns the observations of all rows."""
        self._require_reset()
        self._start(np.flatnonzero(_on_host(mask)), None)
        return self.observe()

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
        if self._limit is None or not isinstance(flags, Tensor) or flags.dtype != torch.bool:
            return step  # a wrong result is refused by the checks of all simulators
        self._steps += 1
        return replace(step, truncated=flags | (self._steps >= self._limit))

    def render(self, row: int) -> np.ndarray | None:
        """Returns a frame `[height, width, 3]` uint8 of one row; None without a render mode."""
        return None if self.render_mode is None else self.draw(row)

    def get_state(self) -> dict[str, Tensor]:
        """Returns copies of the complete state: of the library, the random streams, and step counts of a time limit.

        Raises:
            NotImplementedError: the library has no states.
        """
        state = self.read_state()
        if used := state.keys() & set(self._own_entries()):
            raise StateError(
                f"Expected read_state of {self.label} to use other names than {sorted(used)}. Rename them."
            )
        streams = {"seeds": self.streams.roots, "episodes": self.streams.counts}
        state |= {name: torch.tensor(values, device=self.device) for name, values in streams.items()}
        return state if self._limit is None else state | {STEPS: self._steps.clone()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores a state that `get_state` returned.

        Raises:
            NotImplementedError: the library has no states.
            StateError: the state is of another number of rows, or has no entries of the streams or the time limit.
        """
        self._require_open()
        if type(self).write_state is BatchAdapter.write_state:
            raise self._no_states("write")
        sizes = {name: tuple(value.shape) for name, value in state.items() if value.shape[:1] != (self.num_envs,)}
        if sizes:
            raise StateError(f"Expected a state of {self.num_envs} rows, got tensors of the shapes {sizes}.")
        if missing := set(self._own_entries()) - state.keys():
            raise StateError(
                f"Expected a state of {self.label} with {sorted(missing)}, got {sorted(state)}. Restore what "
                "get_state of a simulator with the same time limit returned."
            )
        self.write_state(state)
        self.streams.roots, self.streams.counts = (
            state[name].numpy(force=True).copy() for name in ("seeds", "episodes")
        )
        if self._limit is not None:
            self._steps = state[STEPS].clone()
        self.was_reset = True

    def close(self) -> None:
        """Closes the library. Further calls have no effect."""
        if not self._closed:
            self._closed = True
            self.free()

    # -- private methods ---------------------------------------------------------------------------

    def _own_entries(self) -> tuple[str, ...]:
        return ("seeds", "episodes") if self._limit is None else ("seeds", "episodes", STEPS)

    def _no_states(self, verb: str) -> NotImplementedError:
        text = f"Expected a simulator with states, got {self.label}, which cannot {verb} its states. {self.no_states}"
        return NotImplementedError(text)

    def _start(self, rows: np.ndarray, seeds: Seeds) -> None:
        if len(rows):
            self.start(rows, seeds)
            if self._limit is not None:
                self._steps[torch.from_numpy(rows)] = 0

    def _check_range(self, actions: Any, ids: Any = None) -> None:
        """Checks the actions of a Discrete space: those of all rows, or of the rows `ids`."""
        if self._has_choices and self.checks_range:
            array = _on_host(actions) if isinstance(actions, Tensor) else actions
            check_discrete(array, self.action_space, self.label, ids)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"Expected an open simulator of {self.label}, got one that was closed. Make a new one.")

    def _require_reset(self) -> None:
        self._require_open()
        if not self.was_reset:
            raise PendingError(f"No episode of {self.label} was started. Call reset first.")


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

    def reset(self, seeds: Seeds = None, options: ResetOptions | None = None) -> Tree:
        """Starts an episode in every row and returns the observations, see `BatchAdapter.reset`."""
        obs = super().reset(seeds, options)
        self.at_start = np.full(self.num_envs, not self.resets_again)
        return obs

    def reset_where(self, mask: Tensor) -> Tree:
        """Returns the observations of all rows; starts episodes in the rows of `mask` that are not in `at_start`."""
        self._require_reset()
        rows = _on_host(mask)
        self._start(np.flatnonzero(rows & ~self.at_start), None)
        self.at_start = self.at_start & ~rows if self.resets_again else self.at_start | rows
        return self.observe()

    def step_and_reset(self, actions: Tree) -> tuple[BatchStep, Tensor, Tree]:
        """Steps all rows, then resets those with an ended episode; see `SupportsStepAndReset`."""
        step = self.step(actions)
        done = torch.logical_or(step.terminated, step.truncated)
        return step, done, self.reset_where(done)


def _on_host(tensor: Tensor) -> np.ndarray:
    return tensor.numpy(force=not tensor.is_cpu or tensor.requires_grad)  # `force` takes 3 microseconds


def named_infos(infos: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested infos, with names as "a/b"."""
    for name, value in infos.items():
        if isinstance(value, Mapping):
            yield from named_infos(value, f"{path}{name}/")
        else:
            yield f"{path}{name}", value
