"""Transforms of rewards: scale, clip, make binary, subtract from a target. They must keep nothing between steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import SpaceError
from ...specs import Binary, Bounded, TensorSpec
from ..keys import Key, join_key, split_key
from .base import StatelessTransform
from .bounds import Numbers, clip_bounds_of, clip_to, map_bounds
from .counters import RewardTracker
from .elementwise import as_number
from .part import Keys
from .spec_probe import infer_spec

__all__ = ["BinarizeReward", "LineariseRewards", "RewardClipping", "RewardScaling", "TargetReturn"]


class RewardTransform(StatelessTransform):
    """The base of transforms of rewards. The default `in_keys` are all rewards of the environment.

    For stored data the default is "reward". The outputs of resets have no rewards and are not changed.

    Args:
        in_keys, out_keys: as in `Transform`.
    """

    elementwise = True
    _takes_parts = True
    _kinds = ("reward",)

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None):
        super().__init__(in_keys, out_keys)

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return ["reward"] if parent is None else list(parent.reward_keys)


class RewardScaling(RewardTransform):
    """Scales rewards: `reward * scale + loc`, or `(reward - loc) / scale` with `standard_normal`.

    Args:
        loc, scale: numbers or tensors that broadcast with the rewards.
        in_keys, out_keys: as in `RewardTransform`.
        standard_normal: whether to return `(reward - loc) / scale`, which has mean 0 and standard deviation 1 if `loc`
            and `scale` are the mean and standard deviation.

    >>> from tensordict import TensorDict
    >>> RewardScaling(loc=1.0, scale=2.0)(TensorDict({"reward": torch.tensor([3.0])}))["reward"]
    tensor([7.])
    """

    loc: Tensor
    scale: Tensor

    def __init__(
        self, loc: Numbers, scale: Numbers, in_keys: Keys = None, out_keys: Keys = None, standard_normal: bool = False
    ):
        super().__init__(in_keys, out_keys)
        self.standard_normal = standard_normal
        self.register_buffer("loc", as_number(loc))
        self.register_buffer("scale", as_number(scale))

    def _apply_transform(self, value: Tensor) -> Tensor:
        if self.standard_normal:
            return (value - self.loc) / self.scale
        return value * self.scale + self.loc

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return map_bounds(spec, self._apply_transform)


class RewardClipping(RewardTransform):
    """Clips rewards to [clamp_min, clamp_max], with the dtypes of `ClipTransform`.

    Args:
        clamp_min, clamp_max: the bounds; None for no bound.
        in_keys, out_keys: as in `RewardTransform`.
    """

    clamp_min: Tensor
    clamp_max: Tensor

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
    ):
        super().__init__(in_keys, out_keys)
        self.register_buffer("clamp_min", torch.as_tensor(-torch.inf if clamp_min is None else clamp_min))
        self.register_buffer("clamp_max", torch.as_tensor(torch.inf if clamp_max is None else clamp_max))

    def _apply_transform(self, value: Tensor) -> Tensor:
        return clip_to(value, self.clamp_min, self.clamp_max)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return clip_bounds_of(spec, self._apply_transform, self.clamp_min, self.clamp_max)


class BinarizeReward(RewardTransform):
    """Replaces rewards above zero by 1 and others by 0, as int8.

    Args:
        in_keys, out_keys: as in `RewardTransform`.
    """

    def _apply_transform(self, value: Tensor) -> Tensor:
        return (value > 0).to(torch.int8)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        return Binary(shape=spec.shape, device=spec.device)


class LineariseRewards(RewardTransform):
    """Replaces rewards of several objectives by their weighted sum.

    Args:
        in_keys: the keys of rewards `[*batch, objectives]`.
        out_keys: the keys of the sums `[*batch, 1]`; `in_keys` by default.
        weights: the weight of each objective, the same for all keys; all 1 by default.

    Raises:
        ValueError: `weights` does not have one dimension.
        SpaceError: on use, if there are not as many weights as objectives.

    >>> from tensordict import TensorDict
    >>> LineariseRewards(["reward"], weights=[1.0, -2.0])(TensorDict({"reward": torch.tensor([5.0, 1.0])}))["reward"]
    tensor([3.])
    """

    weights: Tensor | None

    def __init__(self, in_keys: Keys, out_keys: Keys = None, *, weights: Numbers | None = None):
        super().__init__(in_keys, out_keys)
        self.register_buffer("weights", as_number(weights))
        if self.weights is not None and self.weights.ndim != 1:
            raise ValueError(f"Expected weights with one dimension, got shape {tuple(self.weights.shape)}.")

    def _weighted(self, value: Tensor) -> Tensor:
        if self.weights is None:
            return value
        if value.shape[-1:] != self.weights.shape:
            raise SpaceError(
                f"Expected rewards with {len(self.weights)} objectives, as there are weights, got shape "
                f"{tuple(value.shape)}. Give a weight for each objective."
            )
        return value * self.weights

    def _apply_transform(self, value: Tensor) -> Tensor:
        return self._weighted(value).sum(-1, keepdim=True)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        result = infer_spec(spec, self._apply_transform)
        if not isinstance(spec, Bounded):
            return result
        low, high = (
            self._weighted(bound).nan_to_num(0, posinf=torch.inf, neginf=-torch.inf) for bound in (spec.low, spec.high)
        )
        low, high = (torch.minimum(low, high).sum(-1, keepdim=True), torch.maximum(low, high).sum(-1, keepdim=True))
        return Bounded(low, high, result.shape, dtype=result.dtype, device=spec.device)


class TargetReturn(RewardTracker):
    """Writes the return that a policy is to reach, as decision transformers need it.

    A value that the user sets in a root is used from there on.

    Args:
        target_return: the target at the start of each episode.
        mode: "reduce" subtracts each reward from the target, which then is the return still to be reached. "constant"
            keeps it.
        in_keys: the keys of rewards; all rewards of the environment by default.
        out_keys: the keys of the targets, with the shape and dtype of the rewards; by default "target_return" in the
            group of each reward.
        reset_key: the key of the mask of rows to reset; by default the mask of the reward's group.

    Raises:
        ValueError: `mode` is unknown, or two rewards have the same default target.

    >>> from vecrl.envs import GymEnv
    >>> GymEnv("CartPole-v1").append_transform(TargetReturn(10.0)).rollout(3)["target_return"].squeeze(-1)
    tensor([10.,  9.,  8.])
    """

    def __init__(
        self,
        target_return: float,
        mode: str = "reduce",
        in_keys: Keys = None,
        out_keys: Keys = None,
        reset_key: Key | None = None,
    ):
        if mode not in ("reduce", "constant"):
            raise ValueError(f'Expected mode to be "reduce" or "constant", got {mode!r}.')
        super().__init__(in_keys, out_keys, None if reset_key is None else [reset_key])
        self.target_return = float(target_return)
        self.mode = mode

    @property
    def _start_value(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.target_return

    def _default_out_keys(self) -> list[Key]:
        keys = [join_key(split_key(key)[0], "target_return") for key in self.in_keys]
        if len(set(keys)) < len(keys):
            raise ValueError(
                f"Expected out_keys for the rewards {self.in_keys}, of which several are in one group, got none. Give "
                f"a key for each."
            )
        return keys

    def _next_value(self, previous: Any, source: Tensor) -> Tensor:
        return previous - source if self.mode == "reduce" else previous
