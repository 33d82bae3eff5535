"""`KLRewardTransform`: a penalty for policies that leave a reference policy.

It must not know how policies are trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from ...specs import Composite, Unbounded
from ..keys import Key, join_key, split_key
from .base import Transform
from .part import Keys, SubmoduleAttribute

__all__ = ["KLRewardTransform"]


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
