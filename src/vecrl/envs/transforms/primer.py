"""`TensorDictPrimer`: entries that an environment does not know, such as the state of a recurrent policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...specs import Composite, TensorSpec
from ..row_masks import RowMasks
from ..spec_container import Key
from .base import Transform


class TensorDictPrimer(Transform):
    """Sets entries at every reset, and carries them from step to step.

    After a step an entry holds what a policy has put under "next", or else what it held before.

    Args:
        primers: specs by key; also as keywords. Where they do not have the batch size of the environment, as a
            `Composite` of that shape has it, they are expanded to it.
        random: draw values from the specs.
        default_value: what to set otherwise: a number or a tensor, a function that gives it, or a mapping of these by
            key; 0 by default.
        reset_key: the mask of the rows that are set; by default that of the entry's own group.
        expand_specs: False: the specs have the batch size as they are.
        single_default_value: `default_value` is a function of `reset`, `[*batch]` bool, which gives a TensorDict of all
            entries, for as many rows as are reset.
        call_before_env_reset: set them before the environment is reset, which sees them then.

    Raises:
        ValueError: both `random` and `default_value`, both `primers` and keywords, or keys that do not match.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.specs import Unbounded
    >>> env = GymEnv("CartPole-v1").append_transform(TensorDictPrimer(hidden=Unbounded((2,)), default_value=1.0))
    >>> env.rollout(3)["next", "hidden"].shape
    torch.Size([3, 2])
    """

    @property
    def preserves_done(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a batch may begin anew before the entries are set."""
        return not self.call_before_env_reset

    def __init__(
        self,
        primers: Mapping[Any, Any] | Composite | None = None,
        random: bool | None = None,
        default_value: Any = None,
        reset_key: Key | None = None,
        expand_specs: bool | None = None,
        single_default_value: bool = False,
        call_before_env_reset: bool = False,
        **kwargs: Any,
    ):
        if primers is not None and kwargs:
            raise ValueError(f"Expected primers or keywords, but both came: the keywords {sorted(kwargs)} too.")
        if random and default_value is not None:
            raise ValueError("Expected random or default_value, but both came.")
        specs: Any = kwargs if primers is None else primers
        specs = specs if isinstance(specs, Composite) else Composite(specs)
        keys = set(specs.keys(include_nested=True, leaves_only=True))
        if isinstance(default_value, Mapping) and set(default_value) != keys:
            raise ValueError(f"Expected default_value to have the keys {keys}, but {set(default_value)} came.")
        super().__init__()
        self._raw_primers = specs
        self.random = bool(random)
        self.default_value: Any = 0.0 if default_value is None else default_value
        self.reset_key = reset_key
        self.expand_specs = expand_specs
        self.single_default_value = single_default_value
        self.call_before_env_reset = call_before_env_reset

    @property
    def primers(self) -> Composite:
        """The specs, with the batch size of the environment where there is one."""
        return self._cached("primers", self._expand_primers)

    def _expand_primers(self) -> Composite:
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
        """Values for `batch`, of which those of the rows of `mask` count."""
        specs: Any = self.primers
        if self.single_default_value and callable(self.default_value):
            return self._single_default(batch, mask)
        has_batch_shape = all(spec.shape[: len(batch)] == batch for spec in specs.values(True, True))
        is_batched = specs.shape == batch or (has_batch_shape and self.parent is None and not self.expand_specs)
        batch_shape = torch.Size(()) if is_batched else batch
        values = TensorDict({}, batch, device=specs.device)
        for key, spec in specs.items(include_nested=True, leaves_only=True):
            values.set(key, self._value(key, spec, batch_shape))
        return values

    def _value(self, key: Any, spec: TensorSpec, batch_shape: torch.Size) -> Any:
        if self.random or spec.dtype is None:
            return spec.rand(batch_shape)
        value = self.default_value[key] if isinstance(self.default_value, Mapping) else self.default_value
        value = torch.as_tensor(value() if callable(value) else value, dtype=spec.dtype, device=spec.device)
        return value.expand(*batch_shape, *spec.shape).clone()

    def _single_default(self, batch: torch.Size, mask: Tensor | None) -> TensorDictBase:
        row_mask = torch.ones(batch, dtype=torch.bool) if mask is None else mask.reshape(*batch, -1).any(-1)
        given_td = self.default_value(reset=row_mask)
        if given_td.batch_size == batch:
            return given_td
        values: Any = self.primers.zero(() if self.primers.shape == batch else batch)
        values[row_mask] = given_td
        return values

    def _mask(self, tensordict: TensorDictBase) -> RowMasks:
        """Who is set."""
        parent = self.parent
        prefixes = [()] if parent is None else parent.done_prefixes
        if self.reset_key is None:
            return RowMasks.from_tensordict(tensordict, "_reset", prefixes)
        mask = tensordict.get(self.reset_key, None)
        return RowMasks({} if mask is None else {(): mask}, [()])

    def _with_primers(self, tensordict: TensorDictBase) -> TensorDictBase:
        """New values where they are meant, those of `tensordict` elsewhere."""
        masks = self._mask(tensordict)
        values = self._make_values(tensordict.batch_size, masks.for_key("done"))
        return masks.select(values, tensordict)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        if not self.call_before_env_reset:
            return tensordict
        parent = self._require_parent()
        given_td = TensorDict({}, parent.batch_size, device=parent.device) if tensordict is None else tensordict.copy()
        return given_td.update(self._with_primers(given_td))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        keys = self.primers.keys(include_nested=True, leaves_only=True)
        return tensordict_reset.update(
            tensordict.select(*keys) if self.call_before_env_reset else self._with_primers(tensordict)
        )

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        given_td = tensordict.get("next", None)
        values: Any = None
        for key in self.primers.keys(include_nested=True, leaves_only=True):
            value = next_tensordict.get(key, None)
            if value is None and given_td is not None:
                value = given_td.get(key, None)
            if value is None:
                value = tensordict.get(key, None)
            if value is None:
                values = self._make_values(tensordict.batch_size) if values is None else values
                value = values.get(key)
            next_tensordict.set(key, value)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set the entries of stored data, in place; returns them."""
        return tensordict.update(self._make_values(tensordict.batch_size))

    # -- specs

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With the entries."""
        return observation_spec.update(self.primers)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """With the entries, which a step goes on from."""
        return state_spec.update(self.primers)
