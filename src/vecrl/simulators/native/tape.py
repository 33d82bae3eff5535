"""Many steps with actions that are known beforehand, written into arrays as they happen.

What a rollout of a quick simulator would otherwise spend its time on is results that are made only to be copied. Knows
simulators and tensors, no dialect.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import NativeSimulator, Rows

_ROOM = 512  # steps that a recording of unknown length has room for at first


@dataclass(frozen=True, slots=True)
class Tape:
    """What happened in T steps of n rows; time is the first dimension.

    Attributes:
        obs: `[T, n, k]`, what the actions were taken on.
        next_obs: `[T, n, k]`, what followed, final observations included.
        reward: `[T, n]`.
        terminated, truncated: `[T, n]` bool; where either holds, the next step is of a new episode.
    """

    obs: Tensor
    next_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


@torch.no_grad()
def record(simulator: NativeSimulator, rows: Rows, actions: Tensor, stop: bool) -> tuple[Tape, Rows]:
    """Play through `actions`.

    Args:
        simulator: whose task it is; its own rows are not touched.
        rows: to begin with.
        actions: `[T, n, ...]`, checked ones.
        stop: end with the first step that ends an episode, which takes a look at every step.

    Returns:
        The tape, and the rows then. Those that ended with the last step have their next episode still before them.
    """
    play = _look if simulator.may_look() else _play
    reel = _Reel(simulator.rows_obs(rows), len(actions), stop)
    rows = play(simulator, rows, actions, stop, reel)
    return reel.cut(), rows


class _Reel:
    """Room for steps, which doubles where their number is not known."""

    def __init__(self, obs: Tensor, steps: int, stop: bool):
        room, n = min(steps, _ROOM) if stop else steps, len(obs)
        self.first = obs
        self.taken = 0
        seen = [obs.new_empty((room, *obs.shape)) for _ in range(2)]
        flags = [torch.empty((room, n), dtype=torch.bool, device=obs.device) for _ in range(2)]
        self.leaves = [*seen, obs.new_empty((room, n)), *flags]
        self._lay()

    def _lay(self) -> None:
        self._rails = list(zip(*(leaf.unbind(0) for leaf in self.leaves), strict=True))

    def write(self, *values: Tensor | None) -> None:
        """The next step; None leaves a leaf's row as it is."""
        if self.taken == len(self._rails):
            self.leaves = [torch.cat([leaf, torch.empty_like(leaf)]) for leaf in self.leaves]
            self._lay()
        for row, value in zip(self._rails[self.taken], values, strict=True):
            if value is not None:
                row.copy_(value)
        self.taken += 1

    def cut(self) -> Tape:
        """What was written."""
        whole = self.taken == len(self._rails)
        return Tape(*(leaf if whole else leaf[: self.taken].clone() for leaf in self.leaves))


def _play(simulator: NativeSimulator, rows: Rows, actions: Tensor, stop: bool, reel: _Reel) -> Rows:
    """Nobody waits for the data, but for the sake of `stop`."""
    obs, done = reel.first, torch.zeros_like(rows.steps, dtype=torch.bool)
    for action in actions.unbind(0):
        step, done, following, rows = simulator.rows_played(action, rows)
        reel.write(obs, step.next_obs, step.reward, step.terminated, step.truncated)
        obs = following
        if stop and bool(done.any()):
            break
    return rows._replace(episodes=rows.episodes - done.int())


def _look(simulator: NativeSimulator, rows: Rows, actions: Tensor, stop: bool, reel: _Reel) -> Rows:
    """Where a look at the data costs nothing, only the rows that begin anew are observed apart."""
    begun: list[tuple[int, Tensor, Tensor]] = []
    for action in actions.unbind(0):
        reward, terminated, truncated, state, steps = simulator.moved(action, rows.state, rows.steps)
        reel.write(None, simulator.observe(state).t(), reward, terminated, truncated)
        rows = Rows(state, steps, rows.episodes, rows.keys)
        which = torch.logical_or(terminated, truncated).nonzero().squeeze(-1)
        if len(which) and (stop or reel.taken == len(actions)):
            break
        if len(which):
            rows, fresh = simulator.rows_restarted_few(which, rows)
            begun.append((reel.taken, which, simulator.observe(fresh).t()))
    obs, after = reel.leaves[:2]
    obs[0] = reel.first
    obs[1 : reel.taken] = after[: reel.taken - 1]
    for place, which, fresh in begun:
        obs[place].index_copy_(0, which, fresh)
    return rows
