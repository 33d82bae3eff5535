"""What is counted along episodes: steps, rewards, beginnings, trajectories.

The counts lie in the TensorDict, beside the done flags (or rewards) that they belong to, so every row goes its own way
and a transform keeps nothing between steps.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Categorical, Composite, TensorSpec, Unbounded
from ..owner import Key, joined, split
from ..partial import Masks, aligned
from ..successor import as_keys
from .base import Transform

Prefix = tuple[str, ...]


class Tracker(Transform):
    """For transforms that keep something along episodes, beside every group of done flags."""

    keeps_done = True

    @property
    def _places(self) -> list[Prefix]:
        """Where done flags are; at the root alone where there is no environment to ask."""
        return self._once("places", lambda: [()] if self.parent is None else self.parent.done_prefixes)

    @property
    def _unrolls(self) -> bool:
        return self._unroll_counts

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Go along stored trajectories, whose last batch dimension is time; episodes end by the flags in "next"."""
        following = tensordict.get("next", None)
        if following is None or not tensordict.batch_dims:
            raise ValueError(
                f"{type(self).__name__} goes along time: it needs trajectories [..., time] with what followed under "
                '"next", but this TensorDict has no such dimension or entry.'
            )
        self._of(following, "done")
        self._unroll(tensordict, following, beginnings(following))
        return tensordict

    def _of(self, tensordict: TensorDictBase, key: Key) -> Tensor:
        """An entry that it goes by; a KeyError where it is missing."""
        value = tensordict.get(key, None)
        if value is None:
            raise self._missing(key, tensordict)
        return value

    def _masks(self, tensordict: TensorDictBase) -> Masks:
        """Who is reset, by the "_reset" in `tensordict`."""
        return Masks.read(tensordict, "_reset", self._places)


def beginnings(following: TensorDictBase, done_key: Key = "done") -> Tensor:
    """`[..., time]` bool: which steps of stored trajectories begin an episode, by the flags in what followed them."""
    first = torch.ones(following.batch_size, dtype=torch.bool, device=following.device)
    done = following.get(done_key)
    first[..., 1:] = done.reshape(*following.batch_size, -1).any(-1)[..., :-1]
    return first


def running_sums(values: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of `values` `[*batch, time, ...]` along time since the last of the `first` `[*batch, time]`: those
    without and those with each value.

    One addition after another, so that not a bit differs from what adding up step by step gives.
    """
    dim = first.ndim - 1
    wide = first[(..., *[None] * (values.ndim - first.ndim))]
    total = torch.zeros_like(values.select(dim, 0))
    zero, before, after = total, [], []
    for value, begins in zip(values.unbind(dim), wide.unbind(dim), strict=True):
        before.append(torch.where(begins, zero, total))
        total = before[-1] + value
        after.append(total)
    return torch.stack(before, dim), torch.stack(after, dim)


class InitTracker(Tracker):
    """Marks the first step of every episode: True after a reset, False after a step.

    Args:
        init_key: the name of the mark, `[*batch, 1]` bool beside each group of done flags.

    >>> from vecrl.envs import GymEnv
    >>> GymEnv("CartPole-v1").append_transform(InitTracker()).rollout(3)["is_init"].squeeze(-1)
    tensor([ True, False, False])
    """

    def __init__(self, init_key: str = "is_init"):
        super().__init__()
        self.init_key = init_key

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for place in self._places:
            done = next_tensordict.get(joined(place, "done"))
            next_tensordict.set(joined(place, self.init_key), torch.zeros_like(done))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        masks = self._masks(tensordict)
        for place in self._places:
            done = tensordict_reset.get(joined(place, "done"))
            mask = masks.of(joined(place, "done"))
            begun = torch.ones_like(done) if mask is None else aligned(mask, done).expand_as(done).clone()
            tensordict_reset.set(joined(place, self.init_key), begun)
        return tensordict_reset

    def _unroll(self, roots: TensorDictBase, following: TensorDictBase, first: Tensor) -> None:
        for place in self._places:
            done = self._of(following, joined(place, "done"))
            roots.set(joined(place, self.init_key), aligned(first, done).expand_as(done).clone())
            following.set(joined(place, self.init_key), torch.zeros_like(done))

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """With a mark beside each group of done flags."""
        done_spec = output_spec["full_done_spec"]
        for place in _groups(done_spec):
            shape = done_spec[joined(place, "done")].shape
            mark = Categorical(2, shape, dtype=torch.bool, device=output_spec.device)
            output_spec["full_observation_spec"][joined(place, self.init_key)] = mark
        return output_spec


class StepCounter(Tracker):
    """Counts the steps of every episode, and may cut episodes.

    Args:
        max_steps: the length at which episodes are truncated; None never does.
        truncated_key: the flag that is set then.
        step_count_key: the name of the count, `[*batch, 1]` int64 beside each group of done flags; 0 after a reset.
        update_done: set "done" too where an episode is truncated.

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
            raise ValueError(f"Expected max_steps of 1 or more, an int, or None, but {max_steps!r} came.")
        super().__init__()
        self.max_steps = max_steps
        self.truncated_key = truncated_key or "truncated"
        self.step_count_key = step_count_key or "step_count"
        self.update_done = update_done

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for place in self._places:
            key = joined(place, self.step_count_key)
            count = self._of(tensordict, key) + 1
            next_tensordict.set(key, count)
            if self.max_steps is not None:
                self._cut(next_tensordict, place, count >= self.max_steps)
        return next_tensordict

    def _cut(self, following: TensorDictBase, place: Prefix, over: Tensor) -> None:
        names = [self.truncated_key, "done"] if self.update_done else [self.truncated_key]
        for name in names:
            key = joined(place, name)
            before = following.get(key, None)
            following.set(key, over if before is None else over | before)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for place in self._places:
            done = tensordict_reset.get(joined(place, "done"))
            tensordict_reset.set(joined(place, self.step_count_key), torch.zeros_like(done, dtype=torch.int64))
            if self.max_steps is not None:
                key = joined(place, self.truncated_key)
                if tensordict_reset.get(key, None) is None:
                    tensordict_reset.set(key, torch.zeros_like(done))
        return tensordict_reset

    @property
    def _unrolls(self) -> bool:
        return self.max_steps is None and super()._unrolls

    def _unroll(self, roots: TensorDictBase, following: TensorDictBase, first: Tensor) -> None:
        if self.max_steps is not None:
            raise ValueError("StepCounter(max_steps=…) ends episodes, which stored trajectories do not let it do.")
        for place in self._places:
            done = self._of(following, joined(place, "done"))
            before, after = running_sums(torch.ones_like(done, dtype=torch.int64), first)
            roots.set(joined(place, self.step_count_key), before)
            following.set(joined(place, self.step_count_key), after)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """With a count beside each group of done flags, and a flag for those that are cut."""
        done_spec = output_spec["full_done_spec"]
        for place in _groups(done_spec):
            flag = done_spec[joined(place, "done")]
            output_spec["full_observation_spec"][joined(place, self.step_count_key)] = self._count(flag)
            if self.max_steps is not None:
                done_spec[joined(place, self.truncated_key)] = flag.clone()
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """With the counts, which a step goes on from."""
        parent = self._require_parent()
        for place in parent.done_prefixes:
            flag = parent.full_done_spec[joined(place, "done")]
            input_spec["full_state_spec"][joined(place, self.step_count_key)] = self._count(flag)
        return input_spec

    def _count(self, flag: TensorSpec) -> TensorSpec:
        most = torch.iinfo(torch.int64).max if self.max_steps is None else self.max_steps
        return Bounded(0, most, flag.shape, dtype=torch.int64, device=flag.device)


class RewardSum(Tracker):
    """Adds up the rewards of every episode.

    Args:
        in_keys: the rewards; all of the environment's by default.
        out_keys: the sums, `[*batch, 1]` as the rewards; "episode_reward" for "reward", in the same group.
        reset_keys: which masks begin a sum anew, one a reward; by default those that reset the reward's own group.
        reward_spec: whether the sums count as rewards, not as observations.

    >>> from vecrl.envs import GymEnv
    >>> GymEnv("CartPole-v1").append_transform(RewardSum()).rollout(3)["next", "episode_reward"].squeeze(-1)
    tensor([1., 2., 3.])
    """

    def __init__(self, in_keys: Any = None, out_keys: Any = None, reset_keys: Any = None, *, reward_spec: bool = False):
        super().__init__(in_keys, out_keys)
        self._reset_keys = reset_keys
        self._as_reward = reward_spec

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return ["reward"] if parent is None else parent.reward_keys

    @property
    def out_keys(self) -> list[Key]:
        """The sums."""
        if self._out_keys is not None:
            return self._out_keys
        return [joined(place, f"episode_{name}") for place, name in map(split, self.in_keys)]

    @out_keys.setter
    def out_keys(self, keys: Any) -> None:
        self._out_keys = None if keys is None else as_keys(keys)
        self._tell()

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for reward_key, key in self._routes:
            next_tensordict.set(key, self._of(tensordict, key) + self._of(next_tensordict, reward_key))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for number, (_, key) in enumerate(self._routes):
            shape, dtype = self._once("sums", self._sums)[number]
            zero = torch.zeros((*tensordict_reset.batch_size, *shape), dtype=dtype, device=tensordict_reset.device)
            mask = None if self._reset_keys is None else tensordict.get(self._reset_keys[number], None)
            if mask is not None:
                zero = torch.where(aligned(mask, zero), zero, tensordict.get(key, zero))
            tensordict_reset.set(key, zero)
        return tensordict_reset

    def _sums(self) -> list[tuple[torch.Size, Any]]:
        """Of each sum, its shape behind the batch size and its dtype."""
        specs = self._require_parent().full_reward_spec
        found = [specs[reward_key] for reward_key, _ in self._routes]
        return [(spec.shape[len(specs.shape) :], spec.dtype) for spec in found]

    @property
    def _unrolls(self) -> bool:
        return self._reset_keys is None and super()._unrolls

    def _unroll(self, roots: TensorDictBase, following: TensorDictBase, first: Tensor) -> None:
        for reward_key, key in self._routes:
            before, after = running_sums(self._of(following, reward_key), first)
            roots.set(key, before)
            following.set(key, after)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """With the sums."""
        rewards = output_spec["full_reward_spec"]
        target = rewards if self._as_reward else output_spec["full_observation_spec"]
        for reward_key, key in self._routes:
            target[key] = _sum_of(rewards[reward_key])
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """With the sums, which a step goes on from."""
        rewards = self._require_parent().full_reward_spec
        for reward_key, key in self._routes:
            input_spec["full_state_spec"][key] = _sum_of(rewards[reward_key])
        return input_spec


def _sum_of(reward: TensorSpec) -> TensorSpec:
    return Unbounded(reward.shape, dtype=reward.dtype, device=reward.device)


def _groups(done_spec: Composite) -> list[Prefix]:
    """Where there is a "done"."""
    keys = [split(key) for key in done_spec.keys(include_nested=True, leaves_only=True)]
    return [prefix for prefix, name in keys if name == "done"]
