"""`TensorDictPrimer`: entries that an environment does not know, such as the state of a recurrent policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ...specs import Composite, TensorSpec
from ..owner import Key
from ..partial import Masks
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
    def keeps_done(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
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
        self._given = specs
        self.random = bool(random)
        self.default_value: Any = 0.0 if default_value is None else default_value
        self.reset_key = reset_key
        self.expand_specs = expand_specs
        self.single_default_value = single_default_value
        self.call_before_env_reset = call_before_env_reset

    @property
    def primers(self) -> Composite:
        """The specs, with the batch size of the environment where there is one."""
        return self._once("primers", self._fitted)

    def _fitted(self) -> Composite:
        parent = self.parent
        if parent is None:
            return self._given
        specs = self._given if parent.device is None else self._given.to(parent.device)
        if specs.shape == parent.batch_size:
            return specs
        if self.expand_specs is False:
            return Composite(dict(specs.items()), shape=parent.batch_size, device=specs.device)
        return specs.expand(*parent.batch_size, *specs.shape)

    # -- values

    def _fresh(self, batch: torch.Size, mask: Tensor | None = None) -> TensorDictBase:
        """Values for `batch`, of which those of the rows of `mask` count."""
        specs: Any = self.primers
        if self.single_default_value and callable(self.default_value):
            return self._at_once(batch, mask)
        fits = all(spec.shape[: len(batch)] == batch for spec in specs.values(True, True))
        own = specs.shape == batch or (fits and self.parent is None and not self.expand_specs)
        lead = torch.Size(()) if own else batch
        fresh = TensorDict({}, batch, device=specs.device)
        for key, spec in specs.items(include_nested=True, leaves_only=True):
            fresh.set(key, self._value(key, spec, lead))
        return fresh

    def _value(self, key: Any, spec: TensorSpec, lead: torch.Size) -> Any:
        if self.random or spec.dtype is None:
            return spec.rand(lead)
        value = self.default_value[key] if isinstance(self.default_value, Mapping) else self.default_value
        value = torch.as_tensor(value() if callable(value) else value, dtype=spec.dtype, device=spec.device)
        return value.expand(*lead, *spec.shape).clone()

    def _at_once(self, batch: torch.Size, mask: Tensor | None) -> TensorDictBase:
        rows = torch.ones(batch, dtype=torch.bool) if mask is None else mask.reshape(*batch, -1).any(-1)
        given = self.default_value(reset=rows)
        if given.batch_size == batch:
            return given
        fresh: Any = self.primers.zero(() if self.primers.shape == batch else batch)
        fresh[rows] = given
        return fresh

    def _mask(self, tensordict: TensorDictBase) -> Masks:
        """Who is set."""
        parent = self.parent
        prefixes = [()] if parent is None else parent.done_prefixes
        if self.reset_key is None:
            return Masks.read(tensordict, "_reset", prefixes)
        mask = tensordict.get(self.reset_key, None)
        return Masks({} if mask is None else {(): mask}, [()])

    def _primed(self, tensordict: TensorDictBase) -> TensorDictBase:
        """New values where they are meant, those of `tensordict` elsewhere."""
        masks = self._mask(tensordict)
        fresh = self._fresh(tensordict.batch_size, masks.of("done"))
        return masks.merge(fresh, tensordict)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        if not self.call_before_env_reset:
            return tensordict
        parent = self._require_parent()
        given = TensorDict({}, parent.batch_size, device=parent.device) if tensordict is None else tensordict.copy()
        return given.update(self._primed(given))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        keys = self.primers.keys(include_nested=True, leaves_only=True)
        return tensordict_reset.update(
            tensordict.select(*keys) if self.call_before_env_reset else self._primed(tensordict)
        )

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        given = tensordict.get("next", None)
        fresh: Any = None
        for key in self.primers.keys(include_nested=True, leaves_only=True):
            value = next_tensordict.get(key, None)
            if value is None and given is not None:
                value = given.get(key, None)
            if value is None:
                value = tensordict.get(key, None)
            if value is None:
                fresh = self._fresh(tensordict.batch_size) if fresh is None else fresh
                value = fresh.get(key)
            next_tensordict.set(key, value)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set the entries of stored data, in place; returns them."""
        return tensordict.update(self._fresh(tensordict.batch_size))

    # -- specs

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With the entries."""
        return observation_spec.update(self.primers)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """With the entries, which a step goes on from."""
        return state_spec.update(self.primers)
