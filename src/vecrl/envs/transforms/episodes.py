"""How episodes begin and go: steps that repeat an action, and random actions before the first one that counts."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...specs import Bounded, Composite
from ..flags import rows_done
from ..owner import joined
from ..partial import Masks
from .base import Transform


class FrameSkipTransform(Transform):
    """Repeats every action, and adds up the rewards.

    A row whose episode ends is not stepped any more. (TorchRL goes on past the end.)

    Args:
        frame_skip: how many steps of the environment make one, 1 or more.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1").append_transform(FrameSkipTransform(4))
    >>> env.rollout(2)["next", "reward"].squeeze(-1)
    tensor([4., 4.])
    """

    def __init__(self, frame_skip: int = 1):
        if frame_skip < 1:
            raise ValueError(f"Expected frame_skip of 1 or more, but {frame_skip} came.")
        super().__init__()
        self.frame_skip = frame_skip
        self._taken: TensorDictBase | None = None

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._taken = tensordict.copy()  # with actions as they are here, where transforms further out have changed them
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        parent = self._require_parent()
        taken, self._taken = self._taken, None
        if taken is None:
            taken = tensordict.copy()
        mask = tensordict.get("_step", None)
        actions = taken.select(*parent.action_keys)
        following = next_tensordict
        rewards = {key: following.get(key) for key in parent.reward_keys}
        for _ in range(self.frame_skip - 1):
            running = ~rows_done(following, parent.done_prefixes)
            if mask is not None:
                running &= mask.reshape(running.shape)
            if not bool(running.any()):
                break
            root = parent.step_mdp(taken.set("next", following)).update(actions)
            taken = parent.step(root if bool(running.all()) else root.set("_step", running))
            following = taken.get("next")
            rewards = {key: total + following.get(key) for key, total in rewards.items()}
        for key, total in rewards.items():
            following.set(key, total)
        return following

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """With bounds of up to `frame_skip` rewards."""
        for key, spec in list(reward_spec.items(include_nested=True, leaves_only=True)):
            if isinstance(spec, Bounded):
                low, high = spec.low.minimum(spec.low * self.frame_skip), spec.high.maximum(spec.high * self.frame_skip)
                reward_spec[key] = Bounded(low, high, spec.shape, dtype=spec.dtype, device=spec.device)
        return reward_spec


class NoopResetEnv(Transform):
    """Takes random actions after every reset, so that episodes begin in many places.

    A row that ends meanwhile begins anew, and goes on with the actions that are left. (TorchRL gives up there, and
    takes single environments alone.)

    Args:
        noops: how many actions; where `random` is set, a number below it is drawn for every row.
        random: whether the number is drawn.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import Compose, StepCounter
    >>> env = GymEnv("Pendulum-v1").append_transform(Compose(StepCounter(), NoopResetEnv(5, random=False)))
    >>> env.reset()["step_count"]
    tensor([5])
    """

    keeps_done = True

    def __init__(self, noops: int = 30, random: bool = True):
        if noops < 0 or (random and not noops):
            raise ValueError(f"Expected noops of 1 or more, or 0 where random is not set, but {noops} came.")
        super().__init__()
        self.noops = noops
        self.random = random

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self._require_parent()
        batch, device = tensordict_reset.batch_size, tensordict_reset.device
        mask = _meant(parent, tensordict)
        left = torch.full(batch, self.noops, device=device)
        if self.random:
            left = torch.randint(self.noops, batch, device=device)
        if mask is not None:
            left = torch.where(mask, left, 0)
        root = tensordict_reset
        while bool((running := left > 0).any()):
            acted = parent.rand_action(root)
            root = parent.step_mdp(parent.step(acted if bool(running.all()) else acted.set("_step", running)))
            over = running & rows_done(root, parent.done_prefixes)
            if bool(over.any()):
                root = parent.reset(_with_masks(parent, root, over))
            left = left - running.long()
        return root

    @property
    def _unrolls(self) -> bool:
        return False


def _meant(env: Any, tensordict: TensorDictBase) -> Tensor | None:
    """`[*batch]` bool: the rows in which anything is reset; None for all."""
    masks = Masks.read(tensordict, "_reset", env.done_prefixes).found.values()
    shape = tensordict.batch_size
    return torch.stack([mask.reshape(*shape, -1).any(-1) for mask in masks]).any(0) if masks else None


def _with_masks(env: Any, root: TensorDictBase, rows: Tensor) -> TensorDictBase:
    """With masks that reset `rows` as a whole."""
    for prefix in env.done_prefixes:
        done = root.get(joined(prefix, "done"))
        wide = rows.reshape(*rows.shape, *[1] * (done.ndim - rows.ndim)).expand_as(done)
        root.set(joined(prefix, "_reset"), wide.clone())
    return root
