"""`EnvSpecs`: the five specs of an environment, and the keys, shapes and fake data that are computed from them.

Each of the five specs is a `Composite` with the environment's batch size: actions, states (other inputs), observations,
rewards and done flags. `env.action_spec`, `env.reward_spec` and `env.done_spec` return the leaf if there is exactly
one. `EnvMeta` locks the specs after the `__init__` of the environment's class has returned: then they are complete.
"""

from __future__ import annotations

import inspect
import weakref
from abc import ABCMeta
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from ..errors import LockedError, SpaceError
from ..specs import Categorical, Composite, TensorSpec
from ..specs.base import foreign_spec_hint
from ..specs.shape_ops import as_size
from ..validation import parse_device
from .entries.keys import FLAGS, INPUTS, OUTPUTS, Key, Prefix, is_overridden, join_key, key_depth, split_key

Value = TypeVar("Value")
Device = torch.device | str | int | None
_KEYWORDS = ("spec_locked", "auto_reset", "auto_reset_replace", "compile", "policy")


class EnvMeta(ABCMeta):
    """The metaclass of environments, which calls `_complete_init` after `__init__`.

    Every class can be called with the keywords of `_KEYWORDS`. Those that its `__init__` does not name are passed to
    `_complete_init`; a "policy" is passed to `_with_policy`, and the caller gets the result of that method.
    """

    if not TYPE_CHECKING:  # type checkers read the arguments from `__init__`

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            named = inspect.signature(cls.__init__).parameters if kwargs.keys() & set(_KEYWORDS) else ()
            options = {name: kwargs.pop(name) for name in _KEYWORDS if name in kwargs and name not in named}
            env = super().__call__(*args, **kwargs)
            policy = options.pop("policy", None)
            env._complete_init(**options)
            return env if policy is None else env._with_policy(policy)

        @property
        def __signature__(cls) -> inspect.Signature:
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=list(signature.parameters.values())[1:])


class _DependentEnvs(weakref.WeakSet["EnvSpecs"]):
    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _DependentEnvs, ()  # in another process, dependent environments add themselves


class spec_cached_property(Generic[Value]):
    """A property of an `EnvSpecs` that depends on the specs only, and is cached while they are locked.

    The first read stores the value in the instance, so that later reads call no function. A change of a spec deletes
    it.
    """

    def __init__(self, make: Callable[[Any], Value]):
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type[EnvSpecs], name: str) -> None:
        self._name = name
        owner._cached_names = (*owner._cached_names, name)
        owner.excluded_from_state = (*owner.excluded_from_state, name)

    @overload
    def __get__(self, owner: None, owner_class: type) -> spec_cached_property[Value]: ...
    @overload
    def __get__(self, owner: EnvSpecs, owner_class: type) -> Value: ...
    def __get__(self, owner: EnvSpecs | None, owner_class: type | None = None) -> Any:
        if owner is None:
            return self
        value = self._make(owner)
        if owner.is_spec_locked:
            vars(owner)[self._name] = value
        return value


class SpecProperty:
    """An attribute that gets and sets one of the five specs.

    Args:
        name: "action", "state", "observation", "reward" or "done".
        full: always return the `Composite`; otherwise the leaf, if there is only one.
        unbatched: without the batch dimensions.
    """

    def __init__(self, name: str, *, full: bool = False, unbatched: bool = False):
        self._name, self._full, self._unbatched = name, full, unbatched

    @overload
    def __get__(self, owner: None, owner_class: type) -> SpecProperty: ...
    @overload
    def __get__(self, owner: EnvSpecs, owner_class: type) -> Any: ...
    def __get__(self, owner: EnvSpecs | None, owner_class: type | None = None) -> Any:
        if owner is None:
            return self
        if self._unbatched and owner.ndim:  # a copy, which would not follow edits of `spec.space`
            return self._find(owner)
        spec = owner._cache.get(self)
        if spec is None:
            spec = owner._cached(self, lambda: self._find(owner))
        return spec

    def _find(self, owner: EnvSpecs) -> TensorSpec:
        full = owner._full(self._name)
        leaves = [] if self._full else spec_leaves(full)
        spec = leaves[0][1] if len(leaves) == 1 else full
        return spec[(0,) * owner.ndim] if self._unbatched and owner.ndim else spec

    def __set__(self, owner: EnvSpecs, spec: Any) -> None:
        if self._unbatched:
            spec = spec.expand(*owner.batch_size, *spec.shape)
        owner._set_full(self._name, spec)


def is_defined(owner: object, name: str) -> bool:
    """Returns whether the class of `owner`, or a base of it, defines an attribute.

    If such an attribute cannot be read, the AttributeError was raised by its own code, and says more than another one.
    """
    return any(name in vars(cls) for cls in type(owner).__mro__)


class EnvSpecs(nn.Module, metaclass=EnvMeta):
    """The base of environments: their five specs, and the keys and other values derived from these.

    A subclass may set specs before it calls `super().__init__()`, and edit them until its own `__init__` returns.

    Args:
        device: the device of inputs and outputs; None if it is not fixed.
        batch_size: the leading dimensions of every spec's shape.
        locked: whether the specs are locked after the construction, so that cached keys stay valid.
    """

    auto_complete_done_specs = True
    # attributes that states do not contain, see `vecrl.snapshot`
    excluded_from_state: tuple[str, ...] = ("_specs", "_cache", "_dependents", "_device", "_batch_size", "_locked")
    _cached_names: tuple[str, ...] = ()

    action_spec = SpecProperty("action")
    reward_spec = SpecProperty("reward")
    done_spec = SpecProperty("done")
    observation_spec = full_observation_spec = SpecProperty("observation", full=True)
    state_spec = full_state_spec = SpecProperty("state", full=True)
    full_action_spec = SpecProperty("action", full=True)
    full_reward_spec = SpecProperty("reward", full=True)
    full_done_spec = SpecProperty("done", full=True)
    action_spec_unbatched = SpecProperty("action", unbatched=True)
    reward_spec_unbatched = SpecProperty("reward", unbatched=True)
    done_spec_unbatched = SpecProperty("done", unbatched=True)
    observation_spec_unbatched = full_observation_spec_unbatched = SpecProperty(
        "observation", full=True, unbatched=True
    )
    state_spec_unbatched = full_state_spec_unbatched = SpecProperty("state", full=True, unbatched=True)
    full_action_spec_unbatched = SpecProperty("action", full=True, unbatched=True)
    full_reward_spec_unbatched = SpecProperty("reward", full=True, unbatched=True)
    full_done_spec_unbatched = SpecProperty("done", full=True, unbatched=True)

    _locked = False
    _lock_after_init = True
    _batch_locked = True
    _supports_set_state = False

    def __new__(cls, *args: Any, _batch_locked: bool | None = None, **kwargs: Any) -> Self:
        env = super().__new__(cls)
        if _batch_locked is not None:  # given by the `__new__` of a subclass
            vars(env)["_batch_locked"] = _batch_locked
        vars(env).update(_specs={}, _cache={}, _dependents=_DependentEnvs())
        return env

    def __init__(self, device: Device, batch_size: Sequence[int] | int | None, locked: bool):
        super().__init__()
        self._device = None if device is None else parse_device(device)
        self._batch_size = as_size(() if batch_size is None else batch_size)
        self._lock_after_init = locked
        self._specs: dict[str, Composite]
        self._cache: dict[Hashable, Any]
        self._dependents: _DependentEnvs
        for name, spec in list(self._specs.items()):  # a subclass may set specs before this call
            self._set_full(name, spec)

    def __getattr__(self, name: str) -> Any:
        """Returns a submodule, parameter or buffer, or raises an AttributeError.

        Python also calls this method after a property has raised an AttributeError, which must not be hidden.
        """
        if is_defined(self, name):
            return object.__getattribute__(self, name)
        return super().__getattr__(name)

    def _complete_init(self, *, spec_locked: bool | None = None) -> None:
        """Completes the construction after the `__init__` of the environment's class has returned.

        Args:
            spec_locked: whether to lock the specs; None for what the constructor of `EnvSpecs` was given.
        """
        if self.auto_complete_done_specs and "done" in self._specs:
            _add_missing_flags(self._specs["done"])
        self.set_spec_lock_(self._lock_after_init if spec_locked is None else spec_locked)

    @property
    def batch_size(self) -> torch.Size:
        """The leading dimensions of every spec's shape."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: Sequence[int] | int) -> None:
        self._batch_size = as_size(value)
        self.empty_cache()

    shape = batch_size

    @property
    def ndim(self) -> int:
        """The number of batch dimensions."""
        return len(self.batch_size)

    batch_dims = ndim

    def ndimension(self) -> int:
        """Returns the number of batch dimensions."""
        return self.ndim

    def numel(self) -> int:
        """Returns the number of environments in the batch."""
        return self.batch_size.numel()

    @property
    def device(self) -> torch.device | None:
        """The device of inputs and outputs; None if it is not fixed."""
        return self._device

    @property
    def batch_locked(self) -> bool:
        """Whether only TensorDicts of the batch size are accepted. A subclass sets `_batch_locked`."""
        return self._batch_locked

    @batch_locked.setter
    def batch_locked(self, value: bool) -> None:
        raise LockedError(
            f"Expected no change of batch_locked, got {value!r}. It belongs to the class: set _batch_locked in it."
        )

    @property
    def supports_set_state(self) -> bool:
        """Whether `reset` can start from the state in its TensorDict. A subclass sets `_supports_set_state`."""
        return self._supports_set_state

    # -- the lock

    @property
    def is_spec_locked(self) -> bool:
        """Whether the specs are locked."""
        return self._locked

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Locks or unlocks the specs in place and returns the environment."""
        self._locked = mode
        for name in (*INPUTS, *OUTPUTS):
            spec = self._full(name)
            if mode:
                spec.lock_(recurse=True)
            else:
                spec.unlock_(recurse=True)
        self.empty_cache()
        return self

    def empty_cache(self) -> None:
        """Deletes everything cached from the specs. Setting a spec calls this method."""
        self._cache.clear()
        for name in self._cached_names:
            vars(self).pop(name, None)
        for dependent in self._dependents:
            dependent.empty_cache()

    def __getstate__(self) -> dict[str, object]:
        state = {name: value for name, value in self.__dict__.items() if name not in self._cached_names}
        return {**state, "_dependents": _DependentEnvs(), "_cache": {}}

    def _cached(self, name: Hashable, make: Callable[[], Value]) -> Value:
        if not self._locked:
            return make()
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    # -- the specs

    def _default_spec(self, name: str) -> Composite:
        shape = (*self.batch_size, 1)
        leaves: dict[str, TensorSpec] = {}
        if name == "done":
            leaves = {flag: Categorical(2, shape, dtype=torch.bool, device=self.device) for flag in FLAGS[:2]}
        return Composite(leaves, shape=self.batch_size, device=self.device)

    def _full(self, name: str) -> Composite:
        spec = self._specs.get(name)
        if spec is None:
            spec = self._specs[name] = self._default_spec(name)
            if self._locked:
                spec.lock_(recurse=True)
        return spec

    def _set_full(self, name: str, spec: object) -> None:
        if not isinstance(spec, TensorSpec):
            actual = f"{type(spec).__name__}{foreign_spec_hint(spec)}"
            raise TypeError(f"Expected full_{name}_spec to be a spec of vecrl.specs, got {actual}.")
        if not isinstance(spec, Composite):
            if name == "state":
                raise TypeError(f"Expected {name}_spec to be a Composite with one key per entry, got {spec!r}.")
            spec = Composite({name: spec})
        if "_batch_size" not in vars(self):  # before `__init__`, which sets the spec again
            self._specs[name] = spec
            return
        spec = self._with_batch_size(name, spec.clone())
        if name == "done" and self.auto_complete_done_specs:
            _add_missing_flags(spec)
        if name == "done":
            check_done_names(spec)
        if self.device is not None:
            spec = spec.to(self.device)
        self._specs[name] = spec.lock_(recurse=True) if self._locked else spec
        self.empty_cache()

    def _with_batch_size(self, name: str, spec: Composite) -> Composite:
        batch = self.batch_size
        for key, leaf in spec_leaves(spec):
            if leaf.shape[: len(batch)] != batch:
                raise SpaceError(
                    f"Expected the shape of {name}_spec to begin with the batch size {tuple(batch)}, got "
                    f"{tuple(leaf.shape)} at {key!r}. Expand it, or set {name}_spec_unbatched."
                )
        if spec.shape[: len(batch)] != batch:
            spec.shape = batch
        return spec

    @property
    def input_spec(self) -> Composite:
        """A `Composite` of `full_action_spec` and `full_state_spec`."""
        return self._cached("input_spec", lambda: self._composite_of(INPUTS))

    @property
    def output_spec(self) -> Composite:
        """A `Composite` of `full_observation_spec`, `full_reward_spec` and `full_done_spec`."""
        return self._cached("output_spec", lambda: self._composite_of(OUTPUTS))

    @property
    def specs(self) -> Composite:
        """A `Composite` of `input_spec` and `output_spec`."""
        parts = {"output_spec": self.output_spec, "input_spec": self.input_spec}
        return Composite(parts, shape=self.batch_size, device=self.device)

    def _composite_of(self, names: Sequence[str]) -> Composite:
        parts = {f"full_{name}_spec": self._full(name) for name in names}
        composite = Composite(parts, shape=self.batch_size, device=self.device)
        return composite.lock_(recurse=True) if self._locked else composite

    input_spec_unbatched = property(lambda self: self._unbatched(self.input_spec), doc="`input_spec`, for one row.")
    output_spec_unbatched = property(lambda self: self._unbatched(self.output_spec), doc="`output_spec`, for one row.")

    def _unbatched(self, spec: Composite) -> Composite:
        return spec[(0,) * self.ndim] if self.ndim else spec

    @property
    def has_dynamic_specs(self) -> bool:
        """Whether the shape of any entry is not fixed."""
        names = (*INPUTS, *OUTPUTS)
        return self._cached(
            "dynamic", lambda: any(-1 in leaf.shape for n in names for _, leaf in spec_leaves(self._full(n)))
        )

    _has_dynamic_specs = has_dynamic_specs  # the name by which TorchRL's collectors ask

    # -- values derived from the specs

    def fake_tensordict(self) -> TensorDictBase:
        """Returns a TensorDict with the entries of a step, "next" included, filled with zeros."""
        root = TensorDict({}, self.batch_size, device=self.device)
        next_td = root.copy()
        for spec in (self.full_observation_spec, self.full_done_spec, self.full_reward_spec):
            next_td.update(spec.zero())
        for spec in (self.full_state_spec, self.full_action_spec, self.full_observation_spec, self.full_done_spec):
            root.update(spec.zero())
        return root.set("next", next_td)

    def add_truncated_keys(self) -> Self:
        """Adds a "truncated" flag beside every "done" flag in the specs and returns the environment."""
        spec = self.full_done_spec.clone().unlock_(recurse=True)
        for prefix in self.done_prefixes:
            key = join_key(prefix, "truncated")
            if key not in spec.keys(include_nested=True):
                spec[key] = spec[join_key(prefix, "done")].clone()
        self.full_done_spec = spec
        return self

    def all_actions(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Returns every action that the spec allows, one per row, in a TensorDict `[number, *batch_size]`.

        Args:
            tensordict: the entries from which an environment with masked specs updates the masks; ignored here.
        """
        return self.full_action_spec.enumerate(use_mask=True)

    def cardinality(self, tensordict: TensorDictBase | None = None) -> int | float:
        """Returns the number of actions, masks ignored; infinity if the action spec is continuous."""
        return self.full_action_spec.cardinality()

    # -- the keys

    def _leaf_keys(self, name: str) -> list[Key]:
        full = self._full(name)
        keys = self._cache.get(name)
        return (
            self._cached(name, lambda: sorted(full.keys(include_nested=True, leaves_only=True), key=key_depth))
            if keys is None
            else keys
        )

    def _single_key(self, name: str) -> Key:
        keys = self._leaf_keys(name)
        if len(keys) != 1:
            raise KeyError(f"Expected one {name} key, got {keys}. Use {name}_keys.")
        return keys[0]

    @property
    def action_keys(self) -> list[Key]:
        """The keys of the action leaves, those at the root first."""
        return self._leaf_keys("action")

    @property
    def state_keys(self) -> list[Key]:
        """The keys of the leaves of the other inputs."""
        return self._leaf_keys("state")

    @property
    def observation_keys(self) -> list[Key]:
        """The keys of the observation leaves."""
        return self._leaf_keys("observation")

    @property
    def reward_keys(self) -> list[Key]:
        """The keys of the reward leaves."""
        return self._leaf_keys("reward")

    @property
    def done_keys(self) -> list[Key]:
        """The keys of the done flags of every group: "done", "terminated" and, if the spec has it, "truncated"."""
        return self._leaf_keys("done")

    @property
    def action_key(self) -> Key:
        """The only action key."""
        return self._single_key("action")

    @property
    def reward_key(self) -> Key:
        """The only reward key."""
        return self._single_key("reward")

    @property
    def done_key(self) -> Key:
        """The only key of a "done" flag."""
        keys = [join_key(prefix, "done") for prefix in self.done_prefixes]
        if len(keys) != 1:
            raise KeyError(f"Expected one done key, got {keys}. Use done_keys.")
        return keys[0]

    @property
    def done_prefixes(self) -> list[Prefix]:
        """The prefixes of done flags: `()` for the root, `("agents",)` for a group; the root comes first."""
        return self._cached("done_prefixes", lambda: list(dict.fromkeys(split_key(key)[0] for key in self.done_keys)))

    @spec_cached_property
    def outer_done_prefixes(self) -> list[Prefix]:
        """The prefixes of the done flags that end episodes: flags at the root, or further up, override those below."""
        prefixes = self.done_prefixes
        return [prefix for prefix in prefixes if not is_overridden(prefix, prefixes)]

    @spec_cached_property
    def _done_keys_by_prefix(self) -> dict[Prefix, Key]:
        """The key of each "done" flag, by its prefix."""
        return {prefix: join_key(prefix, "done") for prefix in self.done_prefixes}

    @spec_cached_property
    def _flag_shapes(self) -> list[tuple[Key, torch.Size]]:
        """The key of each done flag, and the flag's shape without the batch dimensions."""
        return [(key, self._full("done")[key].shape[self.ndim :]) for key in self.done_keys]

    @property
    def done_keys_groups(self) -> list[list[Key]]:
        """The keys of the done flags, one list per prefix."""
        return [[key for key in self.done_keys if split_key(key)[0] == prefix] for prefix in self.done_prefixes]

    @spec_cached_property
    def _flag_groups(self) -> list[tuple[Prefix, bool, torch.Size]]:
        """For each prefix: whether it has a "truncated" flag, and the shape of "done" without the batch dimensions."""
        groups, spec = zip(self._done_keys_by_prefix.items(), self.done_keys_groups, strict=True), self.full_done_spec
        return [(prefix, len(group) > 2, spec[key].shape[self.ndim :]) for (prefix, key), group in groups]

    @spec_cached_property
    def _done_shapes(self) -> dict[Prefix, torch.Size]:
        """The shape of "done" without the batch dimensions, by its prefix."""
        return {prefix: shape for prefix, _, shape in self._flag_groups}

    @property
    def reset_keys(self) -> list[Key]:
        """The keys of the masks of a partial reset, which are beside the done flags."""
        return [join_key(prefix, "_reset") for prefix in self.done_prefixes]

    @spec_cached_property
    def _reset_keys(self) -> list[Key]:
        return self.reset_keys

    @spec_cached_property
    def _keys_not_in_reset(self) -> list[Key]:
        """The keys that are removed from the result of a reset: masks, and rewards that are not in the state spec."""
        return [*self.reset_keys, *self._reward_keys_not_in_root]

    @spec_cached_property
    def _reward_shapes(self) -> list[tuple[Key, torch.Size]]:
        """The key of each reward, and its shape."""
        return [(key, self.full_reward_spec[key].shape) for key in self.reward_keys]

    @spec_cached_property
    def _reward_keys_not_in_root(self) -> list[Key]:
        """The keys of the rewards that are not in the state spec, and therefore only under "next"."""
        return [key for key in self.reward_keys if key not in self.state_keys]


def spec_leaves(spec: Composite) -> list[tuple[Key, TensorSpec]]:
    items = spec.items(include_nested=True, leaves_only=True)
    return [(key, leaf) for key, leaf in items if leaf is not None]


def check_done_names(spec: Composite) -> None:
    """Raises a SpaceError if there are done flags without one of the usual names beside them."""
    split_keys = [split_key(key) for key in spec.keys(include_nested=True, leaves_only=True)]
    known = {prefix for prefix, name in split_keys if name in FLAGS}
    for prefix, name in split_keys:
        if prefix not in known:
            raise SpaceError(
                f"Expected a done flag named {', '.join(map(repr, FLAGS))}, got only {join_key(prefix, name)!r}. Name "
                f"it {join_key(prefix, 'done')!r}, or add that flag."
            )


def _add_missing_flags(spec: Composite) -> None:
    """Adds "done" and "terminated" beside any done flag of the spec."""
    split_keys = [split_key(key) for key in spec.keys(include_nested=True, leaves_only=True)]
    for prefix, name in split_keys:
        if name in FLAGS:
            for flag in FLAGS[:2]:
                key = join_key(prefix, flag)
                if key not in spec.keys(include_nested=True):
                    spec[key] = spec[join_key(prefix, name)].clone()
