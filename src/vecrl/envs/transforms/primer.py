"""Adds entries that an environment does not have, such as the state of a recurrent policy or noise.

`add_policy_transforms` adds the transforms that a policy needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from ...specs import Composite, TensorSpec, Unbounded
from ..base import EnvBase
from ..entries.keys import Key, key_path
from ..entries.row_masks import RowMasks
from .base import Transform
from .counters import InitTracker

__all__ = ["TensorDictPrimer", "gSDENoise"]


class TensorDictPrimer(Transform):
    """Sets entries at every reset, and copies them from step to step.

    After a step an entry has the value that a policy set under "next", or else its previous value.

    Args:
        primers: specs by key; they can be given as keywords instead. Specs without the batch size of the environment
            are expanded to it; a `Composite` of that shape has it already.
        random: whether to sample values from the specs.
        default_value: the value if not `random`: a number, a tensor, a function that returns one, or a mapping from
            keys to these; 0 by default.
        reset_key: the key of the mask of rows to set; by default the mask of the group of each entry.
        expand_specs: False if the specs already have the batch size.
        single_default_value: whether `default_value` is a function of `reset`, a mask `[*batch]` bool, that returns a
            TensorDict with all entries, with one row per row that is reset.
        call_before_env_reset: whether to set the entries before the environment is reset, so that it can read them.

    Raises:
        ValueError: both `random` and a `default_value` other than 0 are given, both `primers` and keywords, or keys do
            not match.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.specs import Unbounded
    >>> env = GymEnv("CartPole-v1").append_transform(TensorDictPrimer(hidden=Unbounded((2,)), default_value=1.0))
    >>> env.rollout(3)["next", "hidden"].shape
    torch.Size([3, 2])
    """

    _takes_records = True

    @property
    def _accepts_records(self) -> bool:
        return not self.call_before_env_reset and super()._accepts_records

    @property
    def preserves_done(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether ended rows may be reset before the entries are set."""
        return not self.call_before_env_reset

    def __init__(
        self,
        primers: Mapping[Key, TensorSpec] | Composite | None = None,
        random: bool | None = None,
        default_value: Any = None,
        reset_key: Key | None = None,
        expand_specs: bool | None = None,
        single_default_value: bool = False,
        call_before_env_reset: bool = False,
        **kwargs: TensorSpec,
    ):
        if primers is not None and kwargs:
            raise ValueError(f"Expected primers or keywords, got both, with keywords {sorted(kwargs)}. Give only one.")
        if random and default_value is not None and not _is_zero(default_value):
            raise ValueError(f"Expected random or default_value, got both, {default_value!r}. Give only one.")
        specs: Any = kwargs if primers is None else primers
        specs = specs if isinstance(specs, Composite) else Composite(specs)
        keys = set(specs.keys(include_nested=True, leaves_only=True))
        if isinstance(default_value, Mapping) and set(default_value) != keys:
            raise ValueError(f"Expected default_value to have the keys {keys}, got {set(default_value)}.")
        is_text = isinstance(default_value, str | bytes)
        if is_text and all(specs[key].dtype is not None for key in keys):  # and no data without a dtype
            raise ValueError(f"Expected default_value to be a number or a tensor, got {default_value!r:.80}.")
        super().__init__()
        self._raw_primers = specs
        self.random = bool(random)
        self.default_value: Any = 0.0 if default_value is None else default_value
        self.reset_key = reset_key
        self.expand_specs = expand_specs
        self.single_default_value = single_default_value
        self.call_before_env_reset = call_before_env_reset

    @cached_property
    def primers(self) -> Composite:
        """The specs, with the batch size of the environment if the transform has a parent."""
        parent = self.parent
        if parent is None:
            return self._raw_primers
        specs = self._raw_primers if parent.device is None else self._raw_primers.to(parent.device)
        if specs.shape == parent.batch_size:
            return specs
        if self.expand_specs is False:
            return Composite(dict(specs.items()), shape=parent.batch_size, device=specs.device)
        return specs.expand(*parent.batch_size, *specs.shape)

    # -- values

    def _make_values(self, batch: torch.Size, mask: Tensor | None = None) -> TensorDictBase:
        """Returns values of batch size `batch`; only those in rows of `mask` are used."""
        specs: Any = self.primers
        if self.single_default_value and callable(self.default_value):
            return self._single_default(batch, mask)
        has_batch_shape = all(spec.shape[: len(batch)] == batch for spec in specs.values(True, True))
        is_batched = specs.shape[: len(batch)] == batch or (
            has_batch_shape and self.parent is None and not self.expand_specs
        )
        batch_shape = torch.Size(()) if is_batched else batch
        values = TensorDict({}, batch, device=specs.device)
        for key, spec in specs.items(include_nested=True, leaves_only=True):
            values.set(key, self._value(key, spec, batch_shape))
        return values

    def _value(self, key: Key, spec: TensorSpec, batch_shape: torch.Size) -> Any:
        if self.random or spec.dtype is None:
            return spec.rand(batch_shape)
        value = self.default_value[key] if isinstance(self.default_value, Mapping) else self.default_value
        value = torch.as_tensor(value() if callable(value) else value, dtype=spec.dtype, device=spec.device)
        return value.expand([*batch_shape, *spec.shape]).clone()

    def _single_default(self, batch: torch.Size, mask: Tensor | None) -> TensorDictBase:
        row_mask = torch.ones(batch, dtype=torch.bool) if mask is None else mask.reshape(*batch, -1).any(-1)
        default_td = self.default_value(reset=row_mask)
        if default_td.batch_size == batch:
            return default_td
        values: Any = self.primers.zero(() if self.primers.shape == batch else batch)
        values[row_mask] = default_td
        return values

    def _mask(self, tensordict: TensorDictBase) -> RowMasks:
        """Returns the masks of the rows to set."""
        if self.reset_key is None:
            return self._reset_masks(tensordict)
        mask = tensordict.get(self.reset_key, None)
        return RowMasks({} if mask is None else {(): mask}, [()])

    def _with_primers(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns new values for the rows to set, and the values of `tensordict` for others."""
        masks = self._mask(tensordict)
        values = self._make_values(tensordict.batch_size, masks.for_key("done"))
        return masks.select(values if tensordict.device is None else values.to(tensordict.device), tensordict)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        if not self.call_before_env_reset:
            return tensordict
        parent = self._require_parent()
        reset_td = TensorDict({}, parent.batch_size, device=parent.device) if tensordict is None else tensordict.copy()
        return reset_td.update(self._with_primers(reset_td))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        keys = self.primers.keys(include_nested=True, leaves_only=True)
        return tensordict_reset.update(
            tensordict.select(*keys) if self.call_before_env_reset else self._with_primers(tensordict)
        )

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        policy_next_td = tensordict.get("next", None)
        values: Any = None
        for key in self.primers.keys(include_nested=True, leaves_only=True):
            value = next_tensordict.get(key, None)
            if value is None and policy_next_td is not None:
                value = policy_next_td.get(key, None)
            if value is None:
                value = tensordict.get(key, None)
            if value is None:
                values = self._make_values(tensordict.batch_size) if values is None else values
                value = values.get(key)
            next_tensordict.set(key, value)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sets the entries of stored data in place and returns it."""
        return tensordict.update(self._make_values(tensordict.batch_size))

    # -- specs

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the specs of the entries."""
        return observation_spec.update(self.primers)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Adds the specs of the entries, which are inputs of the next step."""
        return state_spec.update(self.primers)


def _is_zero(value: Any) -> bool:
    """Returns whether a default value is the number 0, or a tensor of it."""
    return isinstance(value, int | float | Tensor) and not torch.as_tensor(value).any()


class gSDENoise(TensorDictPrimer):
    """Samples the noise of generalized state-dependent exploration at every reset, and keeps it during the episode.

    The entry "_eps_gSDE" is a matrix of normal noise, by which a policy multiplies features of the state. See Raffin et
    al., 2021, "Smooth Exploration for Robotic Reinforcement Learning".

    Args:
        state_dim: the number of features of the state.
        action_dim: the number of elements of the action. Without both, the entry is a zero, `[..., 1]`.
        shape: the dimensions before the matrix: the batch size of the environment, or dimensions after it.
        kwargs: as in `TensorDictPrimer`.

    Raises:
        ValueError: only one of `state_dim` and `action_dim` is given.

    >>> from vecrl.envs import GymEnv
    >>> env = GymEnv("Pendulum-v1").append_transform(gSDENoise(state_dim=3, action_dim=1))
    >>> noise = env.rollout(4)["_eps_gSDE"]
    >>> noise.shape, bool((noise[0] == noise[3]).all())
    (torch.Size([4, 1, 3]), True)
    """

    def __init__(self, state_dim: int | None = None, action_dim: int | None = None, shape: Any = None, **kwargs: Any):
        if (state_dim is None) != (action_dim is None):
            raise ValueError(f"Expected state_dim and action_dim, or neither, got {state_dim} and {action_dim}.")
        shape = torch.Size(() if shape is None else shape)
        self.state_dim, self.action_dim = state_dim, action_dim
        matrix = (1,) if state_dim is None or action_dim is None else (action_dim, state_dim)
        specs = Composite({"_eps_gSDE": Unbounded((*shape, *matrix))}, shape=shape)
        super().__init__(specs, **{"random": state_dim is not None, **kwargs})


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
