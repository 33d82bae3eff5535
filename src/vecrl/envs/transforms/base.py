"""`Transform`: changes TensorDicts between an environment and its user, or between stored data and a learner.

Keys are named from the side of the environment. For outputs of the environment, `in_keys` are the keys of the
environment and `out_keys` are the keys that the user sees. For inputs, `in_keys_inv` are the keys of the environment
and `out_keys_inv` are the keys that the user sets.

A transform defines how values and specs change. It must not know the engine. It may read its `parent`: the environment
with the transforms before this one. (This file is longer than others here, because the whole interface of a transform
is easier to read in one place.)
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor, nn

from ...specs import Composite, TensorSpec
from ..spec_container import Key
from ..step_mdp import as_keys
from .spec_probe import infer_spec

if TYPE_CHECKING:
    from .transformed_env import TransformedEnv

__all__ = ["Transform"]


class SubmoduleAttribute:
    """A descriptor for a submodule. It is found faster than by `nn.Module.__getattr__`, which torch calls last."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else instance._modules[self._name]


def owned(specs: Composite) -> Composite:
    """Returns an unlocked copy of `specs` with the same leaves. Transforms may return specs of another object."""
    return specs.exclude()


def _key_list(name: str, doc: str) -> property:
    """Returns a property for keys. If they are set to None, they are the cached result of `_default_<name>`."""
    attribute, default = f"_{name}", f"_default_{name}"

    def get_keys(self: Transform) -> list[Key]:
        keys = getattr(self, attribute)
        return self._cached(name, getattr(self, default)) if keys is None else keys

    def set_keys(self: Transform, keys: Any) -> None:
        setattr(self, attribute, None if keys is None else self._validate_keys(name, as_keys(keys)))
        self._invalidate()

    return property(get_keys, set_keys, doc=doc)


class Transform(nn.Module):
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
      `transform_state_spec`: each takes a Composite and returns a Composite. `transform_output_spec` and
      `transform_input_spec` change all of them at once.

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
    """Whether each value depends only on the input of its own step, so that a rollout can be changed at once."""

    def __init__(
        self,
        in_keys: Any = None,
        out_keys: Any = None,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
    ):
        super().__init__()
        self._allow_missing = False
        self._container_ref: Any = None  # a weak reference: the container owns the transform
        self._cache: dict[str, Any] = {}
        self.in_keys = in_keys
        self.out_keys = out_keys
        self.in_keys_inv = in_keys_inv
        self.out_keys_inv = out_keys_inv

    # -- keys

    in_keys = _key_list("in_keys", "The keys that the transform reads from the outputs of the environment.")
    out_keys = _key_list("out_keys", "The keys that the transform writes for the user.")
    in_keys_inv = _key_list("in_keys_inv", "The keys that the transform writes into the inputs of the environment.")
    out_keys_inv = _key_list("out_keys_inv", "The keys that the transform reads from the inputs given by the user.")

    def _default_in_keys(self) -> list[Key]:
        """Returns the default `in_keys`, which may depend on the `parent`."""
        return []

    def _default_in_keys_inv(self) -> list[Key]:
        """Returns the default `in_keys_inv`, which may depend on the `parent`."""
        return []

    def _default_out_keys(self) -> list[Key]:
        """Returns the default `out_keys`."""
        return self.in_keys

    def _default_out_keys_inv(self) -> list[Key]:
        """Returns the default `out_keys_inv`."""
        return self.in_keys_inv

    def _invalidate(self) -> None:
        """Clears cached values that depend on keys and values, here and in the container."""
        self._cache.clear()
        if (container := self.container) is not None:
            container._invalidate_specs()

    def _cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, cached until keys or the environment change."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    @property
    def _key_pairs(self) -> list[tuple[Key, Key]]:
        """The pairs `(in_key, out_key)` for outputs."""
        return self._cached("key_pairs", lambda: list(zip(self.in_keys, self.out_keys, strict=False)))

    @property
    def _inverse_key_pairs(self) -> list[tuple[Key, Key]]:
        """The pairs `(out_key_inv, in_key_inv)` for inputs."""
        return self._cached("inverse_key_pairs", lambda: list(zip(self.out_keys_inv, self.in_keys_inv, strict=False)))

    def _validate_keys(self, name: str, keys: list[Key]) -> list[Key]:
        """Returns the keys to set as `name`: out_keys are as many as in_keys. Override it if they are not paired."""
        in_name = name.replace("out", "in")
        if name == in_name:
            return keys
        in_keys = getattr(self, f"_{in_name}")
        if len(keys) != len(in_keys or []):
            raise ValueError(
                f"Expected {type(self).__name__} to have a key in {name} for each in {in_name}, {in_keys}, got {keys}. "
                f"Give both with the same length."
            )
        return keys

    # -- container and parent

    @property
    def container(self) -> Any:
        """The `TransformedEnv` or `Compose` that owns this transform, or None."""
        return None if self._container_ref is None else self._container_ref()

    @property
    def parent(self) -> TransformedEnv | None:
        """The environment with the transforms before this one, or None if the transform is in no environment."""
        container = self.container
        return None if container is None else container._parent_for(self)

    def _require_parent(self) -> TransformedEnv:
        parent = self.parent
        if parent is None:
            raise RuntimeError(
                f"Expected {type(self).__name__} to be part of an environment, got one without a parent. Put it into a "
                f"TransformedEnv first."
            )
        return parent

    def set_container(self, container: Any) -> None:
        """Makes the transform a part of `container`.

        Raises:
            AttributeError: the transform already has a container.
        """
        if self.container is not None:
            raise AttributeError(
                f"Expected {type(self).__name__} to have no container, got one that already belongs to another "
                "environment or Compose. Use transform.clone(), which shares its buffers and has no container."
            )
        self._container_ref = weakref.ref(container)
        self.empty_cache()

    def reset_parent(self) -> None:
        """Removes the transform from its container."""
        self._container_ref = None
        self.empty_cache()

    def train(self, mode: bool = True) -> Self:
        """Sets whether running statistics are updated; `eval()` stops updates. Returns the transform."""
        super().train(mode)
        if (container := self.container) is not None:
            container._clear_parents()  # they hold clones of the transforms with the old mode
        return self

    excluded_from_state = ("_container_ref", "_cache")

    def clone(self) -> Self:
        """Returns a copy without a container. Buffers and parameters are shared, not copied."""
        cloned = copy.copy(self)
        for name in ("_parameters", "_buffers", "_modules"):
            cloned.__dict__[name] = dict(self.__dict__[name])
        cloned._container_ref = None
        cloned._cache = {}
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_container_ref": None, "_cache": {}}

    # -- values

    def _apply_transform(self, value: Any) -> Any:
        """Returns the value that the user sees for a value of the environment."""
        raise NotImplementedError(f"{type(self).__name__} has no _apply_transform.")

    def _inv_apply_transform(self, value: Any) -> Any:
        """Returns the value that the environment gets for a value given by the user."""
        raise NotImplementedError(f"{type(self).__name__} has no _inv_apply_transform.")

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the output of a step in place and returns it."""
        for in_key, out_key in self._key_pairs:
            value = next_tensordict.get(in_key, None)
            if value is not None:
                next_tensordict.set(out_key, self._apply_transform(value))
            elif not self._allow_missing:
                raise self._missing(in_key, next_tensordict)
        return next_tensordict

    def _missing(self, key: Key, td: TensorDictBase) -> KeyError:
        available = list(td.keys(include_nested=True, leaves_only=True))
        return KeyError(f"{type(self).__name__} expects an entry {key!r}, but there are only {available}.")

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the output of a step from `tensordict` in place and returns it."""
        return self._call(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        """Changes the output of a reset in place and returns it.

        By default `_apply_transform` is applied to the `in_keys` that the reset returned. If a class overrides `_call`,
        the default changes nothing, because `_call` is for steps.

        Args:
            tensordict: the input of the reset; it may contain masks "_reset".
            tensordict_reset: the output of the reset.
        """
        return self._call_allow_missing(tensordict_reset) if type(self)._call is Transform._call else tensordict_reset

    def _call_allow_missing(self, tensordict: TensorDictBase) -> TensorDictBase:
        allow_missing, self.__dict__["_allow_missing"] = self._allow_missing, True
        try:
            return self._call(tensordict)
        finally:
            self.__dict__["_allow_missing"] = allow_missing

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """Returns the input for the reset of the environment. Called before that reset."""
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the input of a step in place and returns it."""
        for out_key, in_key in self._inverse_key_pairs:
            value = tensordict.get(out_key, None)
            if value is not None:
                tensordict.set(in_key, self._inv_apply_transform(value))
            elif not self._allow_missing:
                raise self._missing(out_key, tensordict)
        return tensordict

    @property
    def _has_inverse(self) -> bool:
        """Whether the transform changes inputs."""
        return bool(self._inverse_key_pairs) or type(self)._inv_call is not Transform._inv_call

    @property
    def supports_rollout(self) -> bool:
        """Whether the transform can be applied to a whole rollout at once, by `_apply_to_rollout`."""
        return self.elementwise and self._has_no_step_hooks and type(self)._call is Transform._call

    @property
    def _has_no_step_hooks(self) -> bool:
        """Whether no subclass of the class that defines `_apply_to_rollout` overrides `_step` or a reset method."""
        classes = type(self).__mro__
        defining_class = next(cls for cls in classes if "_apply_to_rollout" in vars(cls))
        subclasses = classes[: classes.index(defining_class)]
        return not any(name in vars(cls) for cls in subclasses for name in ("_step", "_reset", "_reset_env_preprocess"))

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        """Applies the transform to a whole rollout in place. The result is the same as step by step.

        Args:
            root: `[*batch, time]`, the TensorDicts before each step.
            next_td: `[*batch, time]`, the output of each step.
            is_first: `[*batch, time]` bool, True for the first step of each episode, and always for the first step of
                the rollout.
        """
        self._call_allow_missing(root)
        self._call(next_td)

    _masks_actions = False
    """Whether `_mask_action_spec` limits which actions are sampled."""

    def _mask_action_spec(self, tensordict: TensorDictBase, specs: Composite) -> Composite:
        """Returns the action specs with the masks in `tensordict` applied."""
        return specs

    def __call__(self, tensordict: Any) -> Any:
        """Changes stored data by `forward`, and checks that it is a TensorDict."""
        if not is_tensor_collection(tensordict):
            raise TypeError(
                f"Expected a TensorDict as input of {type(self).__name__}, got {tensordict!r:.80}. Put it into a "
                f"TensorDict."
            )
        return super().__call__(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Changes the entries `in_keys` of stored data in place and returns it."""
        return self._call(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the input of the environment, or the data to store, for `tensordict`, which is not changed."""
        return self._inv_call(tensordict.copy())

    # -- specs

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Changes the specs of all outputs in place and returns them."""
        for name in ("reward", "observation", "done"):
            key = f"full_{name}_spec"
            output_spec[key] = getattr(self, f"transform_{name}_spec")(output_spec[key])
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Changes the specs of all inputs in place and returns them."""
        for name in ("state", "action"):
            key = f"full_{name}_spec"
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

    def _forward_spec(self, specs: Composite) -> Composite:
        """Sets the specs of `out_keys` to `_spec` of those of `in_keys`, in place, and returns the specs."""
        if type(self)._apply_transform is not Transform._apply_transform:
            for in_key, out_key in self._key_pairs:
                spec = specs.get(in_key, None)
                if spec is not None:
                    specs[out_key] = self._spec(spec)
        return specs

    def _inverse_spec(self, specs: Composite) -> Composite:
        """Replaces the entries `in_keys_inv` by `out_keys_inv`, with specs from `_inv_spec`, and returns the specs."""
        for out_key, in_key in self._inverse_key_pairs:
            spec = specs.get(in_key, None)
            if spec is not None:
                if out_key != in_key:
                    del specs[in_key]
                specs[out_key] = self._inv_spec(spec)
        return specs

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

    def empty_cache(self) -> None:
        """Clears cached values that depend on the environment."""
        self._cache.clear()

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

    @property
    def collector(self) -> Any:
        """The collector that steps the environment, if one is registered, else None."""
        container = self.container
        return None if container is None else getattr(container, "collector", None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys})"
