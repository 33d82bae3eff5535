"""`KeyedModule`: the keys, the container and the cached values of a transform.

A container is a `Compose`, which is a part itself, or a `TransformedEnv`.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from tensordict import TensorDictBase
from torch import nn

from ..entries.keys import Key
from ..entries.step_mdp import as_keys

if TYPE_CHECKING:
    from ..base import EnvBase

Keys = Key | Sequence[Key] | None
"""A key, several keys, or None for the default."""
Module = TypeVar("Module", bound=nn.Module)


class SubmoduleAttribute(Generic[Module]):
    """A descriptor for a submodule. It is found faster than by `nn.Module.__getattr__`, which torch calls last."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: nn.Module, owner: type) -> Module: ...
    def __get__(self, instance: nn.Module | None, owner: type) -> Any:
        return self if instance is None else vars(instance)["_modules"][self._name]

    if TYPE_CHECKING:  # an instance gets the attribute from `nn.Module.__setattr__`

        def __set__(self, instance: nn.Module, module: Module) -> None: ...


def overrides(cls: type, base: type, *names: str) -> bool:
    """Returns whether a class overrides any of these attributes of its base class `base`."""
    return any(getattr(cls, name) is not getattr(base, name) for name in names)


def _keys_getter(name: str) -> Callable[[KeyedModule], list[Key]]:
    attribute, default = f"_{name}", f"_default_{name}"

    def get_keys(self: KeyedModule) -> list[Key]:
        keys = getattr(self, attribute)
        return self._cached(name, getattr(self, default)) if keys is None else keys

    return get_keys


def _keys_setter(name: str) -> Callable[[KeyedModule, Keys], None]:
    attribute = f"_{name}"

    def set_keys(self: KeyedModule, keys: Keys) -> None:
        setattr(self, attribute, None if keys is None else self._validate_keys(name, as_keys(keys)))
        self._invalidate()

    return set_keys


class KeyList(property):
    """A property for keys. If they are set to None, they are the cached result of `_default_<name>`."""

    def __init__(self, name: str, doc: str):
        super().__init__(_keys_getter(name), _keys_setter(name), doc=doc)

    if TYPE_CHECKING:

        def __get__(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, part: Any, owner: type | None = None
        ) -> list[Key]: ...
        def __set__(self, part: Any, keys: Keys) -> None: ...


class KeyedModule(nn.Module):
    """A module with keys that may belong to a container. Its arguments are those of `Transform`.

    A `functools.cached_property` of a part is computed again after a change of keys or of the environment.
    """

    stored_data_only = False
    """Whether the part changes stored data only, and cannot be in an environment."""
    excluded_from_state = ("_container_ref", "_cache", "_key_pairs", "_inverse_key_pairs", "num_changes")
    num_changes = 0
    """How often an attribute was set, or a part of a container was replaced."""
    total_changes: ClassVar[int] = 0
    """The same in all parts of this process."""
    _cached_names: ClassVar[tuple[str, ...]] = ("_key_pairs", "_inverse_key_pairs")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = [name for name, value in vars(cls).items() if isinstance(value, cached_property)]
        cls._cached_names = (*cls._cached_names, *names)
        cls.excluded_from_state = (*cls.excluded_from_state, *names)

    def __init__(self, in_keys: Keys, out_keys: Keys, in_keys_inv: Keys, out_keys_inv: Keys):
        super().__init__()
        self._container_ref: Any = None  # a weak reference: the container owns the transform
        self._cache: dict[str, Any] = {}
        keys = {"in_keys": in_keys, "out_keys": out_keys, "in_keys_inv": in_keys_inv, "out_keys_inv": out_keys_inv}
        for name, value in keys.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        vars(self)["num_changes"] = self.num_changes + 1
        KeyedModule.total_changes += 1

    # -- keys

    in_keys = KeyList("in_keys", "The keys that the transform reads from the outputs of the environment.")
    out_keys = KeyList("out_keys", "The keys that the transform writes for the user.")
    in_keys_inv = KeyList("in_keys_inv", "The keys that the transform writes into the inputs of the environment.")
    out_keys_inv = KeyList("out_keys_inv", "The keys that the transform reads from the inputs given by the user.")

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

    @cached_property
    def _key_pairs(self) -> list[tuple[Key, Key]]:
        """The pairs `(in_key, out_key)` for outputs."""
        return list(zip(self.in_keys, self.out_keys, strict=False))

    @cached_property
    def _inverse_key_pairs(self) -> list[tuple[Key, Key]]:
        """The pairs `(out_key_inv, in_key_inv)` for inputs."""
        return list(zip(self.out_keys_inv, self.in_keys_inv, strict=False))

    def _missing(self, key: Key, td: TensorDictBase) -> KeyError:
        available = list(td.keys(include_nested=True, leaves_only=True))
        return KeyError(f"{type(self).__name__} expects an entry {key!r}, but there are only {available}.")

    # -- cached values

    def _cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the result of `make`, cached until keys or the environment change."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    def _clear_cache(self) -> None:
        self._cache.clear()
        self.num_changes += 1  # which counts as a change of an attribute
        for name in self._cached_names:
            self.__dict__.pop(name, None)

    def empty_cache(self) -> None:
        """Clears cached values that depend on the environment."""
        self._clear_cache()

    def _invalidate(self) -> None:
        """Clears cached values that depend on keys and values, here and in all containers."""
        for part, _ in self._ancestors():
            part._clear_cache()
        if (env := self._env) is not None:
            env.empty_cache()

    # -- container and parent

    @property
    def container(self) -> Any:
        """The `TransformedEnv` or `Compose` that owns this transform, or None."""
        return None if self._container_ref is None else self._container_ref()

    def _ancestors(self) -> Iterator[tuple[KeyedModule, Iterable[KeyedModule]]]:
        """Yields this part and each part that contains it, from the inside out, with the parts before it."""
        container: Any = self
        while isinstance(container, KeyedModule):
            part, container = container, container.container
            siblings = [*container] if isinstance(container, Iterable) else []
            yield part, siblings[: siblings.index(part)] if siblings else []

    @property
    def _env(self) -> Any:
        """The `TransformedEnv` that contains the transform, or None."""
        *_, (outermost, _) = self._ancestors()
        return outermost.container

    @property
    def parent(self) -> EnvBase | None:
        """The environment with the transforms before this one, or None if the transform is in no environment."""
        env_ref, preceding = self._cached("_place", self._find_place)
        env = None if env_ref is None else env_ref()
        return None if env is None else env._parent_with(preceding)

    def _find_place(self) -> tuple[Any, list[KeyedModule]]:
        """Returns a weak reference to the `TransformedEnv`, or None, and the transforms before this one."""
        preceding: list[KeyedModule] = []
        for _, parts in self._ancestors():
            preceding = [*parts, *preceding]
        env = self._env
        return None if env is None else weakref.ref(env), preceding

    def _require_parent(self) -> EnvBase:
        parent = self.parent
        if parent is None:
            raise RuntimeError(
                f"Expected {type(self).__name__} to be part of an environment, got one without a parent. Put it into a "
                f"TransformedEnv first."
            )
        return parent

    def set_container(self, container: Any) -> None:
        """Makes the transform a part of `container`. A part of a `Compose` without environment is removed from it.

        Raises:
            AttributeError: the transform belongs to an environment.
            ValueError: the container is in an environment, and the transform is for stored data only.
        """
        previous = self.container
        if previous is not None and self._env is not None:
            raise AttributeError(
                f"Expected {type(self).__name__} to belong to no environment, got one that already belongs to another. "
                "Use transform.clone(), which shares its buffers and has no container."
            )
        if (container._env if isinstance(container, KeyedModule) else container) is not None:
            self._check_allowed_in_environments()
        if previous is not None:
            previous.pop(list(previous).index(self))
        self._container_ref = weakref.ref(container)
        self.empty_cache()

    def _check_allowed_in_environments(self) -> None:
        for part in self.modules():
            if isinstance(part, KeyedModule) and part.stored_data_only:
                name = type(part).__name__
                raise ValueError(
                    f"Expected a transform for steps of an environment, got {name}, which needs several steps at once. "
                    f"Apply it to stored trajectories: {name}.inv before they are stored, {name} when they are read."
                )

    def reset_parent(self) -> None:
        """Removes the transform from its container."""
        self._container_ref = None
        self.empty_cache()

    def train(self, mode: bool = True) -> Self:
        """Sets whether running statistics are updated; `eval()` stops updates. Returns the transform."""
        super().train(mode)
        if (env := self._env) is not None:
            env._parents.clear()  # they hold clones of the transforms with the old mode
        return self

    @property
    def collector(self) -> Any:
        """The collector that steps the environment, if one is registered, else None."""
        container = self.container
        return None if container is None else getattr(container, "collector", None)

    # -- copies

    def clone(self) -> Self:
        """Returns a copy without a container. Buffers and parameters are shared, not copied."""
        cloned = copy.copy(self)
        for name in ("_parameters", "_buffers", "_modules"):
            vars(cloned)[name] = dict(vars(self)[name])
        return cloned

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in self._cached_names}
        return {**state, "_container_ref": None, "_cache": {}}
