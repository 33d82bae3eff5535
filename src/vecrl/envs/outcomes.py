"""What an environment's own `_step` and `_reset` did, told where it will not do.

Knows TensorDicts and an environment's keys, not how it is stepped.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..errors import SpaceError, VecrlError
from .owner import Key, SpecOwner, split


def check_outcome(owner: SpecOwner, came: Any, given: TensorDictBase | None, method: str) -> None:
    """Raise unless `came`, which `_reset` or `_step` returned, is a TensorDict other than the one that it was given."""
    kind = type(owner).__name__
    if not isinstance(came, TensorDictBase):
        raise TypeError(f"Expected {kind}.{method} to return a TensorDict, but {came!r:.200} came.")
    if came is given:
        raise SpaceError(
            f"Expected {kind}.{method} to return a new TensorDict with what follows, but it returned the one that it "
            "was given: put observations, reward and done flags into TensorDict({...}, tensordict.batch_size)."
        )


def lacking(owner: SpecOwner, given: TensorDictBase, error: Exception) -> SpaceError | None:
    """The error for a step that raised `error`, if that is because `given` lacks what it should hold; else None."""
    if isinstance(error, VecrlError):
        return None
    there = sorted(map(str, given.keys(include_nested=True, leaves_only=True)))
    inputs = [key for key in [*owner.action_keys, *owner.state_keys] if given.get(key, None) is None]
    if inputs:
        return SpaceError(
            f"Expected {', '.join(map(repr, inputs))} among what is to be stepped, but there are only {there}. "
            "Step what reset or step_mdp returned, with actions in it: env.rand_action(tensordict) puts in random ones."
        )
    if not owner.action_keys and "action" in str(error):
        return SpaceError(f"{type(owner).__name__} takes an action, but has no action_spec: set it.")
    seen = [key for key in owner.observation_keys if given.get(key, None) is None and split(key)[1] in str(error)]
    if seen and isinstance(error, KeyError):
        return SpaceError(
            f"{type(owner).__name__} went by {', '.join(map(repr, seen))}, as its observation_spec says, but there are "
            f"only {there}: have _reset give all of it, and step what reset or step_mdp returned."
        )
    return None


def shaped(reward: Tensor | None, key: Key, expected: torch.Size, exactly: bool) -> Tensor:
    """A reward as its spec has it.

    Args:
        reward: what a step gave.
        key: where.
        expected: the shape; -1 for any size.
        exactly: whether no batch may stand before it.

    Raises:
        SpaceError: there is none, or of another size.
    """
    if reward is None:
        raise SpaceError(f"Expected _step to return {key!r}, as reward_spec says, but it is not there.")
    if not exactly or reward.shape == expected or -1 in expected:
        return reward
    if reward.numel() != expected.numel():
        raise SpaceError(f"Expected {key!r} of shape {tuple(expected)}, but {tuple(reward.shape)} came.")
    return reward.reshape(expected)
