"""Transforms that decide by a condition whether rows are stepped, or which policy takes their next step.

They must not know what conditions and policies compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ..done_flags import any_true, rows_done
from ..row_masks import broadcast_mask
from .base import Transform
from .frame_skip import reset_rows

__all__ = ["ConditionalPolicySwitch", "ConditionalSkip"]

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
