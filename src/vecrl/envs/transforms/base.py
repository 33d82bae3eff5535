"""`Transform`: changes TensorDicts between an environment and its user, or between stored data and a learner.

Keys are named from the side of the environment. For outputs of the environment, `in_keys` are the keys of the
environment and `out_keys` are the keys that the user sees. For inputs, `in_keys_inv` are the keys of the environment
and `out_keys_inv` are the keys that the user sets.

`StatelessTransform`, `ObservationTransform` and `RowStateTransform` are its bases for transforms that keep nothing
between steps, for those of observations, and for those that keep a value of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, Self

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from ...specs import Composite, TensorSpec
from ..entries.keys import Key, split_key
from ..entries.row_masks import Prefix, RowMasks, broadcast_mask
from .keyed_module import KeyedModule, Keys, overrides
from .ragged_entries import map_parts, parts_of
from .spec_hooks import KINDS, accept_leaves, infer_spec

__all__ = ["ObservationTransform", "RowStateTransform", "Transform"]


_RECORD_HOOKS = frozenset(
    ("_call", "_step", "_reset", "_inv_call", "inv", "_reset_env_preprocess", "_set_entries", "_tolerant")
)
_STEP_HOOKS = ("_step", "_reset", "_reset_env_preprocess")  # which `_apply_to_rollout` replaces


@cache
def _declares_records(cls: type[Transform]) -> bool:
    owners = [base for hook in _RECORD_HOOKS for base in cls.__mro__ if hook in vars(base)]
    return all(vars(owner).get("_takes_records", False) for owner in owners)


def owned(specs: Composite) -> Composite:
    """Returns an unlocked copy of `specs` with the same leaves. Transforms may return specs of another object."""
    return specs.exclude()


class Transform(KeyedModule):
    """Changes entries of the outputs and inputs of an environment.

    To write a transform, override the simplest of these methods that is sufficient:

    - `_apply_transform(value)` and `_inv_apply_transform(value)`: all keys are treated alike. They are called at each
      step and reset, and on stored data. With `elementwise = True` they are called once for a whole rollout.
    - `_spec(spec)` and `_inv_spec(spec)`: the spec that the user sees for an entry of the environment. By default, the
      spec of an entry that `_apply_transform` makes has the shape and dtype of the value, and no bounds. Sizes that
      depend on dynamic sizes (-1) are dynamic too.
    - `_call(next_tensordict)`: changes the output of a step. `_step(tensordict, next_tensordict)`: the same, if the
      input of the step is needed too. Both return `next_tensordict`.
    - `_reset(tensordict, tensordict_reset)`: changes the output of a reset. Override it too if you override `_call` or
      `_step`.
    - `_inv_call(tensordict)`: changes the input of a step.
    - `transform_observation_spec`, `transform_reward_spec`, `transform_done_spec`, `transform_action_spec`,
      `transform_state_spec`: each takes a Composite and returns a Composite. Called with the spec of one entry, they
      return the spec of the transformed entry. `transform_output_spec` and `transform_input_spec` change all at once.

    Args:
        in_keys: the keys that the transform reads from the outputs of the environment.
        out_keys: the keys that it writes for the user; `in_keys` by default.
        in_keys_inv: the keys that it writes into the inputs of the environment.
        out_keys_inv: the keys that it reads from the inputs given by the user; `in_keys_inv` by default.

    >>> class AddOne(Transform):
    ...     def __init__(self):
    ...         super().__init__(in_keys=["observation"])
    ...     def _apply_transform(self, value):
    ...         return value + 1
    >>> from tensordict import TensorDict
    >>> AddOne()(TensorDict({"observation": torch.zeros(2)}))["observation"]
    tensor([1., 1.])
    """

    preserves_done = False
    """Whether the transform never clears a done flag, so that ended rows may be reset in the command of the step."""
    elementwise = False
    """Whether each value depends only on the input of its own step, so that a rollout can be changed at once.

    Environments in a batch with equal settings are then changed at once too, by the transform of one of them.
    """

    _takes_records = True
    """Whether the hooks that the class defines call only methods of a TensorDict that a `Record` has too."""
    invertible = False
    """Whether the class defines `_inv_apply_transform`, by which it changes the inputs `in_keys_inv`."""
    enable_inv_on_reset = False
    """Whether the inputs of resets are changed too, by `inv`. Transforms without a state between steps always do."""

    _takes_parts = False  # whether entries with other shapes in other rows can be changed part by part
    _env_only = ""  # what to do with a transform that cannot change stored data
    _kinds: tuple[str, ...] = KINDS  # of specs that the default keys are for
    _checked_keys: tuple[str, ...] = ("in_keys", "in_keys_inv")  # that must exist in an environment
    _inverse_needs_keys = False  # whether `_inv_call` changes nothing without `in_keys_inv`
    _resets_like_steps = False
    """Whether `_call` and `_inv_call` also apply to the outputs and inputs of resets if a class overrides them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        accept_leaves(cls)
        cls.invertible = vars(cls).get("invertible", overrides(cls, Transform, "_inv_apply_transform"))

    def __init__(
        self,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Keys = None,
        out_keys_inv: Keys = None,
    ):
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self._allow_missing = False

    # -- values

    def _apply_transform(self, value: Any) -> Any:
        """Returns the value that the user sees for a value of the environment."""
        raise NotImplementedError(f"{type(self).__name__} has no _apply_transform.")

    def _inv_apply_transform(self, value: Any) -> Any:
        """Returns the value that the environment gets for a value given by the user."""
        raise NotImplementedError(f"{type(self).__name__} has no _inv_apply_transform.")

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the output of a step in place and returns it."""
        return self._set_entries(next_tensordict, self._key_pairs, self._apply_transform)

    def _set_entries(
        self, td: TensorDictBase, pairs: list[tuple[Key, Key]], function: Callable[[Any], Any]
    ) -> TensorDictBase:
        """Sets the second key of each pair to `function` of the entry at the first, in place, and returns `td`."""
        for key, new_key in pairs:
            try:
                value = td.get(key, None)
            except RuntimeError:  # the entry has other shapes in other rows
                if not self._takes_parts:
                    raise
                for part, *pair in parts_of(td, key, new_key):
                    self._set_entries(part, [(pair[0], pair[1])], function)
                continue
            if value is not None:
                td.set(new_key, function(value))
            elif not self._allow_missing:
                raise self._missing(key, td)
        return td

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the output of a step from `tensordict` in place and returns it."""
        changed: TensorDictBase | None = self._call(next_tensordict)
        if changed is None:
            raise TypeError(
                f"Expected {type(self).__name__}._call to return the TensorDict that it changes, got None. End it with "
                "`return next_tensordict`."
            )
        return changed

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        """Changes the output of a reset in place and returns it.

        By default `_apply_transform` is applied to the `in_keys` that the reset returned. If a class overrides `_call`,
        the default changes nothing, because `_call` is for steps.

        Args:
            tensordict: the input of the reset; it may contain masks "_reset".
            tensordict_reset: the output of the reset.
        """
        if self._resets_like_steps or not overrides(type(self), Transform, "_call"):
            return self._tolerant(self._call, tensordict_reset)
        return tensordict_reset

    def _tolerant(self, hook: Callable[[TensorDictBase], TensorDictBase], td: TensorDictBase) -> TensorDictBase:
        """Returns the result of `hook`, which may find no entry at some keys."""
        allow_missing, vars(self)["_allow_missing"] = self._allow_missing, True
        try:
            return hook(td)
        finally:
            vars(self)["_allow_missing"] = allow_missing

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """Returns the input for the reset of the environment. Called before that reset.

        With `_resets_like_steps` it is inverted, since environments with a state as input may start from it.
        """
        is_inverted = (self._resets_like_steps or self.enable_inv_on_reset) and self._has_inverse
        if tensordict is None or not is_inverted:
            return tensordict
        return self._tolerant(self._inv_call, tensordict.copy())

    @cached_property
    def _done_prefixes(self) -> list[Prefix]:
        """The prefixes of the groups of done flags; only the root if there is no environment."""
        parent = self.parent
        return [()] if parent is None else parent.done_prefixes

    def _reset_masks(self, tensordict: TensorDictBase) -> RowMasks:
        """Returns the masks of the rows to reset, from "_reset" in `tensordict`."""
        return RowMasks.from_tensordict(tensordict, "_reset", self._done_prefixes)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the input of a step in place and returns it."""
        return self._set_entries(tensordict, self._inverse_key_pairs, self._inv_apply_transform)

    @property
    def _accepts_records(self) -> bool:
        """Whether the hooks take a `Record`: the class that defines each of them says so, and no key is in a group."""
        is_patched = not _RECORD_HOOKS.isdisjoint(vars(self))
        return self._has_flat_keys and not is_patched and _declares_records(type(self))

    @cached_property
    def _has_flat_keys(self) -> bool:
        keys = [*self.in_keys, *self.out_keys, *self.in_keys_inv, *self.out_keys_inv]
        return all(isinstance(key, str) for key in keys)

    @property
    def _has_inverse(self) -> bool:
        """Whether the transform changes inputs."""
        without_keys = not self._inverse_needs_keys and overrides(type(self), Transform, "_inv_call")
        return bool(self._inverse_key_pairs) or without_keys

    @property
    def _batch_dims(self) -> int:
        """The number of batch dimensions of specs; 0 without an environment."""
        parent = self.parent
        return 0 if parent is None else parent.batch_dims

    @property
    def supports_rollout(self) -> bool:
        """Whether the transform can be applied to a whole rollout at once, by `_apply_to_rollout`."""
        applies_to_resets = self._resets_like_steps or not overrides(type(self), Transform, "_call")
        return self.elementwise and applies_to_resets and self._has_no_step_hooks

    @property
    def rows_are_independent(self) -> bool:
        """Whether a step needs nothing but its TensorDicts, and each row of the result only the same row of them.

        Then the transform of one environment can be applied to the rows of several.
        """
        return self.elementwise and self._has_no_step_hooks and not self._changes_layout

    @property
    def _has_no_step_hooks(self) -> bool:
        """Whether no subclass of the class that defines `_apply_to_rollout` overrides `_step` or a reset method."""
        defining_class = next(cls for cls in type(self).__mro__ if "_apply_to_rollout" in vars(cls))
        return not overrides(type(self), defining_class, *_STEP_HOOKS)

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        """Applies the transform to a whole rollout in place. The result is the same as step by step.

        Args:
            root: `[*batch, time]`, the TensorDicts before each step.
            next_td: `[*batch, time]`, the output of each step.
            is_first: `[*batch, time]` bool, True for the first step of each episode, and always for the first step of
                the rollout.
        """
        self._tolerant(self._call, root)
        self._call(next_td)

    def __call__(self, tensordict: Any) -> Any:
        """Changes stored data by `forward`, and checks that it is a TensorDict."""
        if not is_tensor_collection(tensordict):
            raise TypeError(
                f"Expected a TensorDict as input of {type(self).__name__}, got {tensordict!r:.80}. Put it into a "
                f"TensorDict."
            )
        return super().__call__(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the entries `in_keys` of stored data in place and returns it.

        Raises:
            RuntimeError: the transform has no meaning for stored data.
        """
        if self._env_only:
            raise RuntimeError(f"Expected {type(self).__name__} in an environment, got stored data. {self._env_only}")
        return self._call(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the input of the environment, or the data to store, for `tensordict`, which is not changed.

        Transforms that need later steps return None as long as there are no data to store.
        """
        return self._inv_call(tensordict.copy())

    # -- specs

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Changes the specs of all outputs in place and returns them."""
        for name in ("reward", "observation", "done"):
            key = f"full_{name}_spec"
            if output_spec[key] is not None:
                output_spec[key] = getattr(self, f"transform_{name}_spec")(output_spec[key])
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Changes the specs of all inputs in place and returns them."""
        for name in ("state", "action"):
            key = f"full_{name}_spec"
            if input_spec[key] is not None:
                input_spec[key] = getattr(self, f"transform_{name}_spec")(input_spec[key])
        return input_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Changes the specs of the observations in place and returns them."""
        return self._forward_spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Changes the specs of the rewards in place and returns them."""
        return self._forward_spec(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Changes the specs of the done flags in place and returns them."""
        return done_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Changes the specs of the actions in place and returns them."""
        return self._inverse_spec(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Changes the specs of other inputs in place and returns them."""
        return self._inverse_spec(state_spec)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        """Returns the spec of the outputs of `_apply_transform` for values of `spec`."""
        return infer_spec(spec, self._apply_transform)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """Returns the spec of the values that `_inv_apply_transform` maps to values of `spec`."""
        return spec

    def _leaf_keys(self, kind: str) -> tuple[Key, Key]:
        """Returns the keys, in the environment and for the user, of the entry that a leaf of `kind` is the spec of.

        It is the entry named `kind`, or the first entry that the transform changes.
        """
        is_input = kind in ("action", "state")
        pairs = [(inner, outer) for outer, inner in self._inverse_key_pairs] if is_input else self._key_pairs
        named = [pair for pair in pairs if split_key(pair[0])[1] == kind]
        return (named or (pairs if kind in self._kinds else None) or [(kind, kind)])[0]

    def _forward_spec(self, specs: Composite) -> Composite:
        """Sets the specs of `out_keys` to `_spec` of those of `in_keys`, in place, and returns the specs."""
        if overrides(type(self), Transform, "_apply_transform"):
            for in_key, out_key in self._key_pairs:
                spec = specs.get(in_key, None)
                if spec is not None:
                    specs[out_key] = self._map_spec(self._spec, spec)
        return specs

    def _inverse_spec(self, specs: Composite) -> Composite:
        """Replaces the entries `in_keys_inv` by `out_keys_inv`, with specs from `_inv_spec`, and returns the specs."""
        for out_key, in_key in self._inverse_key_pairs:
            spec = specs.get(in_key, None)
            if spec is not None:
                if out_key != in_key:
                    del specs[in_key]
                specs[out_key] = self._map_spec(self._inv_spec, spec)
        return specs

    def _map_spec(self, function: Callable[[TensorSpec], TensorSpec], spec: TensorSpec) -> TensorSpec:
        """Returns the result of `_spec` or `_inv_spec` for the spec of an entry, or for each of its parts."""
        return map_parts(function, spec) if self._takes_parts else function(spec)

    def _to_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns a TensorDict with the rows and keys that the user sees in the layout of the parent.

        Override it, and `_from_parent_layout`, to change the layout. Entries may be missing.
        """
        return tensordict

    def _from_parent_layout(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns a TensorDict in the layout of the parent with the rows and keys that the user sees."""
        return tensordict

    @property
    def _changes_layout(self) -> bool:
        """Whether the user and the parent see different rows or keys of inputs."""
        return overrides(type(self), Transform, "_to_parent_layout")

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """Returns the batch size that the user sees."""
        return batch_size

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """Returns the device that the user sees."""
        return device

    def transform_fake_tensordict(self, fake_tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the fake TensorDict of zeros that the user sees."""
        return fake_tensordict

    # -- the rest

    def init(self, tensordict: TensorDictBase) -> None:
        """Initializes the transform from the first data."""

    def close(self) -> None:
        """Releases the resources of the transform."""

    def dump(self, **kwargs: Any) -> None:
        """Writes collected data to its destination."""

    @property
    def missing_tolerance(self) -> bool:
        """Whether entries of `in_keys` may be missing."""
        return self._allow_missing

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Sets whether entries may be missing."""
        self._allow_missing = mode

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys})"


accept_leaves(Transform)


class StatelessTransform(Transform):
    """The base of transforms that apply `_call` to the outputs of both steps and resets, and keep nothing between."""

    preserves_done = True
    _resets_like_steps = True


class ObservationTransform(StatelessTransform):
    """The base of transforms of observations. The default `in_keys` are all observations of the environment.

    Args:
        in_keys, out_keys, in_keys_inv, out_keys_inv: as in `Transform`.

    Raises:
        ValueError: on use with stored data, if there are neither `in_keys` nor an environment.
    """

    _kinds = ("observation", "action", "state")

    def _default_in_keys(self) -> list[Key]:
        parent = self.parent
        return [] if parent is None else list(parent.observation_keys)

    def _removable(self, keys: list[Key]) -> list[Key]:
        """Returns the keys that the next step of the environment does not need."""
        parent = self.parent
        return keys if parent is None else [key for key in keys if key not in parent.state_keys]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._in_keys is None and self.container is None:
            raise ValueError(
                f"Expected {type(self).__name__} outside an environment to have in_keys, got none. Give in_keys."
            )
        return self._call(tensordict)


class RowStateTransform(Transform):
    """The base of transforms that keep a value of each row between steps.

    A subclass overrides `_reset` and `_step`. In both it calls `_store(name, value, mask)`, which keeps the rows of
    `value` `[*batch, ...]` that the mask selects; in `_step` it reads `self._buffers[name]`. The values are part of the
    state, and a clone shares them.

    >>> from vecrl.envs import GymEnv
    >>> from vecrl.envs.transforms import RowStateTransform
    >>> class Change(RowStateTransform):
    ...     "Writes the difference between the observations of a step and of the one before."
    ...     def _reset(self, tensordict, tensordict_reset):
    ...         mask = self._reset_masks(tensordict).for_key("observation")  # the rows that are reset; None for all
    ...         self._store("last", tensordict_reset["observation"], mask)
    ...         return tensordict_reset.set("change", torch.zeros_like(tensordict_reset["observation"]))
    ...     def _step(self, tensordict, next_tensordict):
    ...         next_tensordict["change"] = next_tensordict["observation"] - self._buffers["last"]
    ...         self._store("last", next_tensordict["observation"], tensordict.get("_step", None))
    ...         return next_tensordict
    ...     def transform_observation_spec(self, observation_spec):
    ...         observation_spec["change"] = observation_spec["observation"].clone()
    ...         return observation_spec
    >>> data = GymEnv("Pendulum-v1").append_transform(Change()).rollout(2)
    >>> data["change"][1].equal(data["observation"][1] - data["observation"][0])
    True
    """

    preserves_done = True

    def clone(self) -> Self:
        """Returns a copy without a container that shares the buffers, also those that are created later."""
        cloned = super().clone()
        cloned.__dict__["_buffers"] = self.__dict__["_buffers"]
        return cloned

    def _store(self, name: str, value: Tensor, mask: Tensor | None) -> Tensor:
        """Stores rows of a value for the next step, and returns a copy of all rows, the others as they were stored.

        Args:
            name: the name of the buffer.
            value: `[*batch, ...]`; the values of other rows have no effect.
            mask: the rows to store, of the shape of a done flag; None for all.
        """
        previous = self._buffers.get(name)
        if mask is not None and previous is not None and previous.shape == value.shape:
            value = torch.where(broadcast_mask(mask, value), value, previous)
        self._buffers[name] = value.detach()
        return value.clone()

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._buffers.clear()
        for name, value in state_dict.items():
            if name.startswith(prefix) and "." not in name.removeprefix(prefix):
                self._buffers[name.removeprefix(prefix)] = torch.empty_like(value)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
