"""Records many steps with given actions directly in preallocated tensors.

Rollouts of a fast simulator would otherwise spend most time on step results that are allocated only to be copied. This
module knows native simulators and tensors, no dialects.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import NativeSimulator, NativeState

_INITIAL_CAPACITY = 512  # the initial capacity in steps, if the number of steps is unknown


@dataclass(frozen=True, slots=True)
class NativeTrajectory:
    """T steps of n rows; time is the first dimension.

    Attributes:
        obs: `[T, n, k]`, the observations before the steps.
        next_obs: `[T, n, k]`, the observations after the steps, including final observations.
        reward: `[T, n]`.
        terminated, truncated: `[T, n]` bool; if either is true, the next step is of a new episode.
    """

    obs: Tensor
    next_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


@torch.no_grad()
def record_trajectory(
    simulator: NativeSimulator, rows: NativeState, actions: Tensor, break_when_any_done: bool
) -> tuple[NativeTrajectory, NativeState]:
    """Steps rows with `actions` and records the results.

    Args:
        simulator: the task; its own rows are not changed.
        rows: the rows to start from.
        actions: `[T, n, ...]`, already checked.
        break_when_any_done: stop after the first step that ends an episode, which reads the flags of every step.

    Returns:
        The trajectory and the rows after it. Rows with an episode that ended in the last step are not reset.
    """
    record_steps = _record_with_host_checks if simulator.can_sync_host() else _record_on_device
    buffer = _TrajectoryBuffer(simulator.rows_obs(rows), len(actions), break_when_any_done)
    rows = record_steps(simulator, rows, actions, break_when_any_done, buffer)
    return buffer.finish(), rows


class _TrajectoryBuffer:
    """A buffer of steps. It doubles when it is full, if the number of steps is unknown."""

    def __init__(self, obs: Tensor, steps: int, break_when_any_done: bool):
        capacity, n = min(steps, _INITIAL_CAPACITY) if break_when_any_done else steps, len(obs)
        self.first_obs = obs
        self.num_steps = 0
        obs_pair = [obs.new_empty((capacity, *obs.shape)) for _ in range(2)]
        flags = [torch.empty((capacity, n), dtype=torch.bool, device=obs.device) for _ in range(2)]
        self.leaves = [*obs_pair, obs.new_empty((capacity, n)), *flags]
        self._split_rows()

    def _split_rows(self) -> None:
        self._row_views = list(zip(*(leaf.unbind(0) for leaf in self.leaves), strict=True))

    def write(self, *values: Tensor | None) -> None:
        """Writes the values of the next step; None skips a leaf."""
        if self.num_steps == len(self._row_views):
            self.leaves = [torch.cat([leaf, torch.empty_like(leaf)]) for leaf in self.leaves]
            self._split_rows()
        for row, value in zip(self._row_views[self.num_steps], values, strict=True):
            if value is not None:
                row.copy_(value)
        self.num_steps += 1

    def finish(self) -> NativeTrajectory:
        """Returns the recorded steps."""
        is_full = self.num_steps == len(self._row_views)
        return NativeTrajectory(*(leaf if is_full else leaf[: self.num_steps].clone() for leaf in self.leaves))


def _record_on_device(
    simulator: NativeSimulator, rows: NativeState, actions: Tensor, break_when_any_done: bool, buffer: _TrajectoryBuffer
) -> NativeState:
    """Records without waiting for the device, unless `break_when_any_done` is true."""
    obs, done = buffer.first_obs, torch.zeros_like(rows.steps, dtype=torch.bool)
    for action in actions.unbind(0):
        step, done, obs_after_reset, rows = simulator.step_and_restart_rows(action, rows)
        buffer.write(obs, step.next_obs, step.reward, step.terminated, step.truncated)
        obs = obs_after_reset
        if break_when_any_done and bool(done.any()):
            break
    return rows._replace(episodes=rows.episodes - done.int())


def _record_with_host_checks(
    simulator: NativeSimulator, rows: NativeState, actions: Tensor, break_when_any_done: bool, buffer: _TrajectoryBuffer
) -> NativeState:
    """Records on the CPU, where flags can be read at no cost: computes reset observations only for rows that reset."""
    restarts: list[tuple[int, Tensor, Tensor]] = []
    for action in actions.unbind(0):
        reward, terminated, truncated, state, steps = simulator.move_rows(action, rows.state, rows.steps)
        buffer.write(None, simulator.observe(state).t(), reward, terminated, truncated)
        rows = NativeState(state, steps, rows.episodes, rows.keys)
        row_index = torch.logical_or(terminated, truncated).nonzero().squeeze(-1)
        if len(row_index) and (break_when_any_done or buffer.num_steps == len(actions)):
            break
        if len(row_index):
            rows, new_state = simulator.restart_selected_rows(row_index, rows)
            restarts.append((buffer.num_steps, row_index, simulator.observe(new_state).t()))
    obs, next_obs = buffer.leaves[:2]
    obs[0] = buffer.first_obs
    obs[1 : buffer.num_steps] = next_obs[: buffer.num_steps - 1]
    for step, row_index, new_state in restarts:
        obs[step].index_copy_(0, row_index, new_state)
    return rows
