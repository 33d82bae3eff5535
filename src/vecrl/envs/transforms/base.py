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
from ..owner import Key
from ..successor import as_keys
from .trying import inferred

if TYPE_CHECKING:
    from .env import TransformedEnv


class Part:
    """A submodule as an attribute that is found at once, where torch would look everywhere else before."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else owner._modules[self._name]


def owned(specs: Composite) -> Composite:
    """An unlocked copy of `specs`, with the same leaves: a transform may return what another object holds."""
    return specs._copied(specs.shape)


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

    keeps_done = False
    """Whether done flags are never taken back, so that a batch may begin anew in the same round trip as the step."""
    pointwise = False
    """Whether each value depends on its own input alone, so that it may be applied to a whole rollout at once."""

    def __init__(
        self,
        in_keys: Any = None,
        out_keys: Any = None,
        in_keys_inv: Any = None,
        out_keys_inv: Any = None,
    ):
        super().__init__()
        self._tolerant = False
        self._holder: Any = None  # a weak reference: who holds a transform owns it, not the other way round
        self._derived: dict[str, Any] = {}
        self.in_keys = in_keys
        self.out_keys = out_keys
        self.in_keys_inv = in_keys_inv
        self.out_keys_inv = out_keys_inv

    # -- keys

    @property
    def in_keys(self) -> list[Key]:
        """What it reads, of what comes out of the environment."""
        return self._once("in_keys", self._default_in_keys) if self._in_keys is None else self._in_keys

    @in_keys.setter
    def in_keys(self, keys: Any) -> None:
        self._in_keys = None if keys is None else as_keys(keys)
        self._tell()

    @property
    def out_keys(self) -> list[Key]:
        """What it writes, for the user to see."""
        return self.in_keys if self._out_keys is None else self._out_keys

    @out_keys.setter
    def out_keys(self, keys: Any) -> None:
        self._out_keys = None if keys is None else self._paired(as_keys(keys), self._in_keys, "out_keys", "in_keys")
        self._tell()

    @property
    def in_keys_inv(self) -> list[Key]:
        """What it writes, for the environment to read."""
        return self._once("in_keys_inv", self._default_in_keys_inv) if self._in_keys_inv is None else self._in_keys_inv

    @in_keys_inv.setter
    def in_keys_inv(self, keys: Any) -> None:
        self._in_keys_inv = None if keys is None else as_keys(keys)
        self._tell()

    @property
    def out_keys_inv(self) -> list[Key]:
        """What it reads, of what the user gives."""
        return self.in_keys_inv if self._out_keys_inv is None else self._out_keys_inv

    @out_keys_inv.setter
    def out_keys_inv(self, keys: Any) -> None:
        paired = None if keys is None else self._paired(as_keys(keys), self._in_keys_inv, "out_keys_inv", "in_keys_inv")
        self._out_keys_inv = paired
        self._tell()

    def _default_in_keys(self) -> list[Key]:
        """The `in_keys` where none are given; may ask the `parent`."""
        return []

    def _default_in_keys_inv(self) -> list[Key]:
        """The `in_keys_inv` where none are given; may ask the `parent`."""
        return []

    def _tell(self) -> None:
        """Have all that follows from its keys and values be derived anew, where it belongs too."""
        self._derived.clear()
        if (holder := self.container) is not None:
            holder._changed()

    def _once(self, name: str, derive: Callable[[], Any]) -> Any:
        """What `derive` gives, kept until keys or the environment change."""
        if name not in self._derived:
            self._derived[name] = derive()
        return self._derived[name]

    @property
    def _routes(self) -> list[tuple[Key, Key]]:
        """From which key to which on the way out."""
        return self._once("routes", lambda: list(zip(self.in_keys, self.out_keys, strict=False)))

    @property
    def _routes_inv(self) -> list[tuple[Key, Key]]:
        """From which key to which on the way in."""
        return self._once("routes_inv", lambda: list(zip(self.out_keys_inv, self.in_keys_inv, strict=False)))

    def _paired(self, keys: list[Key], others: list[Key] | None, name: str, other: str) -> list[Key]:
        """For transforms that write a key for each that they read."""
        if len(keys) != len(others or []):
            kind = type(self).__name__
            raise ValueError(f"Expected {kind} to have a key in {name} for each in {other}, {others}, but {keys} came.")
        return keys

    # -- where it belongs

    @property
    def container(self) -> Any:
        """The `TransformedEnv` or `Compose` that holds it; None where nobody does."""
        return None if self._holder is None else self._holder()

    @property
    def parent(self) -> TransformedEnv | None:
        """The environment with the transforms before this one; None where it is in no environment."""
        holder = self.container
        return None if holder is None else holder._up_to(self)

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
        self._holder = weakref.ref(container)
        self.empty_cache()

    def reset_parent(self) -> None:
        """Belong to nobody."""
        self._holder = None
        self.empty_cache()

    def train(self, mode: bool = True) -> Self:
        """Learn from what comes, or do not (`eval()`); returns itself."""
        super().train(mode)
        if (holder := self.container) is not None:
            holder._forget_parents()  # they are of clones
        return self

    not_state = ("_holder", "_derived")

    def clone(self) -> Self:
        """One that belongs to nobody; buffers and parameters are shared, not copied."""
        new = copy.copy(self)
        for name in ("_parameters", "_buffers", "_modules"):
            new.__dict__[name] = dict(self.__dict__[name])
        new._holder = None
        new._derived = {}
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_holder": None, "_derived": {}}

    # -- values

    def _apply_transform(self, value: Any) -> Any:
        """The outer value of an entry from its inner one."""
        raise NotImplementedError(f"{type(self).__name__} has no _apply_transform.")

    def _inv_apply_transform(self, value: Any) -> Any:
        """The inner value of an entry from its outer one."""
        raise NotImplementedError(f"{type(self).__name__} has no _inv_apply_transform.")

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """What a step gave, changed in place and returned."""
        for in_key, out_key in self._routes:
            value = next_tensordict.get(in_key, None)
            if value is not None:
                next_tensordict.set(out_key, self._apply_transform(value))
            elif not self._tolerant:
                raise self._missing(in_key, next_tensordict)
        return next_tensordict

    def _missing(self, key: Key, td: TensorDictBase) -> KeyError:
        there = list(td.keys(include_nested=True, leaves_only=True))
        return KeyError(f"{type(self).__name__} expects an entry {key!r}, but there are only {there}.")

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """What a step gave for `tensordict`, changed in place and returned."""
        return self._call(next_tensordict)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        """What a reset gave, changed in place and returned; `tensordict` may hold masks "_reset".

        Where `_apply_transform` says all, it is applied to what a reset gives of `in_keys`; a `_call` of one's own is
        for steps alone.
        """
        return self._call_tolerant(tensordict_reset) if type(self)._call is Transform._call else tensordict_reset

    def _call_tolerant(self, tensordict: TensorDictBase) -> TensorDictBase:
        tolerant, self.__dict__["_tolerant"] = self._tolerant, True
        try:
            return self._call(tensordict)
        finally:
            self.__dict__["_tolerant"] = tolerant

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        """What the environment's reset is given, before it is."""
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What goes into a step, changed in place and returned."""
        for out_key, in_key in self._routes_inv:
            value = tensordict.get(out_key, None)
            if value is not None:
                tensordict.set(in_key, self._inv_apply_transform(value))
            elif not self._tolerant:
                raise self._missing(out_key, tensordict)
        return tensordict

    @property
    def _inverts(self) -> bool:
        """Whether anything happens on the way in."""
        return bool(self._routes_inv) or type(self)._inv_call is not Transform._inv_call

    @property
    def _unrolls(self) -> bool:
        """Whether it can be applied to a whole rollout at once, by `_unroll`."""
        return self.pointwise and self._unroll_counts and type(self)._call is Transform._call

    @property
    def _unroll_counts(self) -> bool:
        """Whether no class below the one that gave `_unroll` has another `_step` or `_reset`."""
        kinds = type(self).__mro__
        given = next(kind for kind in kinds if "_unroll" in vars(kind))
        below = kinds[: kinds.index(given)]
        return not any(name in vars(kind) for kind in below for name in ("_step", "_reset", "_reset_env_preprocess"))

    def _unroll(self, roots: TensorDictBase, following: TensorDictBase, first: Tensor) -> None:
        """Apply it to a whole rollout, in place, with the same result as step by step.

        Args:
            roots: `[*batch, time]`, what was seen before each step.
            following: `[*batch, time]`, what each step gave.
            first: `[*batch, time]` bool, the steps that begin an episode; the very first does.
        """
        self._call_tolerant(roots)
        self._call(following)

    _restricts = False
    """Whether it says, by `_allowed`, which actions may be drawn."""

    def _allowed(self, specs: Composite, tensordict: TensorDictBase) -> Composite:
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
        return self._seen(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The specs of the rewards, changed in place and returned."""
        return self._seen(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The specs of the done flags, changed in place and returned."""
        return done_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The specs of the actions, changed in place and returned."""
        return self._meant(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The specs of other inputs, changed in place and returned."""
        return self._meant(state_spec)

    def _spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of what `_apply_transform` makes of values of `spec`."""
        return inferred(spec, self._apply_transform)

    def _inv_spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of what `_inv_apply_transform` makes values of `spec` of."""
        return spec

    def _seen(self, specs: Composite) -> Composite:
        """Of what comes out: `out_keys` by `_spec` of `in_keys`."""
        if type(self)._apply_transform is not Transform._apply_transform:
            for in_key, out_key in self._routes:
                spec = specs.get(in_key, None)
                if spec is not None:
                    specs[out_key] = self._spec(spec)
        return specs

    def _meant(self, specs: Composite) -> Composite:
        """Of what goes in: `out_keys_inv` by `_inv_spec` of `in_keys_inv`, which the user does not give any more."""
        for out_key, in_key in self._routes_inv:
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
        self._derived.clear()

    def close(self) -> None:
        """Free what is held."""

    def dump(self, **kwargs: Any) -> None:
        """Write out what was gathered."""

    @property
    def missing_tolerance(self) -> bool:
        """Whether entries may be missing."""
        return self._tolerant

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Let entries be missing, or not."""
        self._tolerant = mode

    @property
    def collector(self) -> Any:
        """The collector that steps the environment, where one has registered itself."""
        holder = self.container
        return None if holder is None else getattr(holder, "collector", None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys})"
