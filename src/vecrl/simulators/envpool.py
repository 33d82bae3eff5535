"""Adapts EnvPool, which steps environments by threads in C++, to a `BatchSimulator` of torch tensors on the CPU.

EnvPool resets a row that is done at its next step, and ignores the action. Where this would lose an action, rows are
reset by their ids before that step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..engine.simulator import BatchStep
from ..engine.space_layout import AnySpace, Tree
from ..engine.trees import map_tree
from ..errors import SpaceError
from ..imports import import_library
from ..registries import check_name
from .array_library import step_in_tensors
from .batch_adapter import Seeds, SelfResetAdapter, named_infos

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


class EnvPoolSimulator(SelfResetAdapter):
    """`num_envs` environments of EnvPool in its synchronous mode; see `BatchAdapter`.

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
        arrays: "numpy", see `SupportsArrays`.

    Raises:
        ImportError: EnvPool is not installed.
        ValueError: there is no environment of this name, or an argument cannot be used.
        SpaceError: it has several players.
    """

    arrays = "numpy"

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
        obs_space, action_space = map(
            with_infinite_bounds, (spec.gymnasium_observation_space, spec.gymnasium_action_space)
        )
        super().__init__(num_envs, obs_space, action_space)
        self.name, self.label = name, f"EnvPool's {name}"
        self.env: Any = None
        self._make_options = {"num_threads": num_threads or 0, **kwargs}
        self._infos = infos
        self._all_rows_in_order = np.arange(num_envs, dtype=np.int32).tobytes()
        self._done = np.zeros(num_envs, bool)  # rows that EnvPool resets at their next step
        self._obs: Tree = None
        self._read_obs = _reader(obs_space)

    def start(self, rows: np.ndarray, seeds: Seeds) -> None:
        """Starts episodes. EnvPool takes seeds only when it makes environments, so with a seed, all are made again."""
        if self.env is None or (seeds is not None and any(seed is not None for seed in seeds)):
            self.env = None  # ends the threads first
            row_seeds = [seed % 2**31 for seed in self.streams.draw(np.arange(self.num_envs))]  # an int32 in EnvPool
            options = {"num_envs": self.num_envs, "seed": row_seeds, **self._make_options}
            self.env = envpool_library().make(self.name, env_type="gymnasium", **options)
        obs, info = self.env.reset(rows)
        self._obs = self._all_rows(obs, info["env_id"], self._obs)
        self._done[rows] = False

    def advance(self, actions: Tree) -> BatchStep:
        """Steps all rows."""
        return step_in_tensors(self._advance(map_tree(Tensor.numpy, actions), None))

    def step_and_reset(self, actions: Tree) -> tuple[BatchStep, Tensor, Tree]:
        """Steps all rows, then resets those with an ended episode; see `SupportsStepAndReset`."""
        step, done, obs = self.step_and_reset_arrays(map_tree(Tensor.numpy, actions))
        return step_in_tensors(step), torch.from_numpy(done), map_tree(torch.from_numpy, obs)

    def step_and_reset_arrays(
        self, actions: Tree, mask: np.ndarray | None = None
    ) -> tuple[BatchStep, np.ndarray, Tree]:
        """Returns what `step_and_reset` does as NumPy arrays; see `SupportsArrays`."""
        self._require_reset()
        self._check_range(actions)
        step = self._advance(actions, None)
        done: Any = step.terminated | step.truncated
        self._restart(done if mask is None else mask)
        return step, done, self._read_obs(self._obs)

    def step_where(self, mask: Tensor, actions: Tree) -> BatchStep:
        """Steps the rows of the bool `mask` `[n]`; the results of others are zeros, except for observations."""
        self._require_reset()
        rows, at_start, done = mask.numpy(), self.at_start, self._done
        ids = np.flatnonzero(rows)
        selected = map_tree(lambda action: action.numpy()[ids], actions)
        self._check_range(selected, ids)
        step = step_in_tensors(self._advance(selected, ids))
        self.at_start, self._done = np.where(rows, self.at_start, at_start), np.where(rows, self._done, done)
        return step

    def observe(self) -> Tree:
        """Returns the observations of all rows."""
        return map_tree(torch.from_numpy, self._read_obs(self._obs))

    def free(self) -> None:
        """Ends EnvPool's threads."""
        self.env = None

    # -- private methods -------------------------------------------------------------------------------

    def _advance(self, actions: Tree, ids: np.ndarray | None) -> BatchStep:
        obs, *results, info = self.env.step(actions, ids)  # also reward, terminated and truncated
        rows = info["env_id"]
        if rows.tobytes() != self._all_rows_in_order:
            obs = self._all_rows(obs, rows, self._obs)
            results, info = [self._all_rows(result, rows) for result in results], self._all_rows(info, rows)
        self._obs = obs
        self.at_start, self._done = self._done, results[1] | results[2]
        reward, terminated, truncated = results
        read_infos = self._read_infos(info) if self._infos else {}
        return BatchStep(self._read_obs(self._obs), reward, terminated, truncated, read_infos)

    def _read_infos(self, info: Mapping[str, Any]) -> dict[str, np.ndarray]:
        arrays = named_infos({name: value for name, value in info.items() if name not in NO_INFOS})
        return {name: x for name, x in arrays if len(x) == self.num_envs and x.dtype.kind in "biuf"}

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
    """Returns a function that converts arrays to the dtypes of a space; EnvPool's Discrete is int32."""
    if isinstance(space, spaces.Dict):
        readers = {key: _reader(part) for key, part in space.items()}
        return lambda obs: {key: read(obs[key]) for key, read in readers.items()}
    dtype = space.dtype
    return lambda obs: obs.astype(dtype, copy=False)
