"""`Composite`: specs under keys, as a TensorDict holds values under keys; its keys, its lock and its values."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import EllipsisType
from typing import Any, Self, TypeGuard, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from ..errors import LockedError, SpaceError
from .base import Device, TensorSpec, as_device, foreign_spec_hint
from .shape_methods import rearrange_batch
from .shape_ops import Names, ShapeLike, ShapeOp, as_size, concrete, shape_matches

Key = str | tuple[str, ...]
IsLeaf = Callable[[type], bool]
MISSING: Any = object()
Entries = Mapping[Any, Any]
"""Keys (names, or tuples of names) and their specs, mappings of specs, or None."""
M = TypeVar("M", bound="SpecMapping")


class SpecLock:
    """The base of specs that can be locked together with those nested in them."""

    _locked = False
    _locks_nested = False
    _outer_specs: tuple[weakref.ref[SpecLock], ...] = ()
    """The specs that were locked with this one nested in them. They are not part of copies and pickles."""

    def _nested(self) -> Sequence[SpecLock]:
        """Returns the nested specs that are locked with this one."""
        raise NotImplementedError

    @property
    def is_locked(self) -> bool:
        """Whether entries cannot be changed. Setting it locks or unlocks the Composite."""
        return self._locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        self.lock_() if value else self.unlock_()

    @property
    def locked(self) -> bool:
        """The same as `is_locked`."""
        return self.is_locked

    def lock_(self, recurse: bool | None = None) -> Self:
        """Locks this Composite: changes of entries raise a `LockedError`.

        Args:
            recurse: whether to lock nested ones too (the default).

        Returns:
            self.
        """
        self._locked, self._locks_nested = True, recurse is not False
        for nested in self._nested() if self._locks_nested else ():
            nested._outer_specs = tuple(weakref.ref(outer) for outer in (*nested._locked_outer_specs(self), self))
            nested.lock_()
        return self

    def unlock_(self, recurse: bool | None = None) -> Self:
        """Unlocks this Composite and returns self.

        Args:
            recurse: whether to unlock nested ones too (the default).

        Has no effect on a Composite that is not locked: nested ones that were locked before they were set stay locked.
        Those that are nested in another locked Composite too stay locked as well.

        Raises:
            LockedError: this Composite is nested in one that is locked.
        """
        if self._locked_outer_specs():
            raise LockedError(
                "Expected the outermost Composite to unlock, got one that is part of a locked one. Call unlock_() of "
                "the outermost, or change a clone()."
            )
        if self.is_locked:
            self._locked = False
            for nested in () if recurse is False else self._nested():
                if not nested._locked_outer_specs():
                    nested.unlock_()
        return self

    def _locked_outer_specs(self, excluded: SpecLock | None = None) -> list[SpecLock]:
        """Returns the locked specs that this one is nested in, without `excluded`."""
        outer_specs = [outer for reference in self._outer_specs if (outer := reference()) is not None]
        return [
            outer
            for outer in outer_specs
            if outer is not excluded and outer._locked and outer._locks_nested
            if any(nested is self for nested in outer._nested())
        ]

    def _require_unlocked(self, subject: str) -> None:
        if self.is_locked:
            raise LockedError(
                f"Expected an unlocked Composite for a change of {subject}, got a locked one. Call unlock_() first."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_outer_specs"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._locked:
            self.lock_(self._locks_nested)


def key_path(key: object) -> tuple[str, ...]:
    """Converts a key or a nested tuple of keys to a flat tuple of names."""
    if isinstance(key, str):
        return (key,)
    if isinstance(key, tuple) and key:
        if all(isinstance(part, str) for part in key):  # pyright: ignore[reportUnknownVariableType]
            return key  # pyright: ignore[reportUnknownVariableType]
        return tuple(name for part in key for name in key_path(part))  # pyright: ignore[reportUnknownVariableType]
    raise SpaceError(f"Expected a key (a name, or a tuple of names), got {key!r}.")


class SpecView:
    """A live view of a tree of specs: `pairs` returns its keys and specs, and is called for each iteration."""

    def __init__(self, pairs: Callable[[], Iterator[tuple[Key, TensorSpec | None]]]):
        self._pairs = pairs

    def __iter__(self) -> Iterator[Any]:
        return self._pairs()

    def __len__(self) -> int:
        return sum(1 for _ in self._pairs())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class SpecKeys(SpecView):
    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self._pairs())

    def __contains__(self, key: object) -> bool:
        try:
            path = key_path(key)
        except SpaceError:  # no key
            return False
        key = path[0] if len(path) == 1 else path
        return any(key == own_key for own_key in self)

    def __eq__(self, other: object) -> bool:
        return set(self) == set(other) if isinstance(other, SpecKeys | set | frozenset) else NotImplemented  # pyright: ignore[reportUnknownArgumentType]

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class SpecItems(SpecView):
    def __iter__(self) -> Iterator[tuple[Key, TensorSpec | None]]:
        return self._pairs()


class SpecValues(SpecView):
    def __iter__(self) -> Iterator[TensorSpec | None]:
        return (spec for _, spec in self._pairs())


def entries_of(spec: SpecMapping) -> Mapping[str, TensorSpec | None]:
    """Returns the entries at the root of `spec`."""
    return spec._entries()


def copy_with_shape(spec: M, shape: torch.Size, device: torch.device | None) -> M:
    """Copies a tree of specs, unlocked and with the same leaves.

    Args:
        spec: the tree.
        shape: the batch shape of the copy.
        device: of the copy; None for that of `spec`.
    """
    return spec._copy_with_shape(shape, device)


class SpecMapping(SpecLock, TensorSpec):
    """Specs under keys, with shapes that begin with a common batch shape."""

    step_mdp_static: bool
    _specs: dict[str, TensorSpec | None]

    def empty(self) -> Self:
        """Returns a mapping without entries, of the same batch shape, device and names."""
        raise NotImplementedError

    def _copy_with_shape(self, shape: torch.Size, device: torch.device | None = None) -> Self:
        """Implements the function `copy_with_shape`."""
        raise NotImplementedError

    def _empty_like(self, specs: Entries) -> SpecMapping:
        """Returns a mapping of `specs` with the batch shape and device of this one."""
        raise NotImplementedError

    def _entries(self) -> dict[str, TensorSpec | None]:
        """The entries at the root."""
        return self._specs

    def _set_entry(self, name: str, spec: TensorSpec | None) -> None:
        self._specs[name] = spec

    def _delete_entry(self, name: str) -> None:
        del self._specs[name]

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: IsLeaf | None = None,
        step_mdp_static_only: bool = False,
    ) -> SpecKeys:
        """Returns a live view of the keys.

        Args:
            include_nested: include the entries of nested Composites, under tuples of keys.
            leaves_only: exclude the nested Composites themselves.
            is_leaf: returns whether the specs of a class are leaves; None for all except Composites.
            step_mdp_static_only: treat nested Composites with `step_mdp_static` as leaves, and return no keys of a
                Composite that has it itself.
        """
        return SpecKeys(partial(_walk, self, include_nested, leaves_only, is_leaf, step_mdp_static_only))

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: IsLeaf | None = None,
        step_mdp_static_only: bool = False,
    ) -> SpecItems:
        """Returns a live view of the pairs of keys and specs; `keys` documents the arguments."""
        return SpecItems(partial(_walk, self, include_nested, leaves_only, is_leaf, step_mdp_static_only))

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: IsLeaf | None = None,
        step_mdp_static_only: bool = False,
    ) -> SpecValues:
        """Returns a live view of the specs; `keys` documents the arguments."""
        return SpecValues(partial(_walk, self, include_nested, leaves_only, is_leaf, step_mdp_static_only))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __contains__(self, key: object) -> bool:
        sentinel = object()
        return self.get(key, sentinel) is not sentinel

    def get(self, item: object, default: object = MISSING) -> Any:
        """Returns the entry under a key or a tuple of keys.

        Raises:
            KeyError: the key is missing and no default is given.
        """
        spec: Any = self
        for name in key_path(item):
            entries = entries_of(spec) if isinstance(spec, SpecMapping) else {}
            if name not in entries:
                if default is not MISSING:
                    return default
                raise KeyError(f"Expected a key of the Composite, {list(self.keys(True, True))}, got {item!r}.")
            spec = entries[name]
        return spec

    def __getitem__(self, index: object) -> Any:
        """Returns the entry under a key (or tuple of keys), or the spec indexed along the batch dimensions."""
        if isinstance(index, str) or (isinstance(index, tuple) and any(isinstance(part, str) for part in index)):  # pyright: ignore[reportUnknownVariableType]
            return self.get(index)
        return super().__getitem__(index)

    def set(self, name: object, spec: object) -> Self:
        """Sets `spec` (a spec, a mapping of specs or None) under a key or a tuple of keys, and returns self."""
        first_name, *rest_names = key_path(name)
        nested = self._entries().get(first_name) if rest_names else None
        if not isinstance(nested, SpecMapping):
            self._require_unlocked(f"{name!r}")
        if rest_names:
            if not isinstance(nested, SpecMapping):
                nested = self._empty_like({})
                self._set_entry(first_name, nested)
            nested.set(tuple(rest_names), spec)
        else:
            self._set_entry(first_name, self._validated_entry(first_name, spec))
        return self

    def __setitem__(self, key: object, value: object) -> None:
        self.set(key, value)

    def _validated_entry(self, name: str, spec: object) -> TensorSpec | None:
        """Returns `spec` as an entry for `name`: checked, mappings and batch shapes converted."""
        if spec is None:
            return None
        if isinstance(spec, Mapping):
            spec = self._empty_like(spec)
        if not isinstance(spec, TensorSpec):
            actual = type(spec).__name__ if foreign_spec_hint(spec) else f"{spec!r:.80}"
            raise SpaceError(
                f"Expected a spec, a mapping of specs or None at {name!r}, got {actual}{foreign_spec_hint(spec)}."
            )
        if self.device is not None and spec.device not in (None, self.device):
            raise SpaceError(
                f"Expected a spec on {self.device} at {name!r}, the device of the Composite, got one on {spec.device}. "
                f"Move it with spec.to({str(self.device)!r})."
            )
        has_batch_shape = spec.shape[: self.ndim] == self.shape
        if isinstance(spec, SpecMapping):
            if spec is self or any(part is self for part in spec.values(True)):
                raise SpaceError(
                    f"Expected another Composite at {name!r}, got one that would contain itself. Set its clone()."
                )
            same = has_batch_shape and self.device in (None, spec.device)
            return spec if same else copy_with_shape(spec, spec.shape if has_batch_shape else self.shape, self.device)
        if not has_batch_shape:
            raise SpaceError(
                f"Expected a spec with a shape that begins with {tuple(self.shape)} at {name!r}, the batch shape of "
                f"the Composite, got shape {tuple(spec.shape)}. Add the batch with "
                "spec.expand(*batch_shape, *spec.shape)."
            )
        return spec if spec.device is not None else spec.to(self.device)

    def update(self, dict_or_spec: SpecMapping | Entries) -> Self:
        """Sets all entries of another mapping, nested ones entry by entry, and returns self."""
        for key, spec in dict_or_spec.items():
            existing = self.get(key, None)
            if isinstance(existing, SpecMapping) and isinstance(spec, SpecMapping | Mapping):
                existing.update(spec)
            else:
                self.set(key, spec)
        return self

    def pop(self, key: object, default: object = MISSING) -> Any:
        """Removes an entry and returns it; returns `default`, or raises a KeyError without one, if it is missing."""
        *parent_path, name = key_path(key)
        parent = self.get(tuple(parent_path), None) if parent_path else self
        (parent if isinstance(parent, SpecMapping) else self)._require_unlocked(f"{key!r}")
        spec = self.get(key, default)
        if parent is not self and isinstance(parent, SpecMapping):
            parent.pop(name, None)
        elif parent is self and name in self._entries():
            self._delete_entry(name)
        return spec

    def __delitem__(self, key: object) -> None:
        self.pop(key)

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there are no entries; with `recurse`, no leaves."""
        if not recurse:
            return not self._entries()
        return all(isinstance(spec, SpecMapping) and spec.is_empty(True) for spec in self._entries().values())

    def select(self, *keys: Key, strict: bool = True) -> Self:
        """Returns a Composite with these entries only; with `strict`, raises a KeyError if one is missing."""
        selected = self.empty()
        for key in keys:
            spec = self.get(key, MISSING if strict else None)
            if spec is not None or key in self:
                path = key_path(key)
                for group in (path[:length] for length in range(1, len(path))):
                    if group not in selected:
                        selected.set(group, self[group].empty())
                selected.set(key, spec.exclude() if isinstance(spec, SpecMapping) else spec)
        return selected

    def exclude(self, *keys: Key) -> Self:
        """Returns an unlocked copy without these entries, which has the same leaves."""
        remaining = self._copy_with_shape(self.shape)
        for key in keys:
            remaining.pop(key, None)
        return remaining

    def flatten_keys(self, separator: str = ".") -> Self:
        """Returns a Composite with all leaves at the root, under their keys joined by `separator`.

        Raises:
            SpaceError: two joined keys are equal.
        """
        flat = self.empty()
        for key, spec in self.items(True, True):
            name = separator.join(key_path(key))
            if name in flat:
                raise SpaceError(f"Expected unique keys, got {name!r} for two entries. Use another separator.")
            flat.set(name, spec)
        return flat

    def unflatten_keys(self, separator: str = ".") -> Self:
        """Returns the nested Composite: the inverse of `flatten_keys`."""
        nested = self.empty()
        for key, spec in self.exclude().items():
            nested.set(tuple(str(key).split(separator)), spec)
        return nested

    def separates(self, *keys: Key, default: object = None) -> Any:
        """Moves these entries from this Composite to a new one, which is returned.

        Missing entries are ignored; if all are missing, `default` is returned. Nested Composites that become empty are
        removed.
        """
        separated = self.empty()
        for key in keys:
            spec = self.pop(key) if key in self else MISSING
            if spec is MISSING:
                continue
            separated.set(key, spec)
            parent_path = key_path(key)[:-1]
            while parent_path and self.get(parent_path).is_empty():
                self.pop(parent_path)
                parent_path = parent_path[:-1]
        return default if separated.is_empty() else separated

    def _nested(self) -> Sequence[SpecMapping]:
        """Returns the nested Composites that are locked with this one."""
        return [spec for spec in self._entries().values() if isinstance(spec, SpecMapping)]


def _walk(
    tree: SpecMapping,
    include_nested: bool,
    leaves_only: bool,
    is_leaf: IsLeaf | None,
    static_only: bool,
    path: tuple[str, ...] = (),
) -> Iterator[tuple[Key, TensorSpec | None]]:
    if static_only and tree.step_mdp_static:
        return
    for name, spec in entries_of(tree).items():
        nested = spec if isinstance(spec, SpecMapping) else None
        branch = None if nested is None or (is_leaf and is_leaf(type(nested))) else nested
        if branch is not None and static_only and branch.step_mdp_static:
            branch = None
        if branch is not None and include_nested:
            yield from _walk(branch, include_nested, leaves_only, is_leaf, static_only, (*path, name))
        if branch is None or not leaves_only:
            yield (*path, name) if path else name, spec


class Composite(SpecMapping):
    """Specs under keys; the spec of a TensorDict.

    The shapes of all entries begin with the batch shape. Entries are not copied: `outer["inner"]` is the same object as
    the Composite that was set, so changes, masks and locks apply to both. A nested Composite is copied only if it has a
    shorter batch shape or another device; the copy has those of the outer one. An entry of None declares a key with an
    unknown spec: it is neither drawn nor checked.

    Args:
        specs: a mapping of names (or tuples of names) to specs; also as keywords.
        shape: the batch shape; () by default.
        device: of all entries; None if it is not declared, so that entries may have different devices.
        data_cls: the class of the values, for instance a tensorclass; TensorDict by default.
        step_mdp_static: whether the entries stay the same from step to step.
        names: of the batch dimensions.

    Raises:
        SpaceError: the shape of an entry does not begin with the batch shape, or an entry has another device.
        LockedError: an entry or the shape is changed while the Composite is locked.

    >>> from vecrl.specs import Binary, Bounded
    >>> spec = Composite({"obs": Bounded(-1, 1, (4, 3)), ("agent", "alive"): Binary(shape=(4,))}, shape=(4,))
    >>> spec["agent", "alive"].shape, list(spec.keys(include_nested=True, leaves_only=True))
    (torch.Size([4]), ['obs', ('agent', 'alive')])
    >>> row = spec[0]
    >>> row.get("obs").shape, row.rand().batch_size, spec.is_in(spec.zero())
    (torch.Size([3]), torch.Size([]), True)
    """

    dtype = None

    def __init__(
        self,
        specs: Entries | None = None,
        /,
        *,
        shape: ShapeLike | None = None,
        device: Device = None,
        data_cls: type | None = None,
        step_mdp_static: bool = False,
        names: Sequence[str | None] | None = None,
        **kwargs: TensorSpec | Entries | None,
    ):
        if not isinstance(specs, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            actual = type(specs).__name__ if foreign_spec_hint(specs) else f"{specs!r:.80}"
            raise SpaceError(f"Expected a mapping of keys to specs, got {actual}{foreign_spec_hint(specs)}.")
        self._shape = as_size(() if shape is None else shape)
        self._device = None if device is None else as_device(device)
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        self._names: Names = _validate_names(names, self.ndim)
        self._specs: dict[str, TensorSpec | None] = {}
        for key, spec in {**(specs or {}), **kwargs}.items():
            self.set(key, spec)

    def _set_entry(self, name: str, spec: TensorSpec | None) -> None:
        super()._set_entry(name, spec)
        _pass_names(self._names, spec)

    # -- shape, device and names

    @property
    def shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The batch shape. Setting it checks that the shapes of all entries begin with it."""
        return self._shape

    @shape.setter
    def shape(self, shape: ShapeLike) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._require_unlocked("its shape")
        shape = as_size(shape)
        fitting = entries_of(Composite(self._entries(), shape=shape, device=self.device))
        for name, spec in self._specs.items():
            if spec is not fitting[name] and type(spec) is Composite:
                spec.shape = shape
            else:
                self._specs[name] = fitting[name]
        self._shape = shape
        self._names = [*self._names, *[None] * len(shape)][: len(shape)]

    @property
    def batch_size(self) -> torch.Size:
        """The same as `shape`."""
        return self.shape

    @property
    def device(self) -> torch.device | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._device

    @property
    def names(self) -> Names:
        """The names of the batch dimensions, None for one without a name. Nested Composites get them too."""
        return list(self._names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        self._names = _validate_names(names, self.ndim)
        for spec in self._entries().values():
            _pass_names(self._names, spec)

    def refine_names(self, *names: str | EllipsisType | None) -> Self:
        """Names dimensions that have no name and returns self; `...` stands for dimensions that do not change."""
        num_missing = self.ndim - (len(names) - 1)
        refined: Names = []
        for name in names:
            start = len(refined)
            refined += self._names[start : start + num_missing] if isinstance(name, EllipsisType) else [name]
        if len(refined) != self.ndim or any(
            old not in (None, new) for old, new in zip(self._names, refined, strict=True)
        ):
            raise SpaceError(f"Cannot refine the names {self._names} to {refined}: only None can be replaced.")
        self.names = refined
        return self

    # -- copies, devices and shapes

    def empty(self) -> Self:
        """Returns a Composite without entries, of the same batch shape, device and names."""
        return self._replace(_specs={}, _locked=False, step_mdp_static=False)

    def _copy_with_shape(self, shape: torch.Size, device: torch.device | None = None) -> Self:
        device = device or self.device
        entries = {
            name: copy_with_shape(spec, spec.shape if spec.shape[: len(shape)] == shape else shape, device)
            if isinstance(spec, SpecMapping)
            else spec
            for name, spec in self._entries().items()
        }
        names = self._names if len(self._names) == len(shape) else None
        return type(self)(
            entries,
            shape=shape,
            device=device,
            data_cls=self.data_cls,
            step_mdp_static=self.step_mdp_static,
            names=names,
        )

    def _empty_like(self, specs: Entries) -> Composite:
        return Composite(specs, shape=self.shape, device=self.device)

    def _map(self, function: Callable[[TensorSpec], TensorSpec], **changes: object) -> Self:
        """Returns an unlocked copy with `function` applied to each entry, and with other values of attributes."""
        entries = {name: None if spec is None else function(spec) for name, spec in self._entries().items()}
        return self._replace(_specs=entries, _locked=False, **changes)

    def _rearrange(self, op: ShapeOp) -> Self:
        return self._map(lambda spec: rearrange_batch(spec, op), _shape=op.out_shape, _names=op.names(self._names))

    def to(self, dest: Device | torch.dtype) -> Self:
        """Returns the Composite with all entries on another device, or with another dtype."""
        if dest is None:
            return self
        if isinstance(dest, torch.dtype):
            return self._map(lambda spec: spec.to(dest))
        device = as_device(dest)
        return self._map(lambda spec: spec.to(device), _device=device)

    def clear_device_(self) -> Self:
        """Removes the common device, here and in nested Composites, and returns self."""
        self._device = None
        for spec in self._entries().values():
            if spec is not None:
                spec.clear_device_()
        return self

    def clone(self) -> Self:
        return self._map(lambda spec: spec.clone())

    # -- values

    def _present_entries(self) -> dict[str, TensorSpec]:
        """The entries that have a spec."""
        return {name: spec for name, spec in self._entries().items() if spec is not None}

    def _pack(self, values: dict[str, object], batch: torch.Size) -> Any:
        """Builds a TensorDict, or an instance of `data_cls`, from values under keys."""
        names: Any = [*[None] * (len(batch) - self.ndim), *self._names] if any(self._names) else None
        td = TensorDict(values, batch_size=batch, device=self.device, names=names)
        if self.data_cls is None or self.data_cls is TensorDict:
            return td
        return self.data_cls.from_tensordict(td)  # pyright: ignore[reportAttributeAccessIssue]

    def _build(self, shape: ShapeLike | None, value_of: Callable[[TensorSpec], object]) -> Any:
        """Builds a value from `value_of` of each entry, with the batch dimensions `shape` in front."""
        batch = torch.Size([*as_size(() if shape is None else shape), *concrete(self.shape)])
        return self._pack({name: value_of(spec) for name, spec in self._present_entries().items()}, batch)

    def rand(self, shape: ShapeLike | None = None, *, generator: torch.Generator | None = None) -> Any:
        return self._build(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: ShapeLike | None = None) -> Any:
        return self._build(shape, lambda spec: spec.zero(shape))

    def one(self, shape: ShapeLike | None = None) -> Any:
        return self._build(shape, lambda spec: spec.one(shape))

    def _extra_batch_shape(self, val: TensorDictBase) -> torch.Size:
        """Returns the batch dimensions of `val` in front of this Composite's."""
        batch = val.batch_size
        if not shape_matches(batch, self.shape):
            raise SpaceError(f"Expected a batch shape that ends with {tuple(self.shape)}, got {tuple(batch)}.")
        return batch[: len(batch) - self.ndim]

    def rand_update(self, val: TensorDictBase) -> TensorDictBase:
        """Fills `val`, a TensorDict with a batch shape that ends with this one, with random values of all entries."""
        return val.update(self.rand(self._extra_batch_shape(val)))

    def zeros_update(self, val: TensorDictBase) -> TensorDictBase:
        """Fills `val`, a TensorDict with a batch shape that ends with this one, with zeros of all entries."""
        return val.update(self.zero(self._extra_batch_shape(val)))

    def ones_update(self, val: TensorDictBase) -> TensorDictBase:
        """Fills `val`, a TensorDict with a batch shape that ends with this one, with ones of all entries."""
        return val.update(self.one(self._extra_batch_shape(val)))

    def mismatch(self, val: object) -> str | None:
        if not isinstance(val, Mapping) and not is_tensordict(val):
            return f"expected a TensorDict, got {type(val).__name__}"
        for name, spec in self._present_entries().items():
            if not has_entry(val, name):
                return f"{name!r} is missing among {sorted(map(str, val.keys()))}"  # pyright: ignore[reportUnknownArgumentType]
            problem = spec.mismatch(get_entry(val, name))
            if problem is not None:
                return f"at {name!r}: {problem}"
        return None

    def project(self, val: Any) -> Any:
        """Replaces the entries of the TensorDict `val` that are not in their specs by the nearest values that are.

        Other entries keep their tensors. `val` may have batch dimensions in front of the spec's shape.

        Args:
            val: a TensorDict, which is changed in place; if it is locked, values are written into its tensors. Or a
                plain mapping, which is not changed.

        Returns:
            `val` itself; for a plain mapping, a new TensorDict.

        Raises:
            SpaceError: an entry is missing or has another shape.
            LockedError: an entry of a locked TensorDict has another dtype.
        """
        if not is_tensordict(val):
            val = TensorDict(dict(val), batch_size=concrete(self.shape))
        for name, spec in self._present_entries().items():
            if not has_entry(val, name):
                raise SpaceError(f"Expected {name!r} to project, got only {list(val.keys())}.")
            entry_value = get_entry(val, name)
            put(val, name, entry_value, spec.project(entry_value))
        return val

    def encode(self, val: object, *, ignore_device: bool = False) -> Any:
        """Encodes the entries of `val`, a mapping or TensorDict that may lack some, and returns a TensorDict.

        Raises:
            KeyError: `val` has an entry that the spec does not have.
            SpaceError: an entry does not fit its spec.
        """
        if is_tensordict(val):
            val = {name: get_entry(val, name) for name in val.keys()}  # noqa: SIM118
        if not isinstance(val, Mapping):
            raise SpaceError(f"Expected a mapping with keys of {list(self.keys())}, got {val!r:.80}.")
        specs = self._entries()
        values: dict[str, Any] = {}
        for name, item in val.items():  # pyright: ignore[reportUnknownVariableType]
            if name not in specs:
                raise KeyError(f"Expected keys of the spec, {list(self.keys())}, got {name!r}.")
            spec = specs[name]  # pyright: ignore[reportUnknownArgumentType]
            try:
                values[name] = item if spec is None else spec.encode(item, ignore_device=ignore_device)
            except SpaceError as error:
                raise type(error)(f"At {name!r}: {error}") from error
        return self._pack(values, concrete(self.shape))

    def to_numpy(self, val: object, safe: bool | None = None) -> dict[str, Any]:
        """Converts the entries with `to_numpy` of their specs and returns a nested dict."""
        entries = self._present_entries().items()
        return {name: spec.to_numpy(get_entry(val, name), safe) for name, spec in entries if has_entry(val, name)}

    def type_check(self, value: object, key: object = None) -> None:
        """Raises a `SpaceError` (a TypeError) unless the entries have the dtypes of their specs.

        Args:
            value: a TensorDict or mapping, or a single value of the entry `key`.
            key: the key that is checked, or a list of keys; None for all keys of `value`.
        """
        if isinstance(value, Tensor):
            self.get(key).type_check(value, key)
            return
        names = None if key is None else {key_path(k)[0] for k in (key if isinstance(key, list) else [key])}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        for name, spec in self._present_entries().items():
            if has_entry(value, name) and (names is None or name in names):
                item = get_entry(value, name)
                spec.type_check(item, name if isinstance(item, Tensor) else None)

    def cardinality(self) -> int | float:
        return math.prod(spec.cardinality() for spec in self._present_entries().values())

    def enumerate(self, use_mask: bool = False) -> Any:
        """Returns every combination of the entries' values; the last entry varies fastest.

        The elements of a batch have the same values, and share their memory.
        """
        columns = {name: spec.enumerate(use_mask) for name, spec in self._present_entries().items()}
        counts = [column.shape[0] for column in columns.values()]
        total = math.prod(counts)
        rows = torch.unravel_index(torch.arange(total), counts)
        first = (slice(None), *[slice(0, 1)] * self.ndim)  # of the batch
        values = {
            name: column[first][row.to(column.device) if isinstance(column, Tensor) else row].expand(
                total, *column.shape[1:]
            )
            for (name, column), row in zip(columns.items(), rows, strict=True)
        }
        return self._pack(values, torch.Size([total, *concrete(self.shape)]))

    def _state(self) -> Sequence[object]:
        return Composite, self._specs, self._shape, self._device, self.data_cls

    def __repr__(self) -> str:
        lines = [f"    {name}: {_indent(spec)}," for name, spec in self._entries().items()]
        last = f"shape={tuple(self.shape)}, device={self.device}"
        if any(self._names):
            last += f", names={self._names}"
        return f"{type(self).__name__}(\n" + "\n".join([*lines, f"    {last})"])


def _indent(spec: object) -> str:
    return repr(spec).replace("\n", "\n    ")


def _pass_names(names: Names, spec: TensorSpec | None) -> None:
    """Gives a nested Composite the names of the batch dimensions that it shares with its parent."""
    if any(names) and type(spec) is Composite:
        spec.names = [*names, *spec.names[len(names) :]]


def _validate_names(names: Sequence[str | None] | None, ndim: int) -> Names:
    if names is None:
        return [None] * ndim
    if len(names) != ndim:
        raise SpaceError(f"Expected a name (or None) for each of {ndim} batch dimensions, got {list(names)}.")
    return list(names)


def is_tensordict(val: object) -> TypeGuard[TensorDictBase]:
    """Whether a value is a TensorDict or an instance of another class of tensordict."""
    return is_tensor_collection(val)


def has_entry(val: Any, name: str) -> bool:
    """Whether a mapping or TensorDict has an entry."""
    return name in val.keys()  # noqa: SIM118


def get_entry(val: Any, name: str) -> Any:
    """Returns an entry of a mapping or TensorDict; from a lazy stack of unequal tensors, a nested tensor."""
    if not is_tensor_collection(val):
        return val[name]
    try:
        return val.get(name)
    except RuntimeError:
        return val.get(name, as_nested_tensor=True)


def put(val: TensorDictBase, name: str, entry_value: object, projected: Any) -> None:
    """Replaces the entry `entry_value` of `val` by `projected`; writes into its memory if `val` is locked."""
    if projected is entry_value:
        return
    if not val.is_locked:
        val.set(name, projected)
    elif isinstance(entry_value, Tensor) and (entry_value.shape, entry_value.dtype) == (
        projected.shape,
        projected.dtype,
    ):
        val.set_(name, projected)
    else:
        raise LockedError(
            f"Expected {name!r} of the locked TensorDict to be a tensor of the spec's dtype, got {entry_value!r:.80}. "
            "Unlock the TensorDict first."
        )
