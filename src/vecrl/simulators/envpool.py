"""Adapts EnvPool, which steps environments by threads in C++, to a `BatchSimulator` of torch tensors on the CPU.

EnvPool resets a row that is done at its next step, and ignores the action. Where this would lose an action, rows are
reset by their ids before that step. A reset that is asked for after that step has been done by it. This module must not
know auto-reset modes or dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..engine.simulator import BatchStep, ResetOptions
from ..engine.space_layout import AnySpace, Tree
from ..errors import SpaceError
from ..imports import import_library
from ..registries import check_name
from ..seeding import random_seeds, seed_for
from ..validation import check_discrete, check_seeds

NO_INFOS = ("env_id", "players")  # the numbers of rows and players


def envpool_library() -> Any:
    """Imports EnvPool.

    Raises:
        ImportError: it is not installed; the message names the extra that installs it.
    """
    return import_library("envpool", 'EnvPool is not installed: pip install "vecrl[envpool]"')


def names() -> list[str]:
    """Returns the names of all environments.

    Raises:
        ImportError: EnvPool is not installed.
    """
    return sorted(envpool_library().list_all_envs())


def make_batch(name: str, num_envs: int, **kwargs: Any) -> EnvPoolSimulator:
    """Constructs an `EnvPoolSimulator`, as `vecrl.simulators.registry` needs it."""
    return EnvPoolSimulator(name, num_envs, **kwargs)


class EnvPoolSimulator:
    """`num_envs` environments of EnvPool in its synchronous mode; a `vecrl.engine.simulator.BatchSimulator`.

    Observations and actions are CPU tensors of the dtypes of the spaces, rewards `[n]` are float32. The infos of steps
    are EnvPool's, nested ones by names as "a/b". The observations of a step share memory with those of the next
    `reset_where` if that resets no row.

    Args:
        name: EnvPool's name of the task.
        num_envs: the number of rows.
        device: "cpu" or None.
        infos: return the infos of steps.
        num_threads: threads of EnvPool; None for one per core, at most `num_envs`.
        render_mode: None, since EnvPool ends the process when it renders without a display.
        kwargs: further arguments of `envpool.make`, such as `max_episode_steps`.

    Attributes:
        env: EnvPool's environment; None before the first reset.

    Raises:
        ImportError: EnvPool is not installed.
        ValueError: there is no environment of this name, or an argument cannot be used.
        SpaceError: it has several players.
    """

    device = "cpu"
    metadata: dict[str, Any] = {"render_modes": []}
    render_mode: str | None = None

    def __init__(
        self,
        name: str,
        num_envs: int,
        *,
        device: str | torch.device | None = None,
        infos: bool = True,
        num_threads: int | None = None,
        render_mode: str | None = None,
        **kwargs: Any,
    ):
        library = envpool_library()
        check_name("an environment of EnvPool", name, library.list_all_envs())
        if torch.device(device or "cpu").type != "cpu" or render_mode is not None:
            raise ValueError(
                f"Expected device 'cpu' and render_mode None, got {device!r} and {render_mode!r}: EnvPool computes on "
                "the CPU, and ends the process when it renders. Omit them."
            )
        spec = library.make_spec(name, **kwargs)
        if spec.config.max_num_players != 1:
            raise SpaceError(f"Expected an environment of one player, got {name} of {spec.config.max_num_players}.")
        self.name, self.num_envs = name, num_envs
        self.observation_space = with_infinite_bounds(spec.gymnasium_observation_space)
        self.action_space = with_infinite_bounds(spec.gymnasium_action_space)
        self.env: Any = None
        self._make_options = {"num_threads": num_threads or 0, **kwargs}
        self._infos = infos
        self._seeds = random_seeds(num_envs).tolist()
        self._remakes = [0] * num_envs
        self._all_rows_in_order = np.arange(num_envs, dtype=np.int32).tobytes()
        # rows that EnvPool resets at their next step, and those that the last step has reset
        self._done, self._is_reset = np.zeros((2, num_envs), bool)
        self._obs: Tree = None
        self._read_obs = _reader(self.observation_space)

    def reset(self, seeds: Sequence[int | None] | None = None, options: ResetOptions | None = None) -> Tree:
        """Resets every row and returns the observations.

        Args:
            seeds: `seeds[i]` seeds row i. EnvPool takes seeds only when it makes environments, so all are made again
                if any row has a seed, and rows without one get the next one of their stream.
            options: must be empty, since EnvPool has none.
        """
        if options:
            raise SpaceError(f"Expected no reset options for EnvPool, got {sorted(options)}.")
        seeds = [None] * self.num_envs if seeds is None else seeds
        if self.env is None or any(seed is not None for seed in seeds):
            self._make(seeds)
        self._done, self._is_reset = np.zeros((2, self.num_envs), bool)
        return self._reset_ids(np.arange(self.num_envs))

    def reset_where(self, mask: Tensor) -> Tree:
        """Resets the rows of the bool `mask` `[n]` and returns the observations of all rows."""
        rows = mask.numpy()
        ids = np.flatnonzero(rows & ~self._is_reset)
        self._done, self._is_reset = self._done & ~rows, self._is_reset & ~rows
        return self._reset_ids(ids)

    def step(self, actions: Tree) -> BatchStep:
        """Steps all rows."""
        return self._step(_map(Tensor.numpy, actions), None)

    def step_where(self, mask: Tensor, actions: Tree) -> BatchStep:
        """Steps the rows of the bool `mask` `[n]`; the results of others are zeros, except for observations."""
        ids = np.flatnonzero(mask.numpy())
        return self._step(_map(lambda action: action.numpy()[ids], actions), ids)

    def step_and_reset(self, actions: Tree) -> tuple[BatchStep, Tensor, Tree]:
        """Steps all rows, then resets those with an ended episode; see `SupportsStepAndReset`."""
        step = self.step(actions)
        done = torch.logical_or(step.terminated, step.truncated)
        return step, done, self.reset_where(done)

    def render(self, row: int) -> np.ndarray | None:
        """Returns None: EnvPool ends the process when it renders."""
        return None

    def get_state(self) -> NoReturn:
        """Raises a `NotImplementedError`: EnvPool cannot read states."""
        raise NotImplementedError("Expected a simulator with states, got EnvPool, which cannot read its states.")

    def set_state(self, state: Mapping[str, Tensor]) -> NoReturn:
        """Raises a `NotImplementedError`: EnvPool cannot write states."""
        raise NotImplementedError("Expected a simulator with states, got EnvPool, which cannot write its states.")

    def close(self) -> None:
        """Ends EnvPool's threads. Further calls have no effect."""
        self.env = None

    # -- private methods -------------------------------------------------------------------------------

    def _make(self, seeds: Sequence[int | None]) -> None:
        check_seeds(seeds)
        for row, seed in enumerate(seeds):
            self._remakes[row] += 1
            if seed is not None:
                self._seeds[row], self._remakes[row] = int(seed), 0
        row_seeds = [
            (seed_for(seed, 0, remakes) if remakes else seed) % 2**31  # an int32 in EnvPool
            for seed, remakes in zip(self._seeds, self._remakes, strict=True)
        ]
        self.env = None  # ends the threads first
        options = {"num_envs": self.num_envs, "seed": row_seeds, **self._make_options}
        self.env = envpool_library().make(self.name, env_type="gymnasium", **options)

    def _reset_ids(self, ids: np.ndarray) -> Tree:
        if len(ids):
            obs, info = self.env.reset(ids)
            self._obs = self._all_rows(obs, info["env_id"], self._obs)
        return self._read_obs(self._obs)

    def _step(self, actions: Tree, ids: np.ndarray | None) -> BatchStep:
        if isinstance(self.action_space, spaces.Discrete):
            check_discrete(actions, self.action_space, self.name, ids)  # EnvPool takes any number
        obs, *results, info = self.env.step(actions, ids)
        rows = info["env_id"]
        if rows.tobytes() != self._all_rows_in_order:
            obs = self._all_rows(obs, rows, self._obs)
            results, info = [self._all_rows(result, rows) for result in results], self._all_rows(info, rows)
        self._obs = obs
        self._is_reset, self._done = self._done, results[1] | results[2]
        if ids is not None:
            self._keep_flags(ids)
        reward, terminated, truncated = map(torch.from_numpy, results)
        infos = dict(_flat(info, self.num_envs)) if self._infos else {}
        return BatchStep(self._read_obs(obs), reward, terminated, truncated, infos)

    def _keep_flags(self, ids: np.ndarray) -> None:
        """Corrects the flags of rows that a step of the rows `ids` has left."""
        others = np.ones(self.num_envs, bool)
        others[ids] = False
        self._done |= self._is_reset & others
        self._is_reset = self._is_reset & ~others

    def _all_rows(self, part: Tree, rows: np.ndarray, whole: Tree = None) -> Tree:
        """Returns the values of all rows: those of `part` in `rows`, and those of `whole`, or zeros, in others."""
        if isinstance(part, Mapping):
            return {key: self._all_rows(value, rows, whole and whole[key]) for key, value in part.items()}
        whole = np.zeros((self.num_envs, *part.shape[1:]), part.dtype) if whole is None else whole.copy()
        whole[rows] = part
        return whole


def with_infinite_bounds(space: AnySpace) -> AnySpace:
    """Replaces the smallest normal and the largest float as bounds of a space, by which EnvPool means infinity."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: with_infinite_bounds(part) for key, part in space.items()})
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    limits, low, high = np.finfo(space.dtype), space.low, space.high
    low, high = np.where(low == limits.tiny, -np.inf, low), np.where(high == limits.max, np.inf, high)
    return spaces.Box(low, high, dtype=space.dtype.type)


def _reader(space: AnySpace) -> Callable[[Any], Tree]:
    """Returns a function that converts arrays to tensors of the dtypes of a space; EnvPool's Discrete is int32."""
    if isinstance(space, spaces.Dict):
        readers = {key: _reader(part) for key, part in space.items()}
        return lambda obs: {key: read(obs[key]) for key, read in readers.items()}
    dtype = space.dtype
    return lambda obs: torch.from_numpy(obs.astype(dtype, copy=False))


def _flat(info: Mapping[str, Any], num_envs: int, path: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in info.items():
        if isinstance(value, Mapping):
            if path or key not in NO_INFOS:
                yield from _flat(value, num_envs, f"{path}{key}/")
        elif (path or key not in NO_INFOS) and len(value) == num_envs and value.dtype.kind in "biuf":
            yield f"{path}{key}", torch.from_numpy(value)


def _map(function: Callable[[Any], Any], tree: Tree) -> Tree:
    return {key: _map(function, part) for key, part in tree.items()} if isinstance(tree, dict) else function(tree)
