"""Adapts vector environments of gymnasium and gym so that all auto-reset modes look alike.

A step returns the true successor of every row, final observations included. A row that is done starts the next episode
when it is reset.

    mode        final observations are             how a row is reset
    same-step   in the info                        the step did it: the first observation is kept until the reset
    next-step   in the observations                by a partial reset, so that no action is ignored
    disabled    in the observations                by a partial reset
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from ....engine.infos import merge
from ....engine.space_layout import Layout
from ....engine.transition import AutoresetMode, autoreset_mode
from ....errors import SpaceError
from ....gym_interface import check_interface
from ....simulators.legacy_gym import as_gymnasium_space
from ....validation import parse_optional_count

_HAS_AUTORESET_MODES = hasattr(gymnasium.vector, "AutoresetMode")  # added to gymnasium together with partial resets
Info = dict[str, Any]
Seeds = list[int | None] | None
_MASKED_RESETS = (
    (gymnasium.vector.SyncVectorEnv.reset, gymnasium.vector.AsyncVectorEnv.reset) if _HAS_AUTORESET_MODES else ()
)
_FINAL_KEYS = ("final_obs", "final_observation", "final_info")


def is_vector(env: object) -> bool:
    """Returns whether this is a vector environment of gymnasium or of the old gym."""
    return isinstance(env, gymnasium.vector.VectorEnv) or (
        hasattr(env, "num_envs") and hasattr(env, "single_observation_space")
    )


def is_envpool(env: object) -> bool:
    """Returns whether this is an environment of EnvPool, which may not be imported."""
    return any(cls.__name__ == "EnvPoolMixin" for cls in type(env).__mro__)


def check_gym_env(env: object) -> None:
    """Raises a `TypeError` unless this is a single or vector environment of gymnasium or gym."""
    if is_envpool(env):
        raise TypeError("Expected an environment of gymnasium, got one of EnvPool. Use MultiThreadedEnvWrapper.")
    if hasattr(env, "full_observation_spec"):
        raise TypeError(f"Expected an environment of gymnasium, got {env!r:.80}, which is over TensorDicts already.")
    if not is_vector(env):
        check_interface(env)


def single_spaces_of(env: Any) -> tuple[Any, Any]:
    """Returns the observation and action spaces of a single environment, or of one row of a vector environment."""
    if is_vector(env):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def num_rows_of(num_envs: int | None, num_workers: int | None) -> int | None:
    """Returns the number of environments for arguments of `GymEnv`; None for a single one without batch dimensions."""
    given = {"num_envs": num_envs, "num_workers": num_workers}
    rows, workers = (
        None if isinstance(count, int) and not count else parse_optional_count(name, count)
        for name, count in given.items()
    )
    return workers if rows is None and workers != 1 else rows


def make_gym_vector(
    make_env: Callable[[], Any], count: int, backend: object, num_workers: int | None, **options: Any
) -> gymnasium.vector.VectorEnv:
    """Makes a `VectorEnv` of `count` environments, by default over processes if there are several workers."""
    from ....vector import VectorEnv

    if backend is None:
        backend = "serial" if (num_workers or 1) == 1 else "processes"
    options |= {"backend": backend, "num_workers": num_workers}
    return VectorEnv([make_env] * count, autoreset_mode="same_step", **options)


def autoreset_mode_of(env: object) -> AutoresetMode:
    """Returns the auto-reset mode of a vector environment; by default that of old gym's."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode") or getattr(env, "autoreset_mode", None)
    if mode is not None:
        return autoreset_mode(getattr(mode, "value", mode))
    return AutoresetMode.SAME_STEP


class VectorEnvAdapter:
    """A vector environment in which done rows start a new episode only when `reset` selects them.

    Args:
        env: the vector environment.
        read_output: converts the result of its `step` to (obs, reward, terminated, truncated, done, info).
        missing_value: the value of final observations that it does not return, for float dtypes; zeros for others.

    Attributes:
        mode: its auto-reset mode.
        layout: the layout of one row's observations.
        returns_copies: whether it never writes again to the arrays that it returned.
    """

    def __init__(self, env: Any, read_output: Callable[[Any], Any], missing_value: object = np.nan):
        parameters = inspect.signature(env.reset).parameters
        if "seed" not in parameters and "kwargs" not in parameters:
            raise SpaceError(
                f"Expected a vector environment of gymnasium or gym 0.26, got a {type(env).__name__}, which takes no "
                "seed in reset. Batch its environments with GymEnv(name, num_envs=n), or in a vecrl.vector.VectorEnv."
            )
        self.env = env
        self.num_envs: int = env.num_envs
        self.mode = autoreset_mode_of(env)
        self.layout = Layout(as_gymnasium_space(env.single_observation_space))
        is_wrapped = isinstance(env, gymnasium.vector.VectorWrapper)
        self.returns_copies = getattr(env, "copy", False) is True and not is_wrapped
        self._read = read_output
        self._missing = missing_value
        self._self_reset: tuple[np.ndarray, Any, Info] | None = None  # rows, observations of all rows, infos
        self._pending_reset: np.ndarray | None = None  # rows that are done and not reset
        self._latest_obs: Any = None  # kept until a partial reset is known not to change the other rows
        self._resets_by_mask = self.mode == AutoresetMode.SAME_STEP or type(env).reset in _MASKED_RESETS

    def reset(
        self, mask: np.ndarray | None = None, seeds: Seeds = None, options: Mapping[str, object] | None = None
    ) -> tuple[Any, Info]:
        """Resets the rows of `mask`, bool `[n]`, or all rows.

        Returns:
            The observations of all rows, which are valid only in the rows of `mask`, and infos.

        Raises:
            SpaceError: if the environment resets rows outside `mask` too.
        """
        self_reset, self._self_reset = self._self_reset, None
        if mask is None:
            self._pending_reset = None
            return self._reset_vector(seeds, options)
        if self._pending_reset is not None:
            self._pending_reset = self._pending_reset & ~mask
        if self_reset is None:
            return self._reset_rows(mask, seeds, options)
        rows, obs, info = self_reset
        remaining = mask & ~rows
        if remaining.any():
            obs, remaining_info = self._reset_rows(remaining, seeds, options)
            info = merge_infos_by_row(info, remaining_info, remaining)
        if (rows & ~mask).any():
            self._self_reset = rows & ~mask, obs, info
        return obs, info

    @property
    def self_reset_rows(self) -> np.ndarray | None:
        """The rows, bool `[n]`, that the last step reset and `reset` has not returned yet; None for none."""
        return None if self._self_reset is None else self._self_reset[0]

    def _reset_rows(self, mask: np.ndarray, seeds: Seeds, options: Mapping[str, object] | None) -> tuple[Any, Info]:
        if mask.all():  # every vector environment supports full resets, but not every one supports reset masks
            return self._reset_vector(seeds, options)
        latest_obs, self._resets_by_mask = self._latest_obs, self._resets_by_mask or self._latest_obs is not None
        result = self._reset_vector(seeds, {**(options or {}), "reset_mask": mask.copy()})
        if latest_obs is not None:
            self._check_other_rows_unchanged(latest_obs, result[0], ~mask)
        return result

    def _reset_vector(self, seeds: Seeds, options: object) -> tuple[Any, Info]:
        self._latest_obs = None
        arguments = {} if options is None else {"options": options}
        try:
            return _as_arrays(self.env.reset(seed=seeds, **arguments))
        except gymnasium.error.Error:  # a natively batched environment may have one random generator and take one seed
            if seeds is None:
                raise
            return _as_arrays(self.env.reset(seed=seeds[0], **arguments))

    def _check_other_rows_unchanged(self, obs_before: object, obs_after: object, rows: np.ndarray) -> None:
        """Raises a `SpaceError` if a partial reset has changed the other rows too."""
        for leaf, old, new in zip(self.layout.leaves, *map(self.layout.split, (obs_before, obs_after)), strict=True):
            if leaf.dtype is not None and not np.array_equal(old[rows], new[rows], equal_nan=leaf.dtype.kind in "fc"):
                raise SpaceError(
                    f"Expected a partial reset, got a reset of all rows: {type(self.env).__name__}.reset ignores "
                    'options["reset_mask"]. Stop rollouts at the first row that is done, use its same-step mode, or '
                    'use GymEnv(name, num_envs=n) or make_vec(..., vectorization_mode="sync").'
                )

    def step(self, actions: object, infos: bool = True) -> tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Steps all rows.

        Args:
            actions: in the format of the vector environment.
            infos: whether infos are needed.

        Returns:
            True successors, reward, terminated, truncated, done, infos.
        """
        if self._pending_reset is not None and self._pending_reset.any() and self.mode == AutoresetMode.DISABLED:
            self.reset(self._pending_reset)  # the caller ignores these rows, but the environment steps them
        obs, reward, terminated, truncated, done, info = self._read(_as_arrays(self.env.step(actions)))
        self._self_reset = self._pending_reset = None
        if not self._resets_by_mask:
            self._latest_obs = deepcopy(obs)
        if not done.any():
            return obs, reward, terminated, truncated, done, info
        if self.mode == AutoresetMode.SAME_STEP:
            obs, info = self._split_final(obs, info, done, infos)
        else:
            self._pending_reset = done
        return obs, reward, terminated, truncated, done, info

    def _split_final(self, obs: object, info: Info, done: np.ndarray, infos: bool) -> tuple[Any, Info]:
        """Returns the final observations and infos of a same-step environment; keeps those after the reset."""
        info_after_reset = {key: value for key, value in info.items() if key.removeprefix("_") not in _FINAL_KEYS}
        self._self_reset = done, obs, info_after_reset
        final_obs = next((info[key] for key in _FINAL_KEYS[:2] if info.get(key) is not None), None)
        rows = np.flatnonzero(done)
        leaves = self.layout.split(obs)
        if final_obs is None:
            next_obs_leaves = [_fill_missing_rows(leaf, rows, self._missing) for leaf in leaves]
        else:
            final_leaves = self.layout.columns([_final_row(final_obs, row) for row in rows.tolist()])
            next_obs_leaves = [
                _with_rows(leaf, rows, final_values) for leaf, final_values in zip(leaves, final_leaves, strict=True)
            ]
        if infos:
            info_after_reset = merge_infos_by_row(info_after_reset, info.get("final_info"), done)
        return self.layout.build(next_obs_leaves), info_after_reset


def merge_infos_by_row(info: Info, new_info: Any, rows: np.ndarray) -> Info:
    """Merges infos of vector environments: those of `rows` from `new_info`, even if missing, all others from `info`."""
    if new_info is None:
        new_info = {}
    elif not isinstance(new_info, Mapping):  # an array of dicts
        new_info = merge(((i, new_info[i]) for i in np.flatnonzero(rows).tolist() if new_info[i]), len(rows))
    result: Info = {}
    for key in {**info, **new_info}:
        old, new = info.get(key), new_info.get(key)
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            result[key] = merge_infos_by_row(old or {}, new or {}, rows)  # pyright: ignore[reportArgumentType]
        elif old is None or new is None:
            value = np.array(new if old is None else old)
            value[~rows if old is None else rows] = None if value.dtype == object else 0
            result[key] = value
        else:
            old, new = np.asarray(old), np.asarray(new)
            result[key] = np.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    return result


def _as_arrays(value: Any) -> Any:
    """Converts tensors in a result of a vector environment to arrays."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, tuple):
        items = map(_as_arrays, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)  # graph observations are named tuples
    if isinstance(value, dict):
        return {key: _as_arrays(value) for key, value in value.items()}
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _final_row(final_obs: Any, row: int) -> Any:
    """Returns one row of final observations, which are an array or a nested dict of arrays."""
    if isinstance(final_obs, Mapping):
        return {key: _final_row(value, row) for key, value in final_obs.items() if f"_{key}" in final_obs}
    return final_obs[row]


def _with_rows(leaf: object, rows: np.ndarray, values: list[object]) -> list[Any] | np.ndarray:
    leaf = list(leaf) if isinstance(leaf, tuple | list) else np.array(leaf)
    for row, value in zip(rows.tolist(), values, strict=True):
        leaf[row] = value
    return leaf


def _fill_missing_rows(leaf: object, rows: np.ndarray, missing_value: object) -> list[Any] | np.ndarray:
    dtype_kind = leaf.dtype.kind if isinstance(leaf, np.ndarray) else "O"
    return _with_rows(
        leaf, rows, [missing_value if dtype_kind == "f" else None if dtype_kind == "O" else 0] * len(rows)
    )
