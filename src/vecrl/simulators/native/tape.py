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
    obs = simulator.rows_obs(rows)
    taken, done = 0, rows.episodes > rows.episodes
    room = min(len(actions), _ROOM) if stop else len(actions)
    leaves = _blank(obs, room)
    rails = [leaf.unbind(0) for leaf in leaves]
    for taken, action in enumerate(actions.unbind(0)):
        if taken == room:
            leaves = [torch.cat([leaf, torch.empty_like(leaf)]) for leaf in leaves]
            rails = [leaf.unbind(0) for leaf in leaves]
            room *= 2
        step, done, following, rows = simulator.rows_played(action, rows)
        values = (obs, step.next_obs, step.reward, step.terminated, step.truncated)
        for rail, value in zip(rails, values, strict=True):
            rail[taken].copy_(value)
        obs = following
        if stop and bool(done.any()):
            break
    taken += 1
    rows = rows._replace(episodes=rows.episodes - done.int())
    if taken < room:
        leaves = [leaf[:taken].clone() for leaf in leaves]
    return Tape(*leaves), rows


def _blank(obs: Tensor, room: int) -> list[Tensor]:
    n = len(obs)
    seen = [obs.new_empty((room, *obs.shape)) for _ in range(2)]
    flags = [torch.empty((room, n), dtype=torch.bool, device=obs.device) for _ in range(2)]
    return [*seen, obs.new_empty((room, n)), *flags]
