"""Transforms that take further steps of their parent, or skip steps: repeated and several actions, random actions after
resets, rows that a condition skips, and a second policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Composite
from ...validation import check_callable, parse_count, parse_int
from ..entries.keys import Key, join_key
from ..entries.row_masks import RowMasks, any_true, broadcast_mask, rows_done
from .base import Transform

if TYPE_CHECKING:
    from ..base import EnvBase

__all__ = ["ConditionalPolicySwitch", "ConditionalSkip", "FrameSkipTransform", "MultiAction", "NoopResetEnv"]


def further_steps(
    env: EnvBase,
    step_td: TensorDictBase,
    next_td: TensorDictBase,
    mask: Tensor | None,
    actions: Iterable[Mapping[Key, Tensor]],
) -> Iterator[tuple[TensorDictBase, Tensor]]:
    """Takes steps after a step, in the rows that are not done, until all are done.

    Args:
        env: the environment to step.
        step_td: the input of the step.
        next_td: its output.
        mask: which rows were stepped; None for all.
        actions: the actions of each further step, by key.

    Yields:
        The output of each further step, with rewards of 0 in rows that are not stepped, and the mask of the rows that
        are stepped, `[*batch]` bool.
    """
    for action in actions:
        stopped = rows_done(next_td, env.outer_done_prefixes)
        if mask is not None:
            stopped |= ~mask.reshape(stopped.shape)
        some_stopped = any_true(stopped)
        if some_stopped and bool(stopped.all()):
            return
        root = env.step_mdp(step_td.set("next", next_td))
        for key, value in action.items():
            root.set(key, value)
        step_td = env.step(root.set("_step", ~stopped) if some_stopped else root)
        next_td = step_td.get("next")
        yield next_td, ~stopped


class FrameSkipTransform(Transform):
    """Repeats every action and sums the rewards.

    If the episode of a row ends, the row is not stepped further. (TorchRL steps past the end.)

    Args:
        frame_skip: the number of environment steps per step, 1 or more.

    Raises:
        ValueError: `frame_skip` is no int of 1 or more.
        RuntimeError: on use with stored data.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(FrameSkipTransform(4))
    >>> env.rollout(2)["next", "reward"].squeeze(-1)
    tensor([4., 4.])
    """

    _env_only = "Remove it."

    def __init__(self, frame_skip: int = 1):
        super().__init__()
        self.frame_skip = parse_count("frame_skip", frame_skip)
        self._last_input: TensorDictBase | None = None

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        # with the actions after the inverses of later transforms
        self._last_input = tensordict.copy()
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        parent = self._require_parent()
        step_td, self._last_input = self._last_input, None
        if step_td is None:
            step_td = tensordict.copy()
        actions = [{key: step_td.get(key) for key in parent.action_keys}] * (self.frame_skip - 1)
        rewards = {key: next_tensordict.get(key) for key in parent.reward_keys}
        next_td = next_tensordict
        for next_td, _ in further_steps(parent, step_td, next_tensordict, tensordict.get("_step", None), actions):
            rewards = {key: total + next_td.get(key) for key, total in rewards.items()}
        for key, total in rewards.items():
            next_td.set(key, total)
        return next_td

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Returns the specs of rewards, with bounds for sums of up to `frame_skip` rewards."""
        for key, spec in list(reward_spec.items(include_nested=True, leaves_only=True)):
            if isinstance(spec, Bounded):
                low, high = spec.low.minimum(spec.low * self.frame_skip), spec.high.maximum(spec.high * self.frame_skip)
                reward_spec[key] = Bounded(low, high, spec.shape, dtype=spec.dtype, device=spec.device)
        return reward_spec


class MultiAction(Transform):
    """Takes several actions in one step of the user: those along one dimension, one after another.

    Transforms before it are applied to each of them, transforms after it once to all. Once the episode of a row has
    ended, its further actions are not taken: its rewards are 0 then, and its observations stay the last ones. (TorchRL
    repeats the last reward.)

    Args:
        dim: the dimension of the actions, counted from 1 after the batch dimensions.
        stack_rewards: whether to stack the rewards of all actions along this dimension; otherwise the user sees the
            last reward of each row.
        stack_observations: whether to stack the observations too; otherwise the user sees the last ones. A reset then
            returns a single one, and entries that the next step needs (a step count) are not stacked.

    Raises:
        ValueError: `dim` is less than 1.
        SpaceError: on use, if the actions differ in number, or there are none.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1", categorical_action_encoding=True).append_transform(MultiAction())
    >>> env.step(env.reset().set("action", torch.tensor([0, 1, 1])))["next", "reward"].squeeze(-1)
    tensor([1., 1., 1.])
    """

    def __init__(self, *, dim: int = 1, stack_rewards: bool = True, stack_observations: bool = False):
        if dim < 1:
            raise ValueError(f"Expected dim of 1 or more, counted from 1 after the batch dimensions, got {dim}.")
        super().__init__()
        self.dim = dim
        self.stack_rewards = stack_rewards
        self.stack_observations = stack_observations
        self._inputs: tuple[TensorDictBase, list[dict[Key, Tensor]]] | None = None

    @cached_property
    def _stacked_keys(self) -> list[Key]:
        """The keys of observations that are stacked."""
        parent = self._require_parent()
        return [key for key in parent.observation_keys if self.stack_observations and key not in parent.state_keys]

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        keys = self._require_parent().action_keys
        position = tensordict.batch_dims + self.dim - 1
        actions = {key: tensordict.get(key).unbind(position) for key in keys}
        counts = {key: len(values) for key, values in actions.items()}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            raise SpaceError(f"Expected the same number of actions, 1 or more, at all keys, got {counts}.")
        first, *further = [dict(zip(keys, values, strict=True)) for values in zip(*actions.values(), strict=True)]
        for key, value in first.items():
            tensordict.set(key, value)
        for key in self._stacked_keys:  # environments may read their last observations
            if (stack := tensordict.get(key, None)) is not None:
                tensordict.set(key, stack.select(position, -1))
        self._inputs = tensordict.copy(), further
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        assert self._inputs is not None
        parent, (step_td, actions) = self._require_parent(), self._inputs
        rewards = {key: [next_tensordict.get(key)] for key in parent.reward_keys}
        stacks = {key: [next_tensordict.get(key)] for key in self._stacked_keys}
        next_td = next_tensordict
        mask = tensordict.get("_step", None)
        for next_td, running in further_steps(parent, step_td, next_tensordict, mask, actions):
            for key, values in rewards.items():
                reward = next_td.get(key)
                if not self.stack_rewards:
                    reward = torch.where(broadcast_mask(running, reward), reward, values[-1])
                values.append(reward)
            for key, values in stacks.items():
                values.append(next_td.get(key))
        position, count = next_td.batch_dims + self.dim - 1, len(actions) + 1
        for key, values in rewards.items():
            padding = [torch.zeros_like(values[-1])] * (count - len(values))
            next_td.set(key, torch.stack([*values, *padding], position) if self.stack_rewards else values[-1])
        for key, values in stacks.items():
            next_td.set(key, torch.stack([*values, *[values[-1]] * (count - len(values))], position))
        return next_td

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for key in self._stacked_keys:
            value = tensordict_reset.get(key)
            tensordict_reset.set(key, value.unsqueeze(tensordict_reset.batch_dims + self.dim - 1))
        return tensordict_reset

    def _stack_specs(self, specs: Composite, keys: Sequence[Key]) -> Composite:
        """Adds a dimension of dynamic size to the specs at `keys`, in place, and returns the specs."""
        position = self._require_parent().batch_dims + self.dim - 1
        for key in keys:
            specs[key] = specs[key].unsqueeze(position).make_neg_dim(position)
        return specs

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Adds the dimension of the actions, of dynamic size."""
        return self._stack_specs(action_spec, self._require_parent().action_keys)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Adds the same dimension to rewards, if they are stacked."""
        return self._stack_specs(reward_spec, self._require_parent().reward_keys if self.stack_rewards else [])

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the same dimension to observations that are stacked."""
        return self._stack_specs(observation_spec, self._stacked_keys)


class NoopResetEnv(Transform):
    """Takes random actions after every reset, so that episodes start in different states.

    If a row ends during these actions, it is reset and takes the remaining ones. (TorchRL gives up in this case,
    and accepts single environments only.)

    Args:
        noops: the number of actions; with `random`, the exclusive maximum of a number sampled for each row.
        random: whether to sample the number.

    Raises:
        ValueError: `noops` is negative or no whole number, or 0 with `random`.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import Compose, StepCounter
    >>> env = GymEnv("Pendulum-v1").append_transform(Compose(StepCounter(), NoopResetEnv(5, random=False)))
    >>> env.reset()["step_count"]
    tensor([5])
    """

    preserves_done = True

    def __init__(self, noops: int = 30, random: bool = True):
        noops = parse_int("noops", noops, 0)
        if random and not noops:
            raise ValueError(f"Expected noops to be an int of 1 or more, or 0 with random=False, got {noops}.")
        super().__init__()
        self.noops = noops
        self.random = random

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self._require_parent()
        batch, device = tensordict_reset.batch_size, tensordict_reset.device
        mask = reset_rows(parent, tensordict)
        steps_left = torch.full(batch, self.noops, device=device)
        if self.random:
            steps_left = torch.randint(self.noops, batch, device=device)
        if mask is not None:
            steps_left = torch.where(mask, steps_left, 0)
        root = tensordict_reset
        while bool((running := steps_left > 0).any()):
            with_action = parent.rand_action(root)
            root = parent.step_mdp(
                parent.step(with_action if bool(running.all()) else with_action.set("_step", running))
            )
            is_over = running & rows_done(root, parent.outer_done_prefixes)
            if bool(is_over.any()):
                root = parent.reset(_with_masks(parent, root, is_over))
            steps_left = steps_left - running.long()
        return root

    @property
    def supports_rollout(self) -> bool:
        return False


def reset_rows(env: Any, tensordict: TensorDictBase) -> Tensor | None:
    """Returns a mask `[*batch]` bool of the rows in which any group is reset; None for all rows."""
    masks = RowMasks.from_tensordict(tensordict, "_reset", env.done_prefixes).masks.values()
    shape = tensordict.batch_size
    return torch.stack([mask.reshape(*shape, -1).any(-1) for mask in masks]).any(0) if masks else None


def _with_masks(env: Any, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
    """Sets masks in `root` that reset all groups of `rows`, and returns it."""
    for prefix in env.done_prefixes:
        done = root.get(join_key(prefix, "done"))
        broadcast = rows.reshape(*rows.shape, *[1] * (done.ndim - rows.ndim)).expand_as(done)
        root.set(join_key(prefix, "_reset"), broadcast.clone())
    return root


Condition = Callable[[TensorDictBase], Any]


class Conditional(Transform):
    """The base of transforms with a condition, which a function of a TensorDict computes for each row."""

    _env_only = "Remove it."

    def _rows_where(self, condition: Condition, td: TensorDictBase) -> Tensor:
        """Returns the rows in which a condition holds, `[*batch]` bool. Raises a SpaceError if it has another shape."""
        batch = td.batch_size
        result = torch.as_tensor(condition(td), device=td.device).bool()
        if result.ndim and result.shape[: len(batch)] != batch:
            raise SpaceError(
                f"Expected the condition of {type(self).__name__} to return a bool or a tensor of batch size "
                f"{tuple(batch)}, got shape {tuple(result.shape)}. Return one value per row."
            )
        return result.reshape(*batch, -1).any(-1) if result.ndim else result.expand(batch)


class ConditionalSkip(Conditional):
    """Skips steps of rows in which a condition holds.

    The output of such a row has the entries of its input, and rewards of 0. The transforms in the same environment
    skip the row too. To apply a transform at each step, put it into another `TransformedEnv` around this one.

    Args:
        cond: takes the input of the step, and returns a bool or a tensor `[*batch]` or `[*batch, 1]`: True to skip.

    Raises:
        SpaceError: on use, if the result of `cond` has another shape.
        RuntimeError: on use with stored data.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import StepCounter, TransformedEnv
    >>> inner = GymEnv("Pendulum-v1").append_transform(StepCounter(step_count_key="inner"))
    >>> inner.append_transform(ConditionalSkip(lambda td: td["outer"] % 2 == 1))  # doctest: +ELLIPSIS
    TransformedEnv(...)
    >>> rollout = TransformedEnv(inner, StepCounter(step_count_key="outer")).rollout(5)
    >>> rollout["inner"].squeeze(-1), rollout["outer"].squeeze(-1)
    (tensor([0, 1, 1, 2, 2]), tensor([0, 1, 2, 3, 4]))
    """

    def __init__(self, cond: Condition):
        super().__init__()
        check_callable("cond", cond)
        self.cond = cond

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        skipped = self._rows_where(self.cond, tensordict)
        if not any_true(skipped):
            return tensordict
        mask = tensordict.get("_step", None)
        return tensordict.set("_step", ~skipped if mask is None else ~skipped & mask.reshape(skipped.shape))


class ConditionalPolicySwitch(Conditional):
    """Lets another policy take a step after each step and each reset after which a condition holds, as in a game.

    The user sees the result of that step instead, with its reward. A row that is done is not stepped. Transforms before
    this one are applied to both steps, transforms after it once.

    Args:
        policy: takes a TensorDict, writes the actions and returns it.
        condition: takes the output of a step or a reset, and returns a bool or a tensor `[*batch]` or `[*batch, 1]`:
            True for rows in which `policy` takes a step.

    Raises:
        SpaceError: on use, if the result of `condition` has another shape, or a step after a reset ends an episode.
        RuntimeError: on use with stored data.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import Compose, StepCounter
    >>> def push_left(td):
    ...     return td.set("action", torch.zeros((), dtype=torch.int64))
    >>> switch = ConditionalPolicySwitch(push_left, lambda td: td["both"] % 2 == 1)
    >>> env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    >>> env = env.append_transform(Compose(StepCounter(step_count_key="both"), switch, StepCounter()))
    >>> rollout = env.rollout(3)
    >>> rollout["both"].squeeze(-1), rollout["step_count"].squeeze(-1)
    (tensor([0, 2, 4]), tensor([0, 1, 2]))
    """

    def __init__(self, policy: Callable[[TensorDictBase], TensorDictBase], condition: Condition):
        super().__init__()
        self.policy = policy
        self.condition = condition
        self._last_input: TensorDictBase | None = None

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._last_input = tensordict.copy()
        return tensordict

    def _policy_step(self, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Returns `root` with the result of a step of the policy in `rows` under "next"."""
        root = self.policy(root)
        return self._require_parent().step(root if bool(rows.all()) else root.set("_step", rows))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        step_td, self._last_input = self._last_input, None
        rows = self._rows_where(self.condition, next_tensordict)
        if not any_true(rows):
            return next_tensordict
        parent = self._require_parent()
        rows = rows & ~rows_done(next_tensordict, parent.outer_done_prefixes)
        if (mask := tensordict.get("_step", None)) is not None:
            rows = rows & mask.reshape(rows.shape)
        if not any_true(rows):
            return next_tensordict
        assert step_td is not None
        next_td = self._policy_step(parent.step_mdp(step_td.set("next", next_tensordict)), rows).get("next")
        for key in parent.reward_keys:
            reward = next_td.get(key)
            next_td.set(key, torch.where(broadcast_mask(rows, reward), reward, next_tensordict.get(key)))
        return next_td

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self._require_parent()
        rows = self._rows_where(self.condition, tensordict_reset)
        if (mask := reset_rows(parent, tensordict)) is not None:
            rows = rows & mask
        if not bool(rows.any()):
            return tensordict_reset
        root = parent.step_mdp(self._policy_step(tensordict_reset.copy(), rows))
        return root.exclude(*parent.action_keys)
