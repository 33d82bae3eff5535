"""`Transform`: what lies between an environment and its user, or between stored data and a learner.

Seen from the environment, `in_keys` are its own entries and `out_keys` those that the user sees; `in_keys_inv` and
`out_keys_inv` are the same for what goes in. A transform says how it changes values and how it changes specs, and
knows no engine: of the environment it may ask its `parent`, which is that environment up to this transform. (Longer
than files here should be: all that a transform may say is read best in one place.)
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


class SubmoduleAttribute:
    """A submodule as an attribute that is found at once, where torch would look everywhere else before."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, class_name: Any = None) -> Any:
        return self if owner is None else owner._modules[self._name]


def owned(specs: Composite) -> Composite:
    """An unlocked copy of `specs`, with the same leaves: a transform may return what another object holds."""
    return specs._copy_with_shape(specs.shape)


class Transform(nn.Module):
    """Changes entries on their way out of an environment and into it.

    To write one, give the least of these that says it:

    - `_apply_transform(value)` and `_inv_apply_transform(value)`, where every key is treated alike; they are called at
      each step and at resets, and on stored data.
    - `_call(next_tensordict)`, for what a step gave, or `_step(tensordict, next_tensordict)`, where what went in
      matters too. Both return `next_tensordict`. Give `_reset(tensordict, tensordict_reset)` beside them for what a
      reset gave.
    - `_inv_call(tensordict)`, for what goes into a step.
    - `transform_observation_spec`, `transform_reward_spec`, `transform_done_spec`, `transform_action_spec`,
      `transform_state_spec`, each from a Composite to a Composite, or `transform_output_spec` and
      `transform_input_spec` for all at once. Without them, entries that `_apply_transform` makes have specs of the
      shape and dtype that it gives, without bounds; sizes that follow from such as are not fixed (-1) are not either.

    Args:
        in_keys: what it reads, of what comes out.
        out_keys: what it writes; `in_keys` where left out.
        in_keys_inv: what it writes, of what goes into the environment.
        out_keys_inv: what it reads of what the user gives; `in_keys_inv` where left out.

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
    """Whether done flags are never taken back, so that a batch may begin anew in the same round trip as the step."""
    elementwise = False
    """Whether each value depends on its own input alone, so that it may be applied to a whole rollout at once."""

    def __init__(
        self,
        in_keys: Any = None,
        out_keys: Any = None,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
    ):
        super().__init__()
        self._allow_missing = False
        self._container_ref: Any = None  # a weak reference: who holds a transform owns it, not the other way round
        self._cache: dict[str, Any] = {}
        self.in_keys = in_keys
        self.out_keys = out_keys
        self.in_keys_inv = in_keys_inv
        self.out_keys_inv = out_keys_inv

    # -- keys

    @property
    def in_keys(self) -> list[Key]:
        """What it reads, of what comes out of the environment."""
        return self._cached("in_keys", self._default_in_keys) if self._in_keys is None else self._in_keys

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        self._in_keys = None if keys is None else as_keys(keys)
        self._invalidate()

    @property
    def out_keys(self) -> list[Key]:
        """What it writes, for the user to see."""
        return self.in_keys if self._out_keys is None else self._out_keys

    @out_keys.setter
    def out_keys(self, keys: Any) -> None:
        self._out_keys = (
            None if keys is None else self._validate_pairs(as_keys(keys), self._in_keys, "out_keys", "in_keys")
        )
        self._invalidate()

    @property
    def in_keys_inv(self) -> list[Key]:
        """What it writes, for the environment to read."""
        return (
            self._cached("in_keys_inv", self._default_in_keys_inv) if self._in_keys_inv is None else self._in_keys_inv
        )

    @in_keys_inv.setter
    def in_keys_inv(self, keys: Any) -> None:
        self._in_keys_inv = None if keys is None else as_keys(keys)
        self._invalidate()

    @property
    def out_keys_inv(self) -> list[Key]:
        """What it reads, of what the user gives."""
        return self.in_keys_inv if self._out_keys_inv is None else self._out_keys_inv

    @out_keys_inv.setter
    def out_keys_inv(self, keys: Any) -> None:
        paired_keys = (
            None
            if keys is None
            else self._validate_pairs(as_keys(keys), self._in_keys_inv, "out_keys_inv", "in_keys_inv")
        )
        self._out_keys_inv = paired_keys
        self._invalidate()

    def _default_in_keys(self) -> list[Key]:
        """The `in_keys` where none are given; may ask the `parent`."""
        return []

    def _default_in_keys_inv(self) -> list[Key]:
        """The `in_keys_inv` where none are given; may ask the `parent`."""
        return []

    def _invalidate(self) -> None:
        """Have all that follows from its keys and values be derived anew, where it belongs too."""
        self._cache.clear()
        if (container := self.container) is not None:
            container._invalidate_specs()

    def _cached(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, kept until keys or the environment change."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    @property
    def _key_pairs(self) -> list[tuple[Key, Key]]:
        """From which key to which on the way out."""
        return self._cached("routes", lambda: list(zip(self.in_keys, self.out_keys, strict=False)))

    @property
    def _inverse_key_pairs(self) -> list[tuple[Key, Key]]:
        """From which key to which on the way in."""
        return self._cached("routes_inv", lambda: list(zip(self.out_keys_inv, self.in_keys_inv, strict=False)))

    def _validate_pairs(self, keys: list[Key], other_keys: list[Key] | None, name: str, other_name: str) -> list[Key]:
        """For transforms that write a key for each that they read."""
        if len(keys) != len(other_keys or []):
            class_name = type(self).__name__
            raise ValueError(
                f"Expected {class_name} to have a key in {name} for each in {other_name}, {other_keys}, but {keys} "
                f"came."
            )
        return keys

    # -- where it belongs

    @property
    def container(self) -> Any:
        """The `TransformedEnv` or `Compose` that holds it; None where nobody does."""
        return None if self._container_ref is None else self._container_ref()

    @property
    def parent(self) -> TransformedEnv | None:
        """The environment with the transforms before this one; None where it is in no environment."""
        container = self.container
        return None if container is None else container._parent_for(self)

    def _require_parent(self) -> TransformedEnv:
        parent = self.parent
        if parent is None:
            raise RuntimeError(f"{type(self).__name__} needs its environment for this: put it into a TransformedEnv.")
        return parent

    def set_container(self, container: Any) -> None:
        """Make it a part of `container`.

        Raises:
            AttributeError: it is a part of another already.
        """
        if self.container is not None:
            raise AttributeError(
                f"{type(self).__name__} belongs to another environment or Compose already. transform.clone() gives one "
                "that shares its buffers and belongs to nobody."
            )
        self._container_ref = weakref.ref(container)
        self.empty_cache()

    def reset_parent(self) -> None:
        """Belong to nobody."""
        self._container_ref = None
        self.empty_cache()

    def train(self, mode: bool = True) -> Self:
        """Learn from what comes, or do not (`eval()`); returns itself."""
        super().train(mode)
        if (container := self.container) is not None:
            container._clear_parents()  # they are of clones
        return self

    excluded_from_state = ("_container_ref", "_cache")

    def clone(self) -> Self:
        """One that belongs to nobody; buffers and parameters are shared, not copied."""
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
        """The outer value of an entry from its inner one."""
        raise NotImplementedError(f"{type(self).__name__} has no _apply_transform.")

    def _inv_apply_transform(self, value: Any) -> Any:
        """The inner value of an entry from its outer one."""
        raise NotImplementedError(f"{type(self).__name__} has no _inv_apply_transform.")

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """What a step gave, changed in place and returned."""
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
        """What a step gave for `tensordict`, changed in place and returned."""
        return self._call(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        """What a reset gave, changed in place and returned; `tensordict` may hold masks "_reset".

        Where `_apply_transform` says all, it is applied to what a reset gives of `in_keys`; a `_call` of one's own is
        for steps alone.
        """
        return self._call_allow_missing(tensordict_reset) if type(self)._call is Transform._call else tensordict_reset

    def _call_allow_missing(self, tensordict: TensorDictBase) -> TensorDictBase:
        allow_missing, self.__dict__["_allow_missing"] = self._allow_missing, True
        try:
            return self._call(tensordict)
        finally:
            self.__dict__["_allow_missing"] = allow_missing

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """What the environment's reset is given, before it is."""
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What goes into a step, changed in place and returned."""
        for out_key, in_key in self._inverse_key_pairs:
            value = tensordict.get(out_key, None)
            if value is not None:
                tensordict.set(in_key, self._inv_apply_transform(value))
            elif not self._allow_missing:
                raise self._missing(out_key, tensordict)
        return tensordict

    @property
    def _has_inverse(self) -> bool:
        """Whether anything happens on the way in."""
        return bool(self._inverse_key_pairs) or type(self)._inv_call is not Transform._inv_call

    @property
    def supports_rollout(self) -> bool:
        """Whether it can be applied to a whole rollout at once, by `_apply_to_rollout`."""
        return self.elementwise and self._has_no_step_hooks and type(self)._call is Transform._call

    @property
    def _has_no_step_hooks(self) -> bool:
        """Whether no class below the one that gave `_apply_to_rollout` has another `_step` or `_reset`."""
        classes = type(self).__mro__
        defining_class = next(class_name for class_name in classes if "_apply_to_rollout" in vars(class_name))
        subclasses = classes[: classes.index(defining_class)]
        return not any(
            name in vars(class_name)
            for class_name in subclasses
            for name in ("_step", "_reset", "_reset_env_preprocess")
        )

    def _apply_to_rollout(self, root: TensorDictBase, next_td: TensorDictBase, is_first: Tensor) -> None:
        """Apply it to a whole rollout, in place, with the same result as step by step.

        Args:
            root: `[*batch, time]`, what was seen before each step.
            next_td: `[*batch, time]`, what each step gave.
            is_first: `[*batch, time]` bool, the steps that begin an episode; the very first does.
        """
        self._call_allow_missing(root)
        self._call(next_td)

    _masks_actions = False
    """Whether it says, by `_mask_action_spec`, which actions may be drawn."""

    def _mask_action_spec(self, specs: Composite, tensordict: TensorDictBase) -> Composite:
        """The action specs, as they are for `tensordict`."""
        return specs

    def __call__(self, tensordict: Any) -> Any:
        """See `forward`."""
        if not is_tensor_collection(tensordict):
            raise TypeError(f"{type(self).__name__} changes TensorDicts, but {tensordict!r:.80} came.")
        return super().__call__(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Change stored data: the entries `in_keys` of the root, in place; returns it."""
        return self._call(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What the environment, or a store, gets for `tensordict`, which is left as it is."""
        return self._inv_call(tensordict.copy())

    # -- specs

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The specs of all that comes out, changed in place and returned."""
        for name in ("reward", "observation", "done"):
            key = f"full_{name}_spec"
            output_spec[key] = getattr(self, f"transform_{name}_spec")(output_spec[key])
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The specs of all that goes in, changed in place and returned."""
        for name in ("state", "action"):
            key = f"full_{name}_spec"
            input_spec[key] = getattr(self, f"transform_{name}_spec")(input_spec[key])
        return input_spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The specs of the observations, changed in place and returned."""
        return self._forward_spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The specs of the rewards, changed in place and returned."""
        return self._forward_spec(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The specs of the done flags, changed in place and returned."""
        return done_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The specs of the actions, changed in place and returned."""
        return self._inverse_spec(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The specs of other inputs, changed in place and returned."""
        return self._inverse_spec(state_spec)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of what `_apply_transform` makes of values of `spec`."""
        return infer_spec(spec, self._apply_transform)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of what `_inv_apply_transform` makes values of `spec` of."""
        return spec

    def _forward_spec(self, specs: Composite) -> Composite:
        """Of what comes out: `out_keys` by `_spec` of `in_keys`."""
        if type(self)._apply_transform is not Transform._apply_transform:
            for in_key, out_key in self._key_pairs:
                spec = specs.get(in_key, None)
                if spec is not None:
                    specs[out_key] = self._spec(spec)
        return specs

    def _inverse_spec(self, specs: Composite) -> Composite:
        """Of what goes in: `out_keys_inv` by `_inv_spec` of `in_keys_inv`, which the user does not give any more."""
        for out_key, in_key in self._inverse_key_pairs:
            spec = specs.get(in_key, None)
            if spec is not None:
                if out_key != in_key:
                    del specs[in_key]
                specs[out_key] = self._inv_spec(spec)
        return specs

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The batch size that the user sees."""
        return batch_size

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """The device that the user sees."""
        return device

    def transform_fake_tensordict(self, fake_tensordict: TensorDictBase) -> TensorDictBase:
        """The TensorDict of zeros that the environment gives."""
        return fake_tensordict

    # -- the rest

    def init(self, tensordict: TensorDictBase) -> None:
        """Take what is needed of the first data."""

    def empty_cache(self) -> None:
        """Forget what was derived from the environment."""
        self._cache.clear()

    def close(self) -> None:
        """Free what is held."""

    def dump(self, **kwargs: Any) -> None:
        """Write out what was gathered."""

    @property
    def missing_tolerance(self) -> bool:
        """Whether entries may be missing."""
        return self._allow_missing

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Let entries be missing, or not."""
        self._allow_missing = mode

    @property
    def collector(self) -> Any:
        """The collector that steps the environment, where one has registered itself."""
        container = self.container
        return None if container is None else getattr(container, "collector", None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys})"
