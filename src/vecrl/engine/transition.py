"""Defines the record of a step, and gymnasium's three auto-reset modes as views of this record.

A step always yields both `next_obs`, the observation after the step, and `obs`, the observation to act on next. They
differ in rows in which the episode ended and which were reset within the same command. An auto-reset mode consists of a
rule when a worker resets (`Autoreset`) and of a conversion of this record (`gymnasium_step`). Both are only here.

    mode        an episode ends at step t               the next command for that row
    same-step   obs is that of the reset,               steps the new episode
                final observation in `final_obs`
    next-step   obs is the final observation            resets: the action is ignored,
                                                        reward 0, flags False, obs of the reset
    disabled    obs is the final observation            is up to the caller: it should reset the row;
                                                        a further step is undefined
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from .infos import NO_INFOS, InfoDict, Infos
from .space_layout import Layout, Tree

try:
    from gymnasium.vector import AutoresetMode
except ImportError:
    raise ImportError(
        f"Expected gymnasium 1.3 or newer, got {gymnasium.__version__}. Update it: pip install --upgrade gymnasium"
    ) from None


def autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Returns the mode for any of its names: `AutoresetMode.SAME_STEP`, "SameStep", "same_step", "same-step".

    >>> autoreset_mode("same_step").value
    'SameStep'
    """
    if isinstance(mode, AutoresetMode):
        return mode
    normalized = str(mode).replace("-", "").replace("_", "").lower()
    for candidate in AutoresetMode:
        if candidate.value.lower() == normalized:
            return candidate
    names = ", ".join(repr(candidate.name.lower()) for candidate in AutoresetMode)
    raise ValueError(f"Expected autoreset_mode to be one of {names}, got {mode!r}.")


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes that ended in a step.

    Attributes:
        ids: `[m]` int64, the environments.
        returns: `[m]` float64, the sum of rewards.
        lengths: `[m]` int64, in steps.
    """

    ids: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray


_NO_ROWS = np.arange(0)
_NO_ROWS.setflags(write=False)  # it is shared


class Transition:
    """The results of a command to a pool, one row per environment. The caller may write to its observations, rewards
    and flags.

    Attributes:
        ids: `[m]` int64, the environments in the order of the rows.
        layout: the layout of the observations.
        obs: the observations to act on next, a tree of arrays `[m, ...]`.
        reward: `[m]` float64.
        terminated, truncated: `[m]` bool.
        was_reset: `[m]` bool, the rows in which `obs` is the observation of a reset.
        final_rows: `[e]` int64, the rows (not ids) in which the episode ended and which were reset in this step.
        final_obs: the final observations of `final_rows`, a tree of arrays `[e, ...]`; None if e is 0.
        infos: the infos of the step, or of the reset for rows that were reset.
        final_infos: the infos of the step for `final_rows`.
        done_rows: `[d]` int64, the rows in which this step ended the episode.
        episode_stats: `[m]` float64 returns and `[m]` int64 lengths, valid in `done_rows`.
        failed: rows of environments that failed and were restarted or excluded, see `on_failure` of `Pool`. Their
            reward is 0, and their episode, if one was running, is truncated.
    """

    # what most steps do not have is set after `__init__`, which is faster
    final_rows: np.ndarray = _NO_ROWS
    final_obs: Tree = None
    infos: Infos = NO_INFOS
    final_infos: Infos = NO_INFOS
    done_rows: np.ndarray = _NO_ROWS
    episode_stats: tuple[np.ndarray, np.ndarray] | None = None
    failed: Sequence[int] = ()

    def __init__(
        self,
        ids: np.ndarray,
        layout: Layout,
        obs: Tree,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        was_reset: np.ndarray,
    ):
        self.ids = ids
        self.layout = layout
        self.obs = obs
        self.reward = reward
        self.terminated = terminated
        self.truncated = truncated
        self.was_reset = was_reset

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name != "layout")
        return f"Transition({fields})"

    @property
    def done(self) -> np.ndarray:
        """Whether the episode of each row is terminated or truncated, `[m]` bool."""
        return self.terminated | self.truncated

    @property
    def episodes(self) -> Episodes:
        """The episodes that ended in this step."""
        rows = self.done_rows
        if self.episode_stats is None:
            return Episodes(rows, np.empty(0), rows)
        return Episodes(self.ids[rows], self.episode_stats[0][rows], self.episode_stats[1][rows])

    @property
    def discount(self) -> np.ndarray:
        """The factor of the bootstrap in a value target, `[m]` float64: 0 where terminated, otherwise 1."""
        return 1.0 - self.terminated

    @property
    def next_obs(self) -> Tree:
        """The observations after the step, a tree of arrays `[m, ...]`, final observations included.

        It is `obs` itself if no row was reset.
        """
        if not len(self.final_rows):
            return self.obs
        leaves = zip(self.layout.split(self.obs), self.layout.split(self.final_obs), strict=True)
        return self.layout.build([_replace(leaf, self.final_rows, final) for leaf, final in leaves])


def _replace(leaf: Any, rows: np.ndarray, values: Any) -> Any:
    if isinstance(leaf, tuple):
        objects = list(leaf)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        for row, value in zip(rows, values, strict=True):
            objects[row] = value
        return tuple(objects)  # pyright: ignore[reportUnknownArgumentType]
    leaf = leaf.copy()
    leaf[rows] = values
    return leaf


GymStep = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, InfoDict]


def gymnasium_step(transition: Transition, num_envs: int) -> GymStep:
    """Returns the transition as gymnasium's `VectorEnv.step` does, in every auto-reset mode."""
    t = transition
    info = {} if t.infos is NO_INFOS else t.infos.merge(num_envs)
    if len(t.final_rows):
        final = np.full(num_envs, None, object)
        rows = t.layout.rows(t.layout.split(t.final_obs), len(t.final_rows))
        for env_id, obs in zip(t.ids[t.final_rows].tolist(), rows, strict=True):
            final[env_id] = obs
        info["final_obs"] = final
        info["_final_obs"] = t.was_reset.copy()
        info["final_info"] = t.final_infos.merge(num_envs) if t.final_infos else {}
        info["_final_info"] = t.was_reset.copy()
    return t.obs, t.reward, t.terminated, t.truncated, info


class Autoreset:
    """Decides, for one auto-reset mode, which rows the next command resets instead of stepping them.

    Attributes:
        mode: gymnasium's mode.
        reset_done: whether a row is reset within the same step in which its episode ends.
    """

    def __init__(self, mode: AutoresetMode | str, num_envs: int):
        self.mode = autoreset_mode(mode)
        self.reset_done = self.mode == AutoresetMode.SAME_STEP
        self._next_step = self.mode == AutoresetMode.NEXT_STEP
        self._done = np.zeros(num_envs, bool)
        self._any = False

    def reset_mask(self) -> np.ndarray | None:
        """Returns the rows to reset instead of stepping them, `[n]` bool; None for none."""
        return self._done if self._any else None

    def after_step(self, transition: Transition) -> None:
        """Records the rows in which an episode ended."""
        if self._next_step:
            self._any = len(transition.done_rows) > 0
            if self._any:
                self._done = transition.done

    def after_reset(self, ids: Sequence[int] | np.ndarray | slice) -> None:
        """Records that the caller has reset these environments."""
        if self._any:
            self._done = self._done.copy()
            self._done[ids] = False
            self._any = bool(self._done.any())
