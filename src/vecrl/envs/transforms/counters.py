"""Transforms that track episodes: first steps, step counts and sums of rewards.

The tracked values are entries of the TensorDict, in the group of their done flags or rewards. So rows are independent,
and these transforms must keep nothing between steps.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Categorical, Composite, TensorSpec, Unbounded
from ...validation import check_text, parse_optional_count
from ..entries.keys import Key, join_key, key_path, split_key
from ..entries.row_masks import Prefix, broadcast_mask
from ..entries.step_mdp import as_keys
from .base import Transform
from .keyed_module import Keys

__all__ = ["InitTracker", "RewardSum", "StepCounter"]


class Tracker(Transform):
    """The base of transforms that track a value over each episode, for every done flag or every reward.

    A subclass defines `_tracked_keys`, `_initial_value`, `_next_value` and `_spec`. The same methods give steps,
    resets, whole rollouts and specs.
    """

    preserves_done = True
    _takes_records = True
    _source: ClassVar[str] = "done"  # the spec that contains the sources: "done" or "reward"
    _dtype: torch.dtype | None = None  # of the tracked values; by default that of the source
    _is_input = True  # whether a step needs the tracked values before it
    _start_value: float = 0  # in each episode, for whole rollouts

    @cached_property
    def _tracked_keys(self) -> list[tuple[Key, Key]]:
        """The pairs of keys: of a done flag or a reward, and of the value that belongs to it."""
        raise NotImplementedError

    def _keys_beside_done(self, name: str) -> list[tuple[Key, Key]]:
        """Returns the keys of each "done" flag and of `name` beside it."""
        return [(join_key(prefix, "done"), join_key(prefix, name)) for prefix in self._done_prefixes]

    def _initial_value(self, source_key: Key, key: Key, tensordict: TensorDictBase, reset_td: TensorDictBase) -> Tensor:
        """Returns the tracked value after a reset; rows that were not reset are undefined."""
        return torch.zeros_like(reset_td.get(source_key), dtype=self._dtype)

    def _next_value(self, previous: Any, source: Tensor) -> Tensor:
        """Returns the tracked value after a step.

        Args:
            previous: the tracked value before the step; None if there is none, and `_is_input` is False.
            source: the done flag or the reward of the step.
        """
        raise NotImplementedError

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for source_key, key in self._tracked_keys:
            previous, source = tensordict.get(key, None), next_tensordict.get(source_key, None)
            if previous is None and self._is_input:
                raise self._missing(key, tensordict)
            if source is None:
                raise self._missing(source_key, next_tensordict)
            next_tensordict.set(key, self._next_value(previous, source))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for source_key, key in self._tracked_keys:
            tensordict_reset.set(key, self._initial_value(source_key, key, tensordict, tensordict_reset))
        return tensordict_reset

    def _was_reset(self, tensordict: TensorDictBase, done_key: Key, done: Tensor) -> Tensor:
        """Returns which rows were reset, in the shape of `done`, from the masks in the input of the reset."""
        mask = self._reset_masks(tensordict).for_key(done_key)
        return torch.ones_like(done) if mask is None else broadcast_mask(mask, done).expand_as(done).clone()

    # -- whole rollouts and stored trajectories

    @property
    def supports_rollout(self) -> bool:
        return self._has_no_step_hooks

    @property
    def rows_are_independent(self) -> bool:
        return self._has_no_step_hooks

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        for source_key, key in self._tracked_keys:
            before_step, after_step = self._trajectory(self._of(next_td, source_key), is_first)
            root.set(key, before_step)
            next_td.set(key, after_step)

    def _trajectory(self, source: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the tracked values before and after each step, which start with `_start_value` in each episode.

        They are computed one step after another, so that the result equals that of single steps bit for bit.

        Args:
            source: `[*batch, time, ...]`, the done flags or rewards.
            is_first: `[*batch, time]` bool, True at the first step of each episode.
        """
        dim = is_first.ndim - 1
        broadcast = is_first[(..., *[None] * (source.ndim - is_first.ndim))]
        total = start = torch.full_like(source.select(dim, 0), self._start_value, dtype=self._dtype)
        before_step, after_step = [], []
        for value, is_start in zip(source.unbind(dim), broadcast.unbind(dim), strict=True):
            before_step.append(torch.where(is_start, start, total))
            total = self._next_value(before_step[-1], value)
            after_step.append(total)
        return torch.stack(before_step, dim), torch.stack(after_step, dim)

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

    # -- specs

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return Unbounded(spec.shape, dtype=self._dtype or spec.dtype, device=spec.device)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the specs of the tracked values. Raises a SpaceError if an observation would be replaced."""
        sources, observations = output_spec[f"full_{self._source}_spec"], output_spec["full_observation_spec"]
        for source_key, key in self._tracked_keys:
            if key in observations:
                raise SpaceError(
                    f"Expected {type(self).__name__} to write a new entry, got {key!r}, which is an observation of the "
                    f"environment. Give another key."
                )
            observations[key] = self._spec(sources[source_key])
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Adds the specs of the tracked values that are inputs of the next step."""
        if not self._is_input:
            return input_spec
        sources = self._require_parent().output_spec[f"full_{self._source}_spec"]
        for source_key, key in self._tracked_keys:
            input_spec["full_state_spec"][key] = self._spec(sources[source_key])
        return input_spec


def episode_starts(next_td: TensorDictBase, done_key: Key = "done") -> Tensor:
    """Returns a mask `[..., time]` bool of the first step of each episode, from the done flags in `next_td`."""
    is_first = torch.ones(next_td.batch_size, dtype=torch.bool, device=next_td.device)
    done = next_td.get(done_key)
    is_first[..., 1:] = done.reshape(*next_td.batch_size, -1).any(-1)[..., :-1]
    return is_first


def start_indices(is_first: Tensor) -> Tensor:
    """Returns the index of the first step of the episode of each step, `[..., time]` int64."""
    steps = torch.arange(is_first.shape[-1], device=is_first.device)
    return torch.where(is_first, steps, 0).cummax(-1).values


class InitTracker(Tracker):
    """Marks the first step of each episode: True after a reset, False after a step.

    Args:
        init_key: the name of the mark, `[*batch, 1]` bool in each group of done flags.

    >>> from vecrl.envs import GymEnv
    >>> GymEnv("CartPole-v1").append_transform(InitTracker()).rollout(3)["is_init"].squeeze(-1)
    tensor([ True, False, False])
    """

    _is_input = False

    def __init__(self, init_key: str = "is_init"):
        super().__init__()
        check_text("init_key", init_key)
        self.init_key = init_key

    @cached_property
    def _tracked_keys(self) -> list[tuple[Key, Key]]:
        return self._keys_beside_done(self.init_key)

    @property
    def init_keys(self) -> list[Key]:
        """The keys of the marks, one beside each "done" flag of the environment."""
        return [key for _, key in self._tracked_keys]

    def _next_value(self, previous: Any, source: Tensor) -> Tensor:
        return torch.zeros_like(source)

    def _initial_value(self, source_key: Key, key: Key, tensordict: TensorDictBase, reset_td: TensorDictBase) -> Tensor:
        return self._was_reset(tensordict, source_key, reset_td.get(source_key))

    def _trajectory(self, source: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        return broadcast_mask(is_first, source).expand_as(source).clone(), torch.zeros_like(source)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return Categorical(2, spec.shape, dtype=torch.bool, device=spec.device)


class StepCounter(Tracker):
    """Counts the steps of each episode, and can truncate episodes.

    A second one with the same `step_count_key` has the same count; the limit that is reached first truncates.

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

    _takes_records = True
    _dtype = torch.int64

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str | None = "truncated",
        step_count_key: str | None = "step_count",
        update_done: bool = True,
    ):
        super().__init__()
        self.max_steps = parse_optional_count("max_steps", max_steps)
        self.truncated_key = truncated_key or "truncated"
        self.step_count_key = step_count_key or "step_count"
        check_text("truncated_key", self.truncated_key)
        check_text("step_count_key", self.step_count_key)
        self.update_done = update_done

    @cached_property
    def _tracked_keys(self) -> list[tuple[Key, Key]]:
        return self._keys_beside_done(self.step_count_key)

    @property
    def step_count_keys(self) -> list[Key]:
        """The keys of the counts, one beside each "done" flag of the environment."""
        return [key for _, key in self._tracked_keys]

    @property
    def truncated_keys(self) -> list[Key]:
        """The keys of the flags that `max_steps` sets, one beside each "done" flag of the environment."""
        return [join_key(prefix, self.truncated_key) for prefix in self._done_prefixes]

    def _trajectory(self, source: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.arange(is_first.shape[-1], device=is_first.device) - start_indices(is_first)
        count = count[(..., *[None] * (source.ndim - count.ndim))].expand_as(source).clone()
        return count, count + 1

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for prefix, (_, key) in zip(self._done_prefixes, self._tracked_keys, strict=True):
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
        super()._reset(tensordict, tensordict_reset)
        for prefix in [] if self.max_steps is None else self._done_prefixes:
            key = join_key(prefix, self.truncated_key)
            if tensordict_reset.get(key, None) is None:
                tensordict_reset.set(key, torch.zeros_like(tensordict_reset.get(join_key(prefix, "done"))))
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
        super()._apply_to_rollout(root, next_td, is_first)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the specs of a count and, with `max_steps`, a truncated flag in each group of done flags."""
        done_spec = output_spec["full_done_spec"]
        for prefix in [] if self.max_steps is None else self._done_prefixes:
            done_spec[join_key(prefix, self.truncated_key)] = done_spec[join_key(prefix, "done")].clone()
        observations = output_spec["full_observation_spec"]
        for done_key, key in self._tracked_keys:
            if self._is_earlier_count(key, observations.get(key, None), done_spec[done_key]):
                del observations[key]
        return super().transform_output_spec(output_spec)

    def _is_earlier_count(self, key: Key, spec: TensorSpec | None, done_spec: TensorSpec) -> bool:
        """Returns whether `spec` is that of a count of another `StepCounter` before this one, which counts the same."""
        if not isinstance(spec, Bounded) or spec.dtype != self._dtype or spec.shape != done_spec.shape:
            return False
        parent = self.parent
        return bool((spec.low == 0).all()) and parent is not None and key in parent.full_state_spec

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        maximum = torch.iinfo(torch.int64).max if self.max_steps is None else self.max_steps
        return Bounded(0, maximum, spec.shape, dtype=torch.int64, device=spec.device)


class RewardTracker(Tracker):
    """The base of transforms that track a value for each reward, with its shape and dtype.

    Args:
        in_keys: the keys of rewards; all rewards of the environment by default.
        out_keys: the keys of the tracked values.
        reset_keys: the keys of the masks of rows to reset, one per reward or one for all; by default the mask of the
            group of each reward.
    """

    _source = "reward"

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None, reset_keys: Keys = None):
        super().__init__(in_keys, out_keys)
        self._reset_keys = None if reset_keys is None else as_keys(reset_keys)

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return ["reward"] if parent is None else parent.reward_keys

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        depends_on_parent = name == "out_keys" and self._in_keys is None
        return keys if depends_on_parent else super()._validate_keys(name, keys)

    @cached_property
    def _tracked_keys(self) -> list[tuple[Key, Key]]:
        keys, new_keys, masks = self.in_keys, self.out_keys, self._reset_keys
        if len(new_keys) != len(keys) or len(set(new_keys)) < len(keys):
            raise ValueError(
                f"Expected {type(self).__name__} to have a key in out_keys for each reward, {keys}, got {new_keys}. "
                f"Give as many different out_keys."
            )
        if masks is not None and len(masks) not in (1, len(keys)):
            raise ValueError(
                f"Expected {type(self).__name__} to have one of reset_keys for all rewards, or one for each of {keys}, "
                f"got {masks}."
            )
        return self._key_pairs

    def _initial_value(self, source_key: Key, key: Key, tensordict: TensorDictBase, reset_td: TensorDictBase) -> Tensor:
        shape, dtype = self._shapes[source_key]
        start = torch.full((*reset_td.batch_size, *shape), self._start_value, dtype=dtype, device=reset_td.device)
        if self._reset_keys is None:
            return start
        index = self._tracked_keys.index((source_key, key)) if len(self._reset_keys) > 1 else 0
        mask = tensordict.get(self._reset_keys[index], None)
        return start if mask is None else torch.where(broadcast_mask(mask, start), start, tensordict.get(key, start))

    @cached_property
    def _shapes(self) -> dict[Key, tuple[torch.Size, torch.dtype | None]]:
        """The shape without the batch size, and the dtype, of each tracked value."""
        specs = self._require_parent().full_reward_spec
        return {key: (specs[key].shape[len(specs.shape) :], specs[key].dtype) for key, _ in self._tracked_keys}

    @property
    def supports_rollout(self) -> bool:
        return self._reset_keys is None and super().supports_rollout


class RewardSum(RewardTracker):
    """Sums the rewards of each episode.

    On stored trajectories the keys may also begin with "next", as in TorchRL: the sums are then under "next" only.

    Args:
        in_keys: the keys of rewards; all rewards of the environment by default.
        out_keys: the keys of the sums, with the shape of the rewards; by default "episode_reward" for "reward", in the
            same group.
        reset_keys: the keys of the masks that set sums to 0, one per reward; by default the mask of the reward's group.
        reward_spec: whether the sums belong to the reward spec instead of the observation spec.

    Raises:
        ValueError: the numbers of keys differ, or `out_keys` has one twice.
        SpaceError: on use, if the environment has an observation at one of `out_keys`.

    >>> from vecrl.envs import GymEnv
    >>> GymEnv("CartPole-v1").append_transform(RewardSum()).rollout(3)["next", "episode_reward"].squeeze(-1)
    tensor([1., 2., 3.])
    """

    _next_value = staticmethod(torch.add)  # pyright: ignore[reportAssignmentType]

    def __init__(
        self, in_keys: Keys = None, out_keys: Keys = None, reset_keys: Keys = None, *, reward_spec: bool = False
    ):
        super().__init__(in_keys, out_keys, reset_keys)
        self._in_reward_spec = reward_spec

    def _default_out_keys(self) -> list[Key]:
        return [join_key(prefix, f"episode_{name}") for prefix, name in map(split_key, self.in_keys)]

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        for source_key, key in self._tracked_keys:
            before_step, after_step = self._trajectory(self._of(next_td, _below_next(source_key)), is_first)
            next_td.set(_below_next(key), after_step)
            if key == _below_next(key):
                root.set(key, before_step)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the specs of the sums."""
        if not self._in_reward_spec:
            return super().transform_output_spec(output_spec)
        for reward_key, key in self._tracked_keys:
            output_spec["full_reward_spec"][key] = self._spec(output_spec["full_reward_spec"][reward_key])
        return output_spec


def _below_next(key: Key) -> Key:
    """Returns the key of an entry below "next" without a leading "next".

    >>> _below_next(("next", "agents", "reward")), _below_next("reward")
    (('agents', 'reward'), 'reward')
    """
    path = key_path(key)
    return join_key(path[1:-1], path[-1]) if len(path) > 1 and path[0] == "next" else key
