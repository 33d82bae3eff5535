"""Transforms that track episodes: first steps, step counts and sums of rewards.

The tracked values are entries of the TensorDict, in the group of their done flags or rewards. So rows are independent,
and these transforms must keep nothing between steps.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Categorical, Composite, TensorSpec, Unbounded
from ..row_masks import RowMasks, broadcast_mask
from ..spec_container import Key, join_key, split_key
from .base import Transform

__all__ = ["InitTracker", "RewardSum", "StepCounter"]

Prefix = tuple[str, ...]


class Tracker(Transform):
    """The base of transforms that track a value over each episode, in every group of done flags."""

    preserves_done = True

    @property
    def _done_prefixes(self) -> list[Prefix]:
        """The prefixes of the groups of done flags; only the root if there is no environment."""
        return self._cached("done_prefixes", lambda: [()] if self.parent is None else self.parent.done_prefixes)

    @property
    def supports_rollout(self) -> bool:
        return self._has_no_step_hooks

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Applies the transform to stored trajectories `[..., time]` in place; done flags in "next" end episodes.

        Raises:
            ValueError: there is no batch dimension, or no "next".
            KeyError: a needed entry is missing.
        """
        next_td = tensordict.get("next", None)
        if next_td is None or not tensordict.batch_dims:
            raise ValueError(
                f'Expected trajectories [..., time] with the output of each step under "next" as input of '
                f"{type(self).__name__}, got batch size {tuple(tensordict.batch_size)} and keys "
                f"{sorted(map(str, tensordict.keys()))}. Give a stored rollout."
            )
        self._of(next_td, "done")
        self._apply_to_rollout(tensordict, next_td, episode_starts(next_td))
        return tensordict

    def _of(self, tensordict: TensorDictBase, key: Key) -> Tensor:
        """Returns an entry of `tensordict`, or raises a KeyError if it is missing."""
        value = tensordict.get(key, None)
        if value is None:
            raise self._missing(key, tensordict)
        return value

    def _masks(self, tensordict: TensorDictBase) -> RowMasks:
        """Returns the masks of the rows to reset, from "_reset" in `tensordict`."""
        return RowMasks.from_tensordict(tensordict, "_reset", self._done_prefixes)


def episode_starts(next_td: TensorDictBase, done_key: Key = "done") -> Tensor:
    """Returns a mask `[..., time]` bool of the first step of each episode, from the done flags in `next_td`."""
    is_first = torch.ones(next_td.batch_size, dtype=torch.bool, device=next_td.device)
    done = next_td.get(done_key)
    is_first[..., 1:] = done.reshape(*next_td.batch_size, -1).any(-1)[..., :-1]
    return is_first


def episode_sums(values: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the running sums of `values` in each episode, before and after each step.

    Values are added one after another, so that the result equals that of step-by-step addition bit for bit.

    Args:
        values: `[*batch, time, ...]`.
        is_first: `[*batch, time]` bool, True at the first step of each episode.

    Returns:
        Two tensors with the shape of `values`: the sums without and with the value of each step.
    """
    dim = is_first.ndim - 1
    broadcast = is_first[(..., *[None] * (values.ndim - is_first.ndim))]
    total = torch.zeros_like(values.select(dim, 0))
    zeros, before_step, after_step = total, [], []
    for value, is_start in zip(values.unbind(dim), broadcast.unbind(dim), strict=True):
        before_step.append(torch.where(is_start, zeros, total))
        total = before_step[-1] + value
        after_step.append(total)
    return torch.stack(before_step, dim), torch.stack(after_step, dim)


class InitTracker(Tracker):
    """Marks the first step of each episode: True after a reset, False after a step.

    Args:
        init_key: the name of the mark, `[*batch, 1]` bool in each group of done flags.

    >>> from vecrl.envs import GymEnv
    >>> GymEnv("CartPole-v1").append_transform(InitTracker()).rollout(3)["is_init"].squeeze(-1)
    tensor([ True, False, False])
    """

    def __init__(self, init_key: str = "is_init"):
        super().__init__()
        self.init_key = init_key

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for prefix in self._done_prefixes:
            done = next_tensordict.get(join_key(prefix, "done"))
            next_tensordict.set(join_key(prefix, self.init_key), torch.zeros_like(done))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        masks = self._masks(tensordict)
        for prefix in self._done_prefixes:
            done = tensordict_reset.get(join_key(prefix, "done"))
            mask = masks.for_key(join_key(prefix, "done"))
            was_reset = torch.ones_like(done) if mask is None else broadcast_mask(mask, done).expand_as(done).clone()
            tensordict_reset.set(join_key(prefix, self.init_key), was_reset)
        return tensordict_reset

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        for prefix in self._done_prefixes:
            done = self._of(next_td, join_key(prefix, "done"))
            root.set(join_key(prefix, self.init_key), broadcast_mask(is_first, done).expand_as(done).clone())
            next_td.set(join_key(prefix, self.init_key), torch.zeros_like(done))

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the spec of a mark in each group of done flags."""
        done_spec = output_spec["full_done_spec"]
        for prefix in _done_prefixes(done_spec):
            shape = done_spec[join_key(prefix, "done")].shape
            flag = Categorical(2, shape, dtype=torch.bool, device=output_spec.device)
            output_spec["full_observation_spec"][join_key(prefix, self.init_key)] = flag
        return output_spec


class StepCounter(Tracker):
    """Counts the steps of each episode, and can truncate episodes.

    Args:
        max_steps: the number of steps at which episodes are truncated, or None.
        truncated_key: the name of the flag to set in that case.
        step_count_key: the name of the count, `[*batch, 1]` int64 in each group of done flags; 0 after a reset.
        update_done: whether to set "done" too in that case.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(StepCounter(max_steps=5))
    >>> env.rollout(100)["next", "step_count"].squeeze(-1)
    tensor([1, 2, 3, 4, 5])
    """

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str | None = "truncated",
        step_count_key: str | None = "step_count",
        update_done: bool = True,
    ):
        if max_steps is not None and (not isinstance(max_steps, Integral) or max_steps < 1):
            raise ValueError(f"Expected max_steps to be an int of 1 or more, or None, got {max_steps!r}.")
        super().__init__()
        self.max_steps = max_steps
        self.truncated_key = truncated_key or "truncated"
        self.step_count_key = step_count_key or "step_count"
        self.update_done = update_done

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for prefix in self._done_prefixes:
            key = join_key(prefix, self.step_count_key)
            count = self._of(tensordict, key) + 1
            next_tensordict.set(key, count)
            if self.max_steps is not None:
                self._truncate(next_tensordict, prefix, count >= self.max_steps)
        return next_tensordict

    def _truncate(self, next_td: TensorDictBase, prefix: Prefix, is_over: Tensor) -> None:
        names = [self.truncated_key, "done"] if self.update_done else [self.truncated_key]
        for name in names:
            key = join_key(prefix, name)
            previous = next_td.get(key, None)
            next_td.set(key, is_over if previous is None else is_over | previous)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for prefix in self._done_prefixes:
            done = tensordict_reset.get(join_key(prefix, "done"))
            tensordict_reset.set(join_key(prefix, self.step_count_key), torch.zeros_like(done, dtype=torch.int64))
            if self.max_steps is not None:
                key = join_key(prefix, self.truncated_key)
                if tensordict_reset.get(key, None) is None:
                    tensordict_reset.set(key, torch.zeros_like(done))
        return tensordict_reset

    @property
    def supports_rollout(self) -> bool:
        return self.max_steps is None and super().supports_rollout

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        if self.max_steps is not None:
            raise ValueError(
                f"Expected max_steps=None for stored trajectories, which cannot be truncated, got {self.max_steps}. "
                "Use StepCounter()."
            )
        for prefix in self._done_prefixes:
            done = self._of(next_td, join_key(prefix, "done"))
            before_step, after_step = episode_sums(torch.ones_like(done, dtype=torch.int64), is_first)
            root.set(join_key(prefix, self.step_count_key), before_step)
            next_td.set(join_key(prefix, self.step_count_key), after_step)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the specs of a count and, with `max_steps`, a truncated flag in each group of done flags."""
        done_spec = output_spec["full_done_spec"]
        for prefix in _done_prefixes(done_spec):
            flag = done_spec[join_key(prefix, "done")]
            output_spec["full_observation_spec"][join_key(prefix, self.step_count_key)] = self._count_spec(flag)
            if self.max_steps is not None:
                done_spec[join_key(prefix, self.truncated_key)] = flag.clone()
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Adds the specs of the counts, which are inputs of the next step."""
        parent = self._require_parent()
        for prefix in parent.done_prefixes:
            flag = parent.full_done_spec[join_key(prefix, "done")]
            input_spec["full_state_spec"][join_key(prefix, self.step_count_key)] = self._count_spec(flag)
        return input_spec

    def _count_spec(self, flag: TensorSpec) -> TensorSpec:
        maximum = torch.iinfo(torch.int64).max if self.max_steps is None else self.max_steps
        return Bounded(0, maximum, flag.shape, dtype=torch.int64, device=flag.device)


class RewardSum(Tracker):
    """Sums the rewards of each episode.

    Args:
        in_keys: the keys of rewards; all rewards of the environment by default.
        out_keys: the keys of the sums, with the shape of the rewards; by default "episode_reward" for "reward", in the
            same group.
        reset_keys: the keys of the masks that set sums to 0, one per reward; by default the mask of the reward's group.
        reward_spec: whether the sums belong to the reward spec instead of the observation spec.

    >>> from vecrl.envs import GymEnv
    >>> GymEnv("CartPole-v1").append_transform(RewardSum()).rollout(3)["next", "episode_reward"].squeeze(-1)
    tensor([1., 2., 3.])
    """

    def __init__(self, in_keys: Any = None, out_keys: Any = None, reset_keys: Any = None, *, reward_spec: bool = False):
        super().__init__(in_keys, out_keys)
        self._reset_keys = reset_keys
        self._in_reward_spec = reward_spec

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return ["reward"] if parent is None else parent.reward_keys

    def _default_out_keys(self) -> list[Key]:
        return [join_key(prefix, f"episode_{name}") for prefix, name in map(split_key, self.in_keys)]

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        return keys  # the number of rewards may depend on the parent

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for reward_key, key in self._key_pairs:
            next_tensordict.set(key, self._of(tensordict, key) + self._of(next_tensordict, reward_key))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for index, (_, key) in enumerate(self._key_pairs):
            shape, dtype = self._cached("sums", self._sum_shapes)[index]
            zeros = torch.zeros((*tensordict_reset.batch_size, *shape), dtype=dtype, device=tensordict_reset.device)
            mask = None if self._reset_keys is None else tensordict.get(self._reset_keys[index], None)
            if mask is not None:
                zeros = torch.where(broadcast_mask(mask, zeros), zeros, tensordict.get(key, zeros))
            tensordict_reset.set(key, zeros)
        return tensordict_reset

    def _sum_shapes(self) -> list[tuple[torch.Size, Any]]:
        """Returns the shape without the batch size, and the dtype, of each sum."""
        specs = self._require_parent().full_reward_spec
        specs_found = [specs[reward_key] for reward_key, _ in self._key_pairs]
        return [(spec.shape[len(specs.shape) :], spec.dtype) for spec in specs_found]

    @property
    def supports_rollout(self) -> bool:
        return self._reset_keys is None and super().supports_rollout

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        for reward_key, key in self._key_pairs:
            before_step, after_step = episode_sums(self._of(next_td, reward_key), is_first)
            root.set(key, before_step)
            next_td.set(key, after_step)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the specs of the sums."""
        rewards = output_spec["full_reward_spec"]
        target = rewards if self._in_reward_spec else output_spec["full_observation_spec"]
        for reward_key, key in self._key_pairs:
            target[key] = _sum_spec(rewards[reward_key])
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Adds the specs of the sums, which are inputs of the next step."""
        rewards = self._require_parent().full_reward_spec
        for reward_key, key in self._key_pairs:
            input_spec["full_state_spec"][key] = _sum_spec(rewards[reward_key])
        return input_spec


def _sum_spec(reward: TensorSpec) -> TensorSpec:
    return Unbounded(reward.shape, dtype=reward.dtype, device=reward.device)


def _done_prefixes(done_spec: Composite) -> list[Prefix]:
    """Returns the prefixes of the entries "done"."""
    keys = [split_key(key) for key in done_spec.keys(include_nested=True, leaves_only=True)]
    return [prefix for prefix, name in keys if name == "done"]
