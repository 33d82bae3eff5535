"""Transforms for policies over Gaussian beliefs about states, as of PILCO. They must not know how beliefs change."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Composite, Unbounded
from ..keys import Key, join_key, split_key
from .base import StatelessTransform

__all__ = ["MeanActionSelector"]


def _below(key: Key, name: str) -> Key:
    """Returns the key of `name` in the group at `key`."""
    prefix, last = split_key(key)
    return join_key((*prefix, last), name)


class MeanActionSelector(StatelessTransform):
    """Lets a policy over Gaussian beliefs act in an environment that has neither beliefs nor distributions of actions.

    The observation becomes a belief without uncertainty: "mean" `[*batch, d]` is the observation, and the covariance
    "var" `[*batch, d, d]` is zero. Of the distribution of actions that the policy writes, the environment gets the
    "mean". See Deisenroth and Rasmussen, 2011, "PILCO: A model-based and data-efficient approach to policy search".

    The action spec has only the mean, so random actions and rollouts without a policy work. (TorchRL keeps the spec of
    the action itself, with which they fail.)

    Args:
        observation_key: the key of the observation, which becomes the key of the belief.
        action_key: the key of the action, which becomes the key of its distribution.

    Raises:
        SpaceError: on use, if there is no such observation or action, or the observation is not a vector of floats.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("Pendulum-v1").append_transform(MeanActionSelector())
    >>> rollout = env.rollout(5)
    >>> rollout["observation", "mean"].shape, rollout["observation", "var"].shape, rollout["action", "mean"].shape
    (torch.Size([5, 3]), torch.Size([5, 3, 3]), torch.Size([5, 1]))
    """

    _checked_keys = ()  # the methods of specs accept vectors and actions only

    def __init__(self, observation_key: Key = "observation", action_key: Key = "action"):
        beliefs = [_below(observation_key, "mean"), _below(observation_key, "var")]
        super().__init__([observation_key], beliefs, [action_key], [_below(action_key, "mean")])

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        return keys  # an observation has two out_keys

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        key = self.in_keys[0]
        mean = next_tensordict.get(key, None)
        if isinstance(mean, Tensor):
            var = torch.zeros(*mean.shape, mean.shape[-1], dtype=mean.dtype, device=mean.device)
            next_tensordict.set(key, TensorDict({"mean": mean, "var": var}, next_tensordict.batch_size))
        elif not self._allow_missing:
            raise self._missing(key, next_tensordict)
        return next_tensordict

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        return value

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Replaces the spec of the observation by those of its mean and its covariance."""
        [key] = self.in_keys
        spec = observation_spec.get(key, None)
        dtype = None if spec is None else spec.dtype
        if spec is None or spec.ndim != observation_spec.ndim + 1 or dtype is None or not dtype.is_floating_point:
            raise SpaceError(
                f"Expected an observation at {key!r} that is a vector of floats, got {spec!r}. Give its key."
            )
        del observation_spec[key]
        observation_spec[self.out_keys[0]] = spec
        var = Unbounded((*spec.shape, spec.shape[-1]), dtype=dtype, device=spec.device)
        observation_spec[self.out_keys[1]] = var
        return observation_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Replaces the spec of the action by that of the mean."""
        if action_spec.get(self.in_keys_inv[0], None) is None:
            keys = list(action_spec.keys(True, True))
            raise SpaceError(f"Expected an action at {self.in_keys_inv[0]!r}, got only {keys}. Give its key.")
        return super().transform_action_spec(action_spec)
