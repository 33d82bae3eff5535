"""Rollouts with known actions over arrays: TensorDicts are created only at the end, from all steps together.

In rollouts of fast environments, most time is spent on TensorDicts. `ArrayEnv` is how an environment is stepped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from ...specs import Bounded, Categorical, OneHot, TensorSpec
from ..entries.keys import Key
from ..entries.row_masks import any_true
from ..env_specs import EnvSpecs
from .trajectory_buffers import ArrayBuffer, ArrayTrajectory, Leaves, time_last


class ArrayEnv(Protocol):
    """How n rows, or a single environment, are stepped at array level: with NumPy arrays, or with tensors."""

    def reset_arrays(self) -> Leaves:
        """Resets all rows and returns their observations, one array `[*rows, ...]` per leaf."""
        ...

    def step_arrays(self, action: Any, t: int, out: ArrayBuffer, reset_done: bool) -> bool | Tensor:
        """Steps all rows and writes the results, as `ArrayBuffer` describes them.

        Args:
            action: one of the actions that `rollout_arrays` got.
            t: the number of the step.
            out: the buffer.
            reset_done: reset the rows that are done.

        Returns:
            Whether any row is done, as a bool or as the done flags of the rows on a device.
        """
        ...


def known_actions(env: EnvSpecs, steps: int, actions: Tensor | None) -> Tensor:
    """Returns the actions of a rollout, `[time, *batch, ...]`.

    Args:
        env: the environment.
        steps: the maximum number of steps.
        actions: `[*batch, time, ...]`, which are copied; None for random actions.
    """
    return draw_actions(env.action_spec, steps) if actions is None else actions.movedim(env.ndim, 0)[:steps].clone()


def draw_actions(spec: TensorSpec, count: int) -> Tensor:
    """Returns random actions, `[count, ...]`, the same as from `count` calls of `spec.rand()`."""
    # these sample one number per element, in the order of the elements; a GPU draws other numbers for other sizes
    in_order = isinstance(spec, Categorical | OneHot) or (isinstance(spec, Bounded) and spec.is_finite)
    if in_order and (spec.device is None or spec.device.type != "cuda"):
        return spec.rand((count,))
    return torch.stack([spec.rand() for _ in range(count)])


@torch.no_grad()
def rollout_arrays(
    env: ArrayEnv, actions: Sequence[object], rows: Sequence[int], reward_dtype: torch.dtype, break_when_any_done: bool
) -> ArrayTrajectory:
    """Resets an environment, steps it with `actions` and returns the steps.

    Args:
        env: the environment.
        actions: one per step, in the form of `ArrayEnv`.
        rows: the shape of a reward: (n,), or () for a single environment.
        reward_dtype: the dtype of rewards in the result.
        break_when_any_done: stop when the first episode ends; otherwise rows that are done are reset.
    """
    num_steps, step_arrays = len(actions), env.step_arrays
    buffer = ArrayBuffer(env.reset_arrays(), rows, reward_dtype, num_steps, not break_when_any_done)
    for t, action in enumerate(actions):
        if t + 1 == buffer.capacity < num_steps:
            buffer.grow()
        done = step_arrays(action, t, buffer, not break_when_any_done and t + 1 < num_steps)
        if break_when_any_done and (done if isinstance(done, bool) else any_true(done)):
            return buffer.to_trajectory(t + 1)
    return buffer.to_trajectory(num_steps)


def to_tensordict(env: EnvSpecs, obs_keys: Sequence[Key], trajectory: ArrayTrajectory, actions: Tensor) -> TensorDict:
    """Returns a rollout as a contiguous TensorDict `[*batch, time]`.

    Args:
        env: the environment; its specs name the entries.
        obs_keys: the keys of the observation leaves.
        trajectory: the steps; its rows have the batch size of the environment.
        actions: `[time, *batch, ...]`, as many as the trajectory has steps or more.
    """
    flags = {"terminated": trajectory.terminated, "truncated": trajectory.truncated}
    next_entries: dict[Key, Tensor] = {"done": trajectory.terminated | trajectory.truncated, **flags}
    root_entries: dict[Key, Tensor] = {key: torch.zeros_like(flag) for key, flag in next_entries.items()}
    next_entries[env.reward_key] = trajectory.reward
    next_entries, root_entries = (
        {key: value.unsqueeze(-1) for key, value in entries.items()} for entries in (next_entries, root_entries)
    )
    root_entries[env.action_key] = time_last(actions[: trajectory.reward.shape[-1]], env.ndim)
    obs_keys = [key[0] if isinstance(key, tuple) and len(key) == 1 else key for key in obs_keys]
    for leaves, entries in (trajectory.obs, root_entries), (trajectory.next_obs, next_entries):
        entries.update(zip(obs_keys, _encoded(env, obs_keys, leaves), strict=True))
    size = trajectory.reward.shape
    return _make_tensordict(env, root_entries, size).set("next", _make_tensordict(env, next_entries, size))


def _encoded(env: EnvSpecs, obs_keys: Sequence[Key], leaves: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yields observation leaves `[*batch, time, ...]` as the specs say, for instance one-hot."""
    for key, leaf in zip(obs_keys, leaves, strict=True):
        spec = env.observation_spec[key]
        if leaf.dtype == spec.dtype and leaf.shape[: env.ndim] + leaf.shape[env.ndim + 1 :] == spec.shape:
            yield leaf
        else:
            arrays = leaf.movedim(env.ndim, 0).cpu().numpy()
            yield time_last(spec.expand(len(arrays), *spec.shape).encode(arrays), env.ndim)


def _make_tensordict(env: EnvSpecs, entries: dict[Key, Tensor], size: torch.Size) -> TensorDict:
    """Returns a TensorDict `[*batch, time]` with the entries."""
    flat = {key: value for key, value in entries.items() if isinstance(key, str)}
    names: list[Any] = [*[None] * env.ndim, "time"]
    data = TensorDict(flat, size, device=env.device, names=names)  # faster than single entries
    for key, value in entries.items():
        if key not in flat:
            data.set(key, value)
    return data
