"""Transforms that take several steps at once: repeated actions, and random actions after resets.

They step their parent, and must not know which environment it is.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite
from ..done_flags import rows_done
from ..keys import join_key
from ..row_masks import RowMasks
from .base import Transform

__all__ = ["FrameSkipTransform", "NoopResetEnv"]


class FrameSkipTransform(Transform):
    """Repeats every action and sums the rewards.

    If the episode of a row ends, the row is not stepped further. (TorchRL steps past the end.)

    Args:
        frame_skip: the number of environment steps per step, 1 or more.

    Raises:
        ValueError: `frame_skip` is less than 1.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(FrameSkipTransform(4))
    >>> env.rollout(2)["next", "reward"].squeeze(-1)
    tensor([4., 4.])
    """

    def __init__(self, frame_skip: int = 1):
        if frame_skip < 1:
            raise ValueError(f"Expected frame_skip of 1 or more, got {frame_skip}.")
        super().__init__()
        self.frame_skip = frame_skip
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
        mask = tensordict.get("_step", None)
        actions = step_td.select(*parent.action_keys)
        next_td = next_tensordict
        rewards = {key: next_td.get(key) for key in parent.reward_keys}
        for _ in range(self.frame_skip - 1):
            running = ~rows_done(next_td, parent.done_prefixes)
            if mask is not None:
                running &= mask.reshape(running.shape)
            if not bool(running.any()):
                break
            root = parent.step_mdp(step_td.set("next", next_td)).update(actions)
            step_td = parent.step(root if bool(running.all()) else root.set("_step", running))
            next_td = step_td.get("next")
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


class NoopResetEnv(Transform):
    """Takes random actions after every reset, so that episodes start in different states.

    If a row ends during these actions, it is reset and takes the remaining ones. (TorchRL gives up in this case,
    and accepts single environments only.)

    Args:
        noops: the number of actions; with `random`, the exclusive maximum of a number sampled for each row.
        random: whether to sample the number.

    Raises:
        ValueError: `noops` is negative, or 0 with `random`.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import Compose, StepCounter
    >>> env = GymEnv("Pendulum-v1").append_transform(Compose(StepCounter(), NoopResetEnv(5, random=False)))
    >>> env.reset()["step_count"]
    tensor([5])
    """

    preserves_done = True

    def __init__(self, noops: int = 30, random: bool = True):
        if noops < 0 or (random and not noops):
            raise ValueError(f"Expected noops of 1 or more, or 0 with random=False, got {noops}.")
        super().__init__()
        self.noops = noops
        self.random = random

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self._require_parent()
        batch, device = tensordict_reset.batch_size, tensordict_reset.device
        mask = _reset_rows(parent, tensordict)
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
            is_over = running & rows_done(root, parent.done_prefixes)
            if bool(is_over.any()):
                root = parent.reset(_with_masks(parent, root, is_over))
            steps_left = steps_left - running.long()
        return root

    @property
    def supports_rollout(self) -> bool:
        return False


def _reset_rows(env: Any, tensordict: TensorDictBase) -> Tensor | None:
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
