"""Vector environments of gymnasium and its like, step by step, so that their mode of auto-reset does not matter.

A step gives the true successor of every row, the final observation of an episode included; a row whose episode ended
begins the next one when it is asked to. Knows arrays and the three modes, not TensorDicts.

    mode        where final observations are       how a row begins anew
    same-step   in the info                        it has done so: its first observation is kept for the reset
    next-step   in the observations                by a reset of its own, so that no action goes unheard
    disabled    in the observations                by a reset of its own
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from ...engine.infos import merge
from ...engine.layout import Layout
from ...engine.transitions import AutoresetMode, autoreset_mode
from ...errors import SpaceError
from ...simulators.old_gym import modern_space

_MODES = hasattr(gymnasium.vector, "AutoresetMode")  # which came together with partial resets
Info = dict[str, Any]
Seeds = list[int | None] | None
_HEEDFUL = (gymnasium.vector.SyncVectorEnv.reset, gymnasium.vector.AsyncVectorEnv.reset) if _MODES else ()
_FINAL = ("final_obs", "final_observation", "final_info")


def is_vector(env: Any) -> bool:
    """Whether this is a vector environment, of gymnasium or of the old gym."""
    return isinstance(env, gymnasium.vector.VectorEnv) or (
        hasattr(env, "num_envs") and hasattr(env, "single_observation_space")
    )


def check_env(env: Any) -> None:
    """Raise a `TypeError` unless this is an environment, single or a vector, of gymnasium's or gym's kind."""
    kinds = ("observation", "action")
    spaces = all(hasattr(env, f"{kind}_space") or hasattr(env, f"single_{kind}_space") for kind in kinds)
    if isinstance(env, type) or not spaces:
        raise TypeError(
            f"Expected an environment of gymnasium, or a vector of them, but {env!r:.80} came. GymEnv makes one by its "
            "name."
        )
    if hasattr(env, "full_observation_spec"):
        raise TypeError(
            f"Expected an environment of gymnasium, but {env!r:.80} came, which is over TensorDicts already."
        )


def spaces_of(env: Any) -> tuple[Any, Any]:
    """The spaces of observations and actions of a single environment, or of one row of a vector."""
    if is_vector(env):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def vector_of(
    make_env: Callable[[], Any], count: int, backend: Any, num_workers: int | None, ray_options: Any = None
) -> Any:
    """`count` environments as a vector, over worker processes where there are to be several workers."""
    from ...vector import VectorEnv

    if count < 1:
        raise ValueError(f"Expected one environment or more, but num_envs={count} came.")
    if backend is None:
        backend = "serial" if (num_workers or 1) == 1 else "processes"
    there = {"backend": backend, "num_workers": num_workers, "ray_options": ray_options}
    return VectorEnv([make_env] * count, autoreset_mode="same_step", **there)


def mode_of(env: Any) -> AutoresetMode:
    """When rows of a vector environment begin anew; those that do not say are as gymnasium's were at the time."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode") or getattr(env, "autoreset_mode", None)
    if mode is not None:
        return autoreset_mode(getattr(mode, "value", mode))
    first = isinstance(env, gymnasium.vector.VectorEnv) and gymnasium.__version__.startswith("1.0")
    return AutoresetMode.NEXT_STEP if first else AutoresetMode.SAME_STEP


class VectorSteps:
    """A vector environment whose rows begin anew when they are asked to.

    Args:
        env: the vector environment.
        read: makes obs, reward, terminated, truncated, done and info of what its `step` returns.
        missing: what stands for final observations that it loses, where they are floats; zeros elsewhere.

    Attributes:
        mode: of its auto-reset.
        layout: of one row's observations.
        fresh: whether the arrays that it gives are the caller's to keep.
    """

    def __init__(self, env: Any, read: Callable[[Any], Any], missing: Any = np.nan):
        taken = inspect.signature(env.reset).parameters
        if "seed" not in taken and "kwargs" not in taken:
            raise SpaceError(
                f"Expected a vector environment of gymnasium, or of gym 0.26, but {type(env).__name__} takes no seed "
                "at a reset. Batch its environments with GymEnv(name, num_envs=n), or in a vecrl.vector.VectorEnv."
            )
        self.env = env
        self.num_envs: int = env.num_envs
        self.mode = mode_of(env)
        self.layout = Layout(modern_space(env.single_observation_space))
        wrapped = isinstance(env, getattr(gymnasium.vector, "VectorWrapper", ()))
        self.fresh = getattr(env, "copy", False) is True and not wrapped
        self._read = read
        self._missing = missing
        self._begun: tuple[np.ndarray, Any, Info] | None = None  # which rows, observations of all, infos
        self._over: np.ndarray | None = None  # rows that ended and are not begun
        self._latest: Any = None  # observations, until it is known that partial resets leave other rows alone
        self._sure = self.mode == AutoresetMode.SAME_STEP or type(env).reset in _HEEDFUL

    def reset(
        self, mask: np.ndarray | None = None, seeds: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, Info]:
        """Begin episodes: in the rows of `mask`, bool `[n]`, or in all.

        Returns:
            Observations of all rows, of which only those of `mask` matter, and infos.
        """
        begun, self._begun = self._begun, None
        if mask is None:
            self._over = None
            return self._send(seeds, options)
        if self._over is not None:
            self._over = self._over & ~mask
        if begun is None:
            return self._reset_some(mask, seeds, options)
        rows, obs, info = begun
        rest = mask & ~rows
        if rest.any():
            obs, further = self._reset_some(rest, seeds, options)
            info = overlaid(info, further, rest)
        if (rows & ~mask).any():
            self._begun = rows & ~mask, obs, info
        return obs, info

    @property
    def begun(self) -> np.ndarray | None:
        """The rows, bool `[n]`, that have begun anew and wait to be asked to; None for none."""
        return None if self._begun is None else self._begun[0]

    def _reset_some(self, mask: np.ndarray, seeds: Seeds, options: Mapping[str, Any] | None) -> tuple[Any, Info]:
        if mask.all():  # known to all of them, which reset masks are not
            return self._send(seeds, options)
        latest, self._sure = self._latest, self._sure or self._latest is not None
        found = self._send(seeds, {**(options or {}), "reset_mask": mask.copy()})
        if latest is not None:
            self._check_left_alone(latest, found[0], ~mask)
        return found

    def _send(self, seeds: Seeds, options: Any) -> tuple[Any, Info]:
        self._latest = None
        arguments = {} if options is None else {"options": options}
        try:
            return _as_arrays(self.env.reset(seed=seeds, **arguments))
        except gymnasium.error.Error:  # a batch by birth may have one stream of random numbers, and take one seed
            if seeds is None:
                raise
            return _as_arrays(self.env.reset(seed=seeds[0], **arguments))

    def _check_left_alone(self, before: Any, after: Any, rows: np.ndarray) -> None:
        """Raise where a partial reset has begun other rows anew as well, which would go unnoticed."""
        for leaf, old, new in zip(self.layout.leaves, *map(self.layout.split, (before, after)), strict=True):
            if leaf.dtype is not None and not np.array_equal(old[rows], new[rows], equal_nan=leaf.dtype.kind in "fc"):
                raise SpaceError(
                    f"{type(self.env).__name__} begins all rows anew when only some are meant: its reset pays no heed "
                    'to options["reset_mask"], so rollouts must end with the first end. Use its same-step mode, or '
                    'another vector environment: GymEnv(name, num_envs=n), make_vec(..., vectorization_mode="sync").'
                )

    def step(self, actions: Any, infos: bool = True) -> tuple[Any, Any, Any, Any, Any, Info]:
        """Step all rows.

        Args:
            actions: as the vector environment takes them.
            infos: whether anybody reads them.

        Returns:
            True successors, reward, terminated, truncated, done, infos.
        """
        if self._over is not None and self._over.any() and self.mode == AutoresetMode.DISABLED:
            self.reset(self._over)  # somebody goes on without these rows: they must do something
        obs, reward, terminated, truncated, done, info = self._read(_as_arrays(self.env.step(actions)))
        self._begun = self._over = None
        if not self._sure:
            self._latest = deepcopy(obs)
        if not done.any():
            return obs, reward, terminated, truncated, done, info
        if self.mode == AutoresetMode.SAME_STEP:
            obs, info = self._part(obs, info, done, infos)
        else:
            self._over = done
        return obs, reward, terminated, truncated, done, info

    def _part(self, obs: Any, info: Info, done: np.ndarray, infos: bool) -> tuple[Any, Info]:
        """What a same-step environment says of the end of an episode, apart from the beginning of the next."""
        begun = {key: value for key, value in info.items() if key.removeprefix("_") not in _FINAL}
        self._begun = done, obs, begun
        finals = next((info[key] for key in _FINAL[:2] if info.get(key) is not None), None)
        rows = np.flatnonzero(done)
        leaves = self.layout.split(obs)
        if finals is None:
            after = [_blank(leaf, rows, self._missing) for leaf in leaves]
        else:
            ends = self.layout.columns([_row(finals, row) for row in rows.tolist()])
            after = [_with_rows(leaf, rows, end) for leaf, end in zip(leaves, ends, strict=True)]
        if infos:
            begun = overlaid(begun, info.get("final_info"), done)
        return self.layout.build(after), begun


def overlaid(info: Info, further: Any, rows: np.ndarray) -> Info:
    """Infos of many rows: of `rows` what `further` says, be it nothing, of the others what `info` says."""
    if further is None:
        further = {}
    elif not isinstance(further, Mapping):  # an array of dicts
        further = merge(((i, further[i]) for i in np.flatnonzero(rows).tolist() if further[i]), len(rows))
    result: Info = {}
    for key in {**info, **further}:
        old, new = info.get(key), further.get(key)
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            result[key] = overlaid(old or {}, new or {}, rows)  # pyright: ignore[reportArgumentType]
        elif old is None or new is None:
            value = np.array(new if old is None else old)
            value[~rows if old is None else rows] = None if value.dtype == object else 0
            result[key] = value
        else:
            old, new = np.asarray(old), np.asarray(new)
            result[key] = np.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    return result


def _as_arrays(given: Any) -> Any:
    """What a vector environment returned, with arrays in the place of tensors."""
    if isinstance(given, np.ndarray):
        return given
    if isinstance(given, tuple):
        made = map(_as_arrays, given)
        return type(given)(*made) if hasattr(given, "_fields") else tuple(made)  # graphs are tuples with names
    if isinstance(given, dict):
        return {key: _as_arrays(value) for key, value in given.items()}
    return given.detach().cpu().numpy() if hasattr(given, "detach") else given


def _row(finals: Any, row: int) -> Any:
    """One row of final observations: an array of them, or a dict of such."""
    if isinstance(finals, Mapping):
        return {key: _row(value, row) for key, value in finals.items() if f"_{key}" in finals}
    return finals[row]


def _with_rows(leaf: Any, rows: np.ndarray, values: list[Any]) -> Any:
    leaf = list(leaf) if isinstance(leaf, tuple | list) else np.array(leaf)
    for row, value in zip(rows.tolist(), values, strict=True):
        leaf[row] = value
    return leaf


def _blank(leaf: Any, rows: np.ndarray, missing: Any) -> Any:
    kind = leaf.dtype.kind if isinstance(leaf, np.ndarray) else "O"
    return _with_rows(leaf, rows, [missing if kind == "f" else None if kind == "O" else 0] * len(rows))
