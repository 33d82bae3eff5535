"""Checks the results of an environment's `_step` and `_reset`, and explains errors inside them.

This module knows TensorDicts and the keys of an environment; it must not know how environments step.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..errors import SpaceError, VecrlError
from .spec_container import Key, SpecContainer, split_key


def check_result(owner: SpecContainer, result: Any, tensordict: TensorDictBase | None, method: str) -> None:
    """Checks that `_reset` or `_step` returned a new TensorDict.

    Raises:
        TypeError: if `result` is no TensorDict.
        SpaceError: if `result` is the input, `tensordict`.
    """
    env_name = type(owner).__name__
    if not isinstance(result, TensorDictBase):
        raise TypeError(f"Expected {env_name}.{method} to return a TensorDict, got {result!r:.200}.")
    if result is tensordict:
        raise SpaceError(
            f"Expected {env_name}.{method} to return a new TensorDict, got its input. "
            "Put observations, reward and done flags into TensorDict({...}, tensordict.batch_size)."
        )


def missing_input_error(owner: SpecContainer, tensordict: TensorDictBase, error: Exception) -> SpaceError | None:
    """Returns the error that explains `error` of a step if `tensordict` lacks an input; otherwise None."""
    if isinstance(error, VecrlError):
        return None
    available = sorted(map(str, tensordict.keys(include_nested=True, leaves_only=True)))
    inputs = [key for key in [*owner.action_keys, *owner.state_keys] if tensordict.get(key, None) is None]
    if inputs:
        return SpaceError(
            f"Expected {', '.join(map(repr, inputs))} in the input of step, got only {available}. Step the result of "
            "reset or step_mdp, with actions: env.rand_action(tensordict) adds random ones."
        )
    if not owner.action_keys and "action" in str(error):
        return SpaceError(f"Expected an action_spec, since {type(owner).__name__} takes an action, got none. Set it.")
    missing_obs = [
        key for key in owner.observation_keys if tensordict.get(key, None) is None and split_key(key)[1] in str(error)
    ]
    if missing_obs and isinstance(error, KeyError):
        return SpaceError(
            f"Expected {', '.join(map(repr, missing_obs))}, which {type(owner).__name__} reads and which is in its "
            f"observation_spec, got only {available}. Return it in _reset, and step the result of reset or step_mdp."
        )
    return None


def reshape_reward(reward: Tensor | None, key: Key, expected: torch.Size, must_match: bool) -> Tensor:
    """Returns the reward in the shape of its spec.

    Args:
        reward: the reward from `_step`; None if it is missing.
        key: its key.
        expected: the shape of the spec; -1 for any size.
        must_match: whether the shape must be `expected`, without more batch dimensions before it.

    Raises:
        SpaceError: if it is missing or has another number of elements.
    """
    if reward is None:
        raise SpaceError(f"Expected _step to return {key!r}, as reward_spec says, got none. Add it to the result.")
    if not must_match or reward.shape == expected or -1 in expected:
        return reward
    if reward.numel() != expected.numel():
        raise SpaceError(f"Expected {key!r} of shape {tuple(expected)}, got {tuple(reward.shape)}.")
    return reward.reshape(expected)
