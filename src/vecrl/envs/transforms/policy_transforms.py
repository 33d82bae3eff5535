"""`add_policy_transforms`: the transforms that a policy needs, such as the memory of a recurrent network.

This module must not know single networks: a module of a policy makes its own primer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ..base import EnvBase
from ..keys import key_path
from .counters import InitTracker

__all__ = ["add_policy_transforms"]


def add_policy_transforms(env: EnvBase, policy: object) -> EnvBase:
    """Adds the transforms that a policy needs and that the environment does not have yet.

    These are an `InitTracker`, and the result of the method `make_tensordict_primer` of each module in the policy that
    has this method, such as TorchRL's `LSTMModule` and `GRUModule`.

    Args:
        env: the environment.
        policy: the policy. For one that is no `nn.Module`, no transform is added.

    Returns:
        A `TransformedEnv`, or `env` itself if no transform is added.

    >>> from torch import nn
    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("CartPole-v1", policy=nn.Linear(4, 2))
    >>> env.reset()["is_init"]
    tensor([True])
    """
    if not isinstance(policy, nn.Module):
        return env
    if all(key_path(key)[-1] != "is_init" for key in env.observation_keys):
        env = env.append_transform(InitTracker())
    for primer in _primers(policy):
        if not _entries(primer) or not _entries(primer) <= set(env.observation_keys):
            env = env.append_transform(primer)
    return env


def _primers(policy: nn.Module) -> Iterator[Any]:
    for module in policy.modules():
        if callable(make_primer := getattr(module, "make_tensordict_primer", None)):
            yield make_primer()


def _entries(primer: Any) -> set[object]:
    """Returns the keys that a primer writes; none for another transform."""
    primers = getattr(primer, "primers", None)
    return set() if primers is None else set(primers.keys(True, True))
