"""What an environment's own `_step` and `_reset` did, told where it will not do.

Knows TensorDicts and an environment's keys, not how it is stepped.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..errors import SpaceError, VecrlError
from .spec_container import Key, SpecContainer, split_key


def check_result(owner: SpecContainer, result: Any, tensordict: TensorDictBase | None, method: str) -> None:
    """Raise unless `result`, which `_reset` or `_step` returned, is a TensorDict other than the one that it was
    given."""
    env_name = type(owner).__name__
    if not isinstance(result, TensorDictBase):
        raise TypeError(f"Expected {env_name}.{method} to return a TensorDict, but {result!r:.200} came.")
    if result is tensordict:
        raise SpaceError(
            f"Expected {env_name}.{method} to return a new TensorDict with what follows, but it returned the one that "
            f"it "
            "was given: put observations, reward and done flags into TensorDict({...}, tensordict.batch_size)."
        )


def missing_input_error(owner: SpecContainer, tensordict: TensorDictBase, error: Exception) -> SpaceError | None:
    """The error for a step that raised `error`, if that is because `tensordict` lacks what it should hold; else
    None."""
    if isinstance(error, VecrlError):
        return None
    available = sorted(map(str, tensordict.keys(include_nested=True, leaves_only=True)))
    inputs = [key for key in [*owner.action_keys, *owner.state_keys] if tensordict.get(key, None) is None]
    if inputs:
        return SpaceError(
            f"Expected {', '.join(map(repr, inputs))} among what is to be stepped, but there are only {available}. "
            "Step what reset or step_mdp returned, with actions in it: env.rand_action(tensordict) puts in random ones."
        )
    if not owner.action_keys and "action" in str(error):
        return SpaceError(f"{type(owner).__name__} takes an action, but has no action_spec: set it.")
    missing_obs = [
        key for key in owner.observation_keys if tensordict.get(key, None) is None and split_key(key)[1] in str(error)
    ]
    if missing_obs and isinstance(error, KeyError):
        return SpaceError(
            f"{type(owner).__name__} went by {', '.join(map(repr, missing_obs))}, as its observation_spec says, but "
            f"there are "
            f"only {available}: have _reset give all of it, and step what reset or step_mdp returned."
        )
    return None


def reshape_reward(reward: Tensor | None, key: Key, expected: torch.Size, must_match: bool) -> Tensor:
    """A reward as its spec has it.

    Args:
        reward: what a step gave.
        key: where.
        expected: the shape; -1 for any size.
        must_match: whether no batch may stand before it.

    Raises:
        SpaceError: there is none, or of another size.
    """
    if reward is None:
        raise SpaceError(f"Expected _step to return {key!r}, as reward_spec says, but it is not there.")
    if not must_match or reward.shape == expected or -1 in expected:
        return reward
    if reward.numel() != expected.numel():
        raise SpaceError(f"Expected {key!r} of shape {tuple(expected)}, but {tuple(reward.shape)} came.")
    return reward.reshape(expected)
