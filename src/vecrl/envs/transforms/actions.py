"""Transforms of actions between the form that policies choose and the form that the environment takes.

In an environment they change inputs only. On stored data, `forward` maps actions of the environment to the form of the
policy. `ActionMask` restricts random actions to those that the environment allows in each row, and `MeanActionSelector`
is for policies over Gaussian beliefs about states, as of PILCO.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...errors import SpaceError
from ...specs import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded
from ..entries.keys import Key, join_key, parse_key, split_key
from ..entries.row_masks import RowMasks
from .base import StatelessTransform, Transform
from .elementwise import parse_optional_floats
from .keyed_module import Keys
from .spec_hooks import parse_numbers

__all__ = ["ActionDiscretizer", "ActionMask", "ActionScaling", "DiscreteActionProjection", "MeanActionSelector"]


class ActionTransform(Transform):
    """The base of transforms of actions. Outputs of the environment are not changed.

    Args:
        in_keys_inv: the keys of actions of the environment.
        out_keys_inv: the keys of the actions that the user sets; `in_keys_inv` by default.
        in_keys, out_keys: the keys that `forward` reads and writes in stored data; by default `in_keys_inv` and
            `out_keys_inv`.
    """

    preserves_done = True
    _checked_keys = ()  # `transform_action_spec` accepts actions only
    _takes_records = True

    def __init__(
        self, in_keys_inv: Keys = "action", out_keys_inv: Keys = None, in_keys: Keys = None, out_keys: Keys = None
    ):
        if in_keys is None and out_keys is None:
            out_keys = out_keys_inv
        super().__init__(in_keys_inv if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def _forward_spec(self, specs: Any) -> Any:
        return specs

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Replaces the specs of the actions. Raises a SpaceError if there is no action at one of `in_keys_inv`."""
        for key in self.in_keys_inv:
            if key not in action_spec.keys(include_nested=True, leaves_only=True):
                raise SpaceError(
                    f"Expected {type(self).__name__} to find an action at {key!r}, got only actions at "
                    f"{list(action_spec.keys(include_nested=True, leaves_only=True))}. Give the key of an action."
                )
        return super().transform_action_spec(action_spec)

    def _action_spec(self, key: Key) -> TensorSpec:
        """Returns the spec of an action of the environment."""
        return self._require_parent().full_action_spec[key]

    def _finite_bounds(self, spec: TensorSpec) -> tuple[Tensor, Tensor]:
        """Returns the bounds of an action. Raises a SpaceError unless they are floating-point, finite and differ.

        The largest number of the dtype is no bound: spaces without a bound are often written so.
        """
        if isinstance(spec, Bounded) and spec.dtype is not None and spec.dtype.is_floating_point:
            low, high, largest = spec.low, spec.high, torch.finfo(spec.dtype).max
            if bool(((low > -largest) & (high < largest) & (low < high)).all()):
                return low, high
        raise SpaceError(
            f"Expected {type(self).__name__} to get a floating-point action with finite bounds, low < high, got "
            f"{spec!r}. Give the environment a Bounded action spec; the largest number of a dtype is no bound."
        )


class ActionDiscretizer(ActionTransform):
    """Lets a policy choose among intervals of a continuous action, for algorithms with discrete actions such as DQN.

    Each element of the action has its own intervals of equal width between its bounds. If `out_action_key` is another
    key, steps and rollouts also have the continuous action that the environment got, at `action_key`; `step_mdp` drops
    both.

    For other positions of actions within their bounds, derive a class and override `custom_arange`.

    Args:
        num_intervals: the number of intervals of each element: an int, or a tensor `[d]` of one number per element of
            the last dimension, of size d.
        action_key: the key of the continuous action `[*batch, ..., d]` or `[*batch]`.
        out_action_key: the key of the discrete action; `action_key` by default.
        sampling: which value of the interval is taken, a `SamplingStrategy`; `MEDIAN` by default.
        categorical: whether the discrete action holds indices, int64 with the shape of the continuous action
            (`MultiCategorical`, or `Categorical` for `[*batch]`). Otherwise it holds one-hot rows, bool, concatenated
            along the last dimension (`MultiOneHot` or `OneHot`).

    Raises:
        ValueError: a number of intervals is less than 1.
        SpaceError: on use, if the action has no finite bounds, or `num_intervals` does not fit it.
        RuntimeError: on use, if there is no environment, or an index is out of range.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("Pendulum-v1").append_transform(ActionDiscretizer(5))
    >>> env.action_spec.cardinality(), env.rollout(3)["action"].dtype
    (5, torch.int64)
    """

    class SamplingStrategy(IntEnum):
        """Which value of an interval is taken: the middle, the lower or the upper bound, or a uniform sample."""

        MEDIAN = 0
        LOW = 1
        HIGH = 2
        RANDOM = 3

    def __init__(
        self,
        num_intervals: int | Tensor,
        action_key: Key = "action",
        out_action_key: Key | None = None,
        sampling: Any = None,
        categorical: bool = True,
    ):
        numbers = parse_numbers("num_intervals", num_intervals)
        if numbers.is_floating_point() or numbers.ndim > 1 or bool((numbers < 1).any()):
            raise ValueError(
                f"Expected num_intervals to be an int of 1 or more, or a tensor of such ints with one dimension, got "
                f"{num_intervals!r}."
            )
        super().__init__([action_key], None if out_action_key is None else [out_action_key])
        self.num_intervals = num_intervals
        self.sampling = self.SamplingStrategy(self.SamplingStrategy.MEDIAN if sampling is None else sampling)
        self.categorical = categorical

    def custom_arange(self, nint: int, device: torch.device | None) -> Tensor:
        """Returns the action of each interval for bounds of 0 and 1.

        Args:
            nint: the number of intervals.
            device: the device of the result.

        Returns:
            `[nint]` float. With `RANDOM`, up to `1 / nint` is added to it at each step.
        """
        shift = {self.SamplingStrategy.MEDIAN: 0.5, self.SamplingStrategy.HIGH: 1.0}.get(self.sampling, 0.0)
        return (torch.arange(nint, device=device) + shift) / nint

    @cached_property
    def _discrete_spec(self) -> Any:
        """The spec of the discrete action."""
        return self._inv_spec(self._action_spec(self.in_keys_inv[0]))

    def _counts(self, spec: TensorSpec) -> list[int]:
        """Returns the number of intervals of each element of the last dimension; a single one for `[*batch]`."""
        size = 1 if spec.ndim == self._batch_dims else spec.shape[-1]
        try:
            return torch.as_tensor(self.num_intervals).expand(size).tolist()
        except RuntimeError as error:
            raise SpaceError(
                f"Expected num_intervals to be an int or a tensor of {size} ints, one per element of the action, got "
                f"{self.num_intervals!r}."
            ) from error

    @cached_property
    def _action_table(self) -> tuple[Tensor, Tensor, Tensor]:
        """The actions and the widths of all intervals, `[*shape of the action, max intervals]`, and the upper bounds.

        Elements with fewer intervals are filled with NaN.
        """
        spec = self._action_spec(self.in_keys_inv[0])
        low, high = (bound.unsqueeze(-1) for bound in self._finite_bounds(spec))
        device, counts = low.device, self._counts(spec)
        positions = torch.full((len(counts), max(counts)), torch.nan, device=device, dtype=low.dtype)
        for row, count in zip(positions, counts, strict=True):
            row[:count] = self.custom_arange(count, device)
        if low.ndim == self._batch_dims + 1:
            positions = positions[0]
        widths = (high - low) / torch.tensor(counts, device=device).reshape(positions.shape[:-1]).unsqueeze(-1)
        actions = (low + (high - low) * positions).clamp(low, high)
        return actions, widths.squeeze(-1), high.squeeze(-1)

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        index = self._discrete_spec.to_categorical(value).long()
        actions, widths, high = self._action_table
        action = actions.expand(*index.shape, actions.shape[-1]).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        if self.sampling == self.SamplingStrategy.RANDOM:
            action = torch.minimum(action + torch.rand_like(action) * widths, high)
        return action

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns stored data unchanged: several actions have the same interval, so there is no inverse."""
        return tensordict

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        self._finite_bounds(spec)
        counts = self._counts(spec)
        if spec.ndim == self._batch_dims:
            discrete = Categorical(counts[0], spec.shape, spec.device)
        else:
            discrete = MultiCategorical(counts, spec.shape, spec.device)
        return discrete if self.categorical else discrete.to_one_hot_spec()

    def __repr__(self) -> str:
        return (
            f"ActionDiscretizer(num_intervals={self.num_intervals}, action_key={self.in_keys_inv[0]!r}, "
            f"out_action_key={self.out_keys_inv[0]!r}, sampling={self.sampling!r}, categorical={self.categorical})"
        )


class ActionScaling(ActionTransform):
    """Lets a policy choose actions in [-1, 1], or in [0, 1], which are mapped to the bounds of the environment.

    The environment gets `action * scale + loc`, by default with `loc = (high + low) / 2` and `scale = (high - low) / 2`
    from the bounds of its action. `forward` maps stored actions of the environment back, by `(action - loc) / scale`.

    Args:
        in_keys_inv: the key of the action of the environment, one key; "action" by default.
        out_keys_inv: the key of the action that the user sets; `in_keys_inv` by default.
        in_keys, out_keys: the keys that `forward` reads and writes; by default `in_keys_inv` and `out_keys_inv`.
        loc, scale: numbers or tensors that broadcast with the action, used instead of the bounds. Then the action of
            the environment needs no bounds.
        standard_normal: whether the user sets actions in [-1, 1]. Otherwise these are in [0, 1], of which 0 is mapped
            to `loc - scale` and 1 to `loc + scale`.

    Raises:
        ValueError: there is more than one key, only one of `loc` and `scale`, or a scale of 0.
        SpaceError: on use, if there are no `loc` and `scale`, and the action has no finite bounds.
        RuntimeError: on use, if there are neither `loc` and `scale` nor an environment.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("Pendulum-v1").append_transform(ActionScaling())
    >>> float(env.base_env.action_spec.high), float(env.action_spec.high)
    (2.0, 1.0)
    >>> from tensordict import TensorDict
    >>> ActionScaling(loc=1.0, scale=2.0)(TensorDict(action=torch.tensor([3.0])))["action"]
    tensor([1.])
    """

    def __init__(
        self,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
        *,
        loc: Any = None,
        scale: Any = None,
        standard_normal: bool = True,
    ):
        if (loc is None) != (scale is None):
            raise ValueError(f"Expected loc and scale, or neither, got loc={loc!r} and scale={scale!r}.")
        if scale is not None and not bool(torch.as_tensor(scale).all()):
            raise ValueError(f"Expected a scale without zeros, by which actions are divided, got {scale!r}.")
        super().__init__("action" if in_keys_inv is None else in_keys_inv, out_keys_inv, in_keys, out_keys)
        if len(self.in_keys_inv) != 1 or len(self.in_keys) != 1:
            raise ValueError(
                f"Expected ActionScaling to have one key, got in_keys_inv={self.in_keys_inv} and in_keys="
                f"{self.in_keys}. Use one ActionScaling per action."
            )
        self.standard_normal = standard_normal
        self._buffers.update(loc=parse_optional_floats("loc", loc), scale=parse_optional_floats("scale", scale))

    @property
    def loc(self) -> Tensor | None:
        """The number that the environment gets for 0, from the bounds in an environment; None if there is neither."""
        return self._buffers["loc"] if self.parent is None else self._loc_and_scale[0]

    @property
    def scale(self) -> Tensor | None:
        """The factor of actions, from the bounds in an environment; None if there is neither."""
        return self._buffers["scale"] if self.parent is None else self._loc_and_scale[1]

    @cached_property
    def _loc_and_scale(self) -> tuple[Tensor, Tensor]:
        loc, scale = self._buffers["loc"], self._buffers["scale"]
        if loc is not None and scale is not None:
            return loc, scale
        if self.parent is None:
            raise RuntimeError(
                "Expected ActionScaling outside an environment to have loc and scale, got neither. Give both."
            )
        low, high = self._finite_bounds(self._action_spec(self.in_keys_inv[0]))
        return (high + low) / 2, (high - low) / 2

    def _apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale
        value = (value - loc) / scale
        return value if self.standard_normal else (value + 1) / 2

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale
        return (value if self.standard_normal else value * 2 - 1) * scale + loc

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        if self._buffers["loc"] is None:
            self._finite_bounds(spec)
        return Bounded(-1.0 if self.standard_normal else 0.0, 1.0, spec.shape, dtype=spec.dtype, device=spec.device)


class DiscreteActionProjection(ActionTransform):
    """Lets a policy with `max_actions` actions act in an environment with fewer, `num_actions_effective`.

    An action that the environment does not have is replaced by a random one, uniformly. `forward` maps stored actions
    of the environment to those of the policy. So one policy can act in environments with different numbers of actions.

    Actions are one-hot rows. In an environment with `Categorical` actions they are indices instead. (TorchRL passes
    one-hot rows to such an environment.)

    Args:
        num_actions_effective: the number of actions of the environment, 1 or more.
        max_actions: the number of actions of the policy, at least `num_actions_effective`.
        action_key: the key of the action, `[*batch, actions]`; `[*batch]` of indices.
        include_forward: whether `forward` maps stored actions; otherwise it changes nothing.

    Raises:
        ValueError: not `1 <= num_actions_effective <= max_actions`.
        SpaceError: on use, if the environment has another number of actions.

    >>> from tensordict import TensorDict
    >>> projection = DiscreteActionProjection(num_actions_effective=2, max_actions=4)
    >>> projection.inv(TensorDict(action=torch.tensor([0, 1, 0, 0])))["action"]
    tensor([0, 1])
    >>> projection(TensorDict(action=torch.tensor([0, 1])))["action"]
    tensor([0, 1, 0, 0])
    """

    def __init__(
        self, num_actions_effective: int, max_actions: int, action_key: Key = "action", include_forward: bool = True
    ):
        if not 1 <= num_actions_effective <= max_actions:
            raise ValueError(
                f"Expected 1 <= num_actions_effective <= max_actions, got {num_actions_effective} and {max_actions}."
            )
        super().__init__([action_key])
        self.num_actions_effective = num_actions_effective
        self.max_actions = max_actions
        self.include_forward = include_forward

    @cached_property
    def _has_indices(self) -> bool:
        """Whether actions are indices instead of one-hot rows."""
        return self.parent is not None and isinstance(self._action_spec(self.in_keys_inv[0]), Categorical)

    def _apply_transform(self, value: Tensor) -> Tensor:
        padding = self.max_actions - value.shape[-1]
        return value if self._has_indices or padding <= 0 else torch.nn.functional.pad(value, (0, padding))

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        number = self.num_actions_effective
        index = value if self._has_indices else value.long().argmax(-1)
        index = torch.where(index < number, index, torch.randint_like(index, number))
        return index if self._has_indices else torch.nn.functional.one_hot(index, number).to(value.dtype)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Maps stored actions of the environment to those of the policy in place, and returns the data."""
        return super().forward(tensordict) if self.include_forward else tensordict

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        if not isinstance(spec, Categorical | OneHot) or spec.n != self.num_actions_effective:
            raise SpaceError(
                f"Expected an environment with {self.num_actions_effective} actions, as num_actions_effective says, of "
                f"Categorical or OneHot, got {spec!r}. Give its number of actions."
            )
        assert spec.dtype is not None
        shape = spec.shape if isinstance(spec, Categorical) else (*spec.shape[:-1], self.max_actions)
        return type(spec)(self.max_actions, shape, spec.device, spec.dtype)


_MASKABLE = (Categorical, OneHot, MultiOneHot, MultiCategorical)


class ActionMask(Transform):
    """Makes `rand_action` sample only actions that the mask in its input TensorDict allows.

    The last mask is also set in the action spec, for policies that sample from it. In a batch of environments, append
    the transform to the batch and not to each environment.

    Args:
        action_key: the key of discrete actions (`Categorical`, `OneHot`, `MultiCategorical` or `MultiOneHot`).
        mask_key: the key of the masks, `[*batch, ..., options]` bool, as the spec's `update_mask` takes them. If an
            action is one of all combinations of several choices, `[*batch, options 1, options 2, …]`.

    Raises:
        SpaceError: on use, if the actions have another spec.
        RuntimeError: on use outside an environment.

    >>> from tensordict import TensorDict
    >>> import torch
    >>> from vecrl.envs import EnvBase
    >>> from vecrl.specs import Binary, Unbounded
    >>> class Even(EnvBase):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.action_spec = Categorical(4)
    ...         self.observation_spec = Composite(action_mask=Binary(4, (4,), dtype=torch.bool))
    ...         self.reward_spec = Unbounded((1,))
    ...     def _reset(self, tensordict=None):
    ...         return TensorDict({"action_mask": torch.tensor([True, False, True, False])})
    ...     def _step(self, tensordict):
    ...         return self._reset().update({"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})
    ...     def _set_seed(self, seed): ...
    >>> Even().append_transform(ActionMask()).rollout(20)["action"].remainder(2).any()
    tensor(False)
    """

    preserves_done = True
    _takes_records = True

    def __init__(self, action_key: Key = "action", mask_key: Key = "action_mask"):
        super().__init__()
        self.action_key = parse_key("action_key", action_key)
        self.mask_key = parse_key("mask_key", mask_key)
        self._masked_spec: Any = None

    def _mask_action_spec(self, tensordict: TensorDictBase, specs: Composite) -> Composite:
        """Returns the action specs with the masks in `tensordict` applied."""
        mask: Tensor | None = tensordict.get(self.mask_key, None)
        spec = specs.get(self.action_key, None)
        if mask is None or spec is None:
            return specs
        batch = tensordict.batch_size
        if len(specs.shape) < len(batch):  # an environment that accepts any batch size
            specs = specs.expand(*batch, *specs.shape).clone()
            spec = specs[self.action_key]
        spec.update_mask(_one_flag_per_option(mask, spec))
        return specs

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        self._update_mask(tensordict, next_tensordict, RowMasks({} if mask is None else {(): mask}, [()]))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._update_mask(tensordict, tensordict_reset, self._reset_masks(tensordict))
        return tensordict_reset

    def _update_mask(self, previous: TensorDictBase, current: TensorDictBase, masks: RowMasks) -> None:
        """Sets the masks of `current`, in the rows of `masks`, in the action spec."""
        mask: Tensor | None = current.get(self.mask_key, None)
        spec = self._masked_spec
        if mask is None or spec is None or current.batch_size != self._require_parent().batch_size:
            return
        if masks and previous.get(self.mask_key, None) is not None:
            mask = masks.select(current.select(self.mask_key), previous).get(self.mask_key)
        spec.update_mask(_one_flag_per_option(mask, spec))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns stored data unchanged. Raises a RuntimeError outside an environment."""
        self._require_parent()
        return tensordict

    def _leaf_keys(self, kind: str) -> tuple[Key, Key]:
        return (self.action_key, self.action_key) if kind == "action" else super()._leaf_keys(kind)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Checks the action spec and returns it. Later steps and resets set its masks."""
        spec = action_spec[self.action_key]
        if not isinstance(spec, _MASKABLE):
            names = ", ".join(kind.__name__ for kind in _MASKABLE)
            raise SpaceError(f"Expected actions of {names} at {self.action_key!r}, got {spec!r}.")
        parent = self.parent
        if parent is not None and self.mask_key not in parent.full_observation_spec:
            raise SpaceError(
                f"Expected a mask among the observations at {self.mask_key!r}, got none. Give another mask_key."
            )
        self._masked_spec = spec
        return action_spec


def _one_flag_per_option(mask: Any, spec: Any) -> Tensor:
    """Flattens a mask of combinations, `[..., n_1, n_2, …]`, for a spec of one choice among all combinations."""
    if not isinstance(spec, Categorical | OneHot):
        return mask
    dims = spec.ndim - isinstance(spec, OneHot)  # of the mask, before those of the options
    is_joint = mask.ndim > dims + 1 and mask.shape[dims:].numel() == spec.n
    return mask.flatten(dims) if is_joint else mask


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
