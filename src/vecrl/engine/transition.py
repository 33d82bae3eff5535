"""The record of a step, and the three ways in which vector environments present it.

A step always yields both `next_obs`, the true successor, and `obs`, what to act on next; they differ in the
rows whose episode ended and began anew within the same round trip. What gymnasium calls its auto-reset modes are
rules of when a worker begins anew (`Reset`) and projections of this record, both written here and nowhere else.

    mode        an episode ends at step t               the next command for that row
    same-step   obs begins the new episode at once,     steps the new episode
                final observation in `final_obs`
    next-step   obs is the final observation            begins the new episode: its action is ignored,
                                                        reward 0, flags False, obs of the reset
    disabled    obs is the final observation            the caller's: reset it, or step on at its peril
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from .infos import Infos
from .space_layout import Layout, Tree

if TYPE_CHECKING or not gymnasium.__version__.startswith("0."):
    from gymnasium.vector import AutoresetMode
else:  # gymnasium 0.29 knows no modes, and vecrl's are the same there

    class AutoresetMode(Enum):
        """Gymnasium's names for when a finished environment begins anew."""

        NEXT_STEP = "NextStep"
        SAME_STEP = "SameStep"
        DISABLED = "Disabled"


def autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """The mode by any of its names: `AutoresetMode.SAME_STEP`, "SameStep", "same_step", "same-step".

    >>> autoreset_mode("same_step").value
    'SameStep'
    """
    if isinstance(mode, AutoresetMode):
        return mode
    normalized = str(mode).replace("-", "").replace("_", "").lower()
    for candidate in AutoresetMode:
        if candidate.value.lower() == normalized:
            return candidate
    names = ", ".join(repr(candidate.value) for candidate in AutoresetMode)
    raise ValueError(f"Expected autoreset_mode to be one of {names}, but {mode!r} came.")


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


@dataclass(slots=True, eq=False)  # not frozen: that would cost a microsecond each
class Transition:
    """What a command to a pool yields, one row an environment asked.

    Attributes:
        ids: `[m]` int64, the environments in the order of the rows.
        layout: of the observations.
        obs: what to act on next, a tree of arrays `[m, ...]`.
        reward: `[m]` float64.
        terminated, truncated: `[m]` bool, separate always.
        was_reset: `[m]` bool, the rows whose `obs` begins an episode.
        final_rows: `[e]` int64, the rows (not ids) that ended and began anew in this step; their final observations are
        in
            `final_obs`, a tree of arrays `[e, ...]` (None where e is 0).
        infos: of the step, or of the reset where a row began anew.
        final_infos: of the step, in the rows `final_rows`.
        done_rows: `[d]` int64, the rows that were stepped and whose episode is over.
        episode_stats: `[m]` float64 returns and `[m]` int64 lengths, valid in `done_rows`.
        failed: rows of environments that failed and were made good, see `Pool`'s `on_failure`; their rewards are 0, and
            their episodes truncated where they had begun.
    """

    ids: np.ndarray
    layout: Layout
    obs: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    was_reset: np.ndarray
    final_rows: np.ndarray
    final_obs: Tree
    infos: Infos
    final_infos: Infos
    done_rows: np.ndarray
    episode_stats: tuple[np.ndarray, np.ndarray] | None = field(repr=False)
    failed: Sequence[int] = ()

    @property
    def done(self) -> np.ndarray:
        """`[m]` bool: terminated or truncated."""
        return self.terminated | self.truncated

    @property
    def episodes(self) -> Episodes:
        """The episodes that ended."""
        rows = self.done_rows
        if self.episode_stats is None:
            return Episodes(rows, np.empty(0), rows)
        return Episodes(self.ids[rows], self.episode_stats[0][rows], self.episode_stats[1][rows])

    @property
    def discount(self) -> np.ndarray:
        """`[m]` float64: 0 where terminated, else 1; what a value target multiplies its bootstrap by."""
        return 1.0 - self.terminated

    @property
    def next_obs(self) -> Tree:
        """The true successors, a tree of arrays `[m, ...]`; `obs` itself where no row began anew."""
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


GymStep = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


def gymnasium_step(transition: Transition, num_envs: int) -> GymStep:
    """What gymnasium's `VectorEnv.step` returns of this record, in every mode."""
    t = transition
    info = t.infos.merge(num_envs) if t.infos else {}
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
    """The rule of one mode: which rows a step begins anew instead of stepping, and whether it does so at once.

    Attributes:
        mode: gymnasium's mode.
        reset_done: whether a row that ends begins anew within the same command.
    """

    def __init__(self, mode: AutoresetMode | str, num_envs: int):
        self.mode = autoreset_mode(mode)
        self.reset_done = self.mode == AutoresetMode.SAME_STEP
        self._next_step = self.mode == AutoresetMode.NEXT_STEP
        self._done = np.zeros(num_envs, bool)
        self._any = False

    def reset_mask(self) -> np.ndarray | None:
        """`[n]` bool, the rows to begin anew instead of stepping; None for none."""
        return self._done if self._any else None

    def after_step(self, transition: Transition) -> None:
        """Note what ended."""
        if self._next_step:
            self._done = transition.done
            self._any = bool(self._done.any())

    def after_reset(self, ids: Sequence[int] | np.ndarray | slice) -> None:
        """Note that the caller began these anew."""
        if self._any:
            self._done = self._done.copy()
            self._done[ids] = False
            self._any = bool(self._done.any())
