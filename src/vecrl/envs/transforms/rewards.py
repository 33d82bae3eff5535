"""Transforms of rewards: scale, clip, make binary, subtract from a target, or penalize by a reference policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Binary, Bounded, Composite, TensorSpec, Unbounded
from ...validation import parse_number
from ..entries.keys import Key, join_key, split_key
from .base import StatelessTransform, Transform
from .counters import RewardTracker
from .elementwise import parse_floats, parse_optional_floats
from .keyed_module import Keys, SubmoduleAttribute
from .spec_hooks import Numbers, clip_bounds_of, clip_to, infer_spec, map_bounds, parse_numbers

__all__ = ["BinarizeReward", "KLRewardTransform", "LineariseRewards", "RewardClipping", "RewardScaling", "TargetReturn"]


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
        self.register_buffer("loc", parse_floats("loc", loc))
        self.register_buffer("scale", parse_floats("scale", scale))

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
        self.register_buffer("clamp_min", parse_numbers("clamp_min", -torch.inf if clamp_min is None else clamp_min))
        self.register_buffer("clamp_max", parse_numbers("clamp_max", torch.inf if clamp_max is None else clamp_max))
        if bool((self.clamp_min > self.clamp_max).any()):
            raise ValueError(f"Expected clamp_min <= clamp_max, got {clamp_min} and {clamp_max}.")

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
        self.register_buffer("weights", parse_optional_floats("weights", weights))
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
        self.target_return = parse_number("target_return", target_return)
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


class KLRewardTransform(Transform):
    """Subtracts from rewards how much more likely an action is for the policy that took it than for a reference model.

    With the log-probability under `log_prob_key` of the policy, and that of the reference model for the same
    observation and action, it writes `reward - coef * (log_prob - reference_log_prob)`. The difference, which is an
    estimate of the Kullback-Leibler divergence, is written as "kl_penalty" in the group of the reward, with the shape
    of the reward; 0 at resets. Stored data need the entries of the policy in the root and rewards under "next".

    Args:
        ref_model: the reference model: an actor of `tensordict.nn` with a method `log_prob`, as
            `ProbabilisticTensorDictModule` and `ProbabilisticTensorDictSequential`; or a module that writes
            log-probabilities under `log_prob_key`, such as those of the tokens of a response.
        ref_model_factory: returns the reference model; given instead of it.
        coef: the factor of the difference.
        in_keys: the keys of rewards; all rewards of the environment by default, or "reward".
        out_keys: the keys of the new rewards; `in_keys` by default.
        log_prob_key: the key of the log-probability, `[*batch]`, or `[*batch, tokens]` if rewards are
            `[*batch, tokens, 1]`. Actors of tensordict write "sample_log_prob" or "action_log_prob".
        device: the device of the reference model; that of its parameters by default.
        add_to_reward: whether to change rewards; otherwise only "kl_penalty" is written.
        requires_grad: whether gradients flow through the reference model.

    Raises:
        ValueError: not exactly one of `ref_model` and `ref_model_factory` is given; on use, if shapes of the
            log-probabilities and rewards do not fit.
        KeyError: on use, if the log-probability or a reward is missing.

    >>> from tensordict import TensorDict
    >>> from tensordict.nn import ProbabilisticTensorDictModule
    >>> from torch.distributions import Normal
    >>> reference = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal)
    >>> root = {"loc": torch.zeros(1), "scale": torch.ones(1), "action": torch.zeros(1), "log_prob": torch.zeros(1)}
    >>> steps = TensorDict({**root, "next": {"reward": torch.ones(1)}})
    >>> KLRewardTransform(reference, log_prob_key="log_prob")(steps)["next", "reward"]
    tensor([0.0811])
    """

    preserves_done = True
    ref_model = SubmoduleAttribute[TensorDictModuleBase]()

    def __init__(
        self,
        ref_model: TensorDictModuleBase | None = None,
        *,
        ref_model_factory: Callable[[], TensorDictModuleBase] | None = None,
        coef: float = 1.0,
        in_keys: Keys = None,
        out_keys: Keys = None,
        log_prob_key: Key = ("log_probs", "full"),
        device: Any = None,
        add_to_reward: bool = True,
        requires_grad: bool = False,
    ):
        if (ref_model is None) == (ref_model_factory is None):
            raise ValueError("Expected either ref_model or ref_model_factory, got both or none. Give one of them.")
        super().__init__(in_keys, out_keys)
        model: Any = ref_model if ref_model_factory is None else ref_model_factory()
        self.ref_model = model if device is None else model.to(device)
        self.coef = coef
        self.log_prob_key = log_prob_key
        self.add_to_reward = add_to_reward
        self.requires_grad = requires_grad

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return ["reward"] if parent is None else list(parent.reward_keys)

    @staticmethod
    def _penalty_key(reward_key: Key) -> Key:
        return join_key(split_key(reward_key)[0], "kl_penalty")

    def _difference(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the log-probability of the policy minus that of the reference model."""
        log_prob = tensordict.get(self.log_prob_key, None)
        if log_prob is None:
            raise self._missing(self.log_prob_key, tensordict)
        parameter = next(self.ref_model.parameters(), None)
        root = tensordict.exclude("next", self.log_prob_key)
        root = root if parameter is None else root.to(parameter.device)
        method: Any = getattr(self.ref_model, "log_prob", None)
        with torch.set_grad_enabled(self.requires_grad and torch.is_grad_enabled()):
            reference = self.ref_model(root).get(self.log_prob_key) if method is None else method(root)
        return log_prob - reference.to(log_prob.device)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        difference = self._difference(tensordict)
        for key, out_key in self._key_pairs:
            reward = next_tensordict.get(key, None)
            if reward is None:
                raise self._missing(key, next_tensordict)
            penalty = difference[(..., *[None] * (reward.ndim - difference.ndim))]
            if penalty.ndim > reward.ndim or torch.broadcast_shapes(penalty.shape, reward.shape) != reward.shape:
                raise ValueError(
                    f"Expected log-probabilities {self.log_prob_key!r} that broadcast with the reward {key!r} of shape "
                    f"{tuple(reward.shape)}, got shape {tuple(difference.shape)}. Sum them over the other dimensions."
                )
            if self.add_to_reward:
                next_tensordict.set(out_key, reward - self.coef * penalty)
            next_tensordict.set(self._penalty_key(key), penalty.expand_as(reward).clone())
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self._require_parent()
        for key in self.in_keys:
            tensordict_reset.set(self._penalty_key(key), self._penalty_spec(parent.full_reward_spec[key]).zero())
        return tensordict_reset

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the rewards under "next" of stored data in place and returns the data."""
        next_td = tensordict.get("next", None)
        if next_td is None:
            raise self._missing("next", tensordict)
        return tensordict.set("next", self._step(tensordict, next_td))

    # -- specs

    @staticmethod
    def _penalty_spec(spec: Any) -> Any:
        return Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Adds the specs of the penalties, and removes the bounds of rewards."""
        rewards = output_spec["full_reward_spec"]
        specs = [(key, out_key, self._penalty_spec(rewards[key])) for key, out_key in self._key_pairs]
        for key, out_key, spec in specs:
            if self.add_to_reward:
                rewards[out_key] = spec
            output_spec["full_observation_spec"][self._penalty_key(key)] = spec.clone()
        return output_spec
