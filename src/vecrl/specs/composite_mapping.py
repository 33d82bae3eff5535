"""`SpecMapping`: the mapping interface of `Composite`: specs under keys and tuples of keys, their views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import torch

from ..errors import SpaceError
from .base import TensorSpec, foreign_spec_hint
from .spec_lock import SpecLock

Key = str | tuple[str, ...]
IsLeaf = Callable[[type], bool]
MISSING: Any = object()
Entries = Mapping[Any, Any]
"""Keys (names, or tuples of names) and their specs, mappings of specs, or None."""
M = TypeVar("M", bound="SpecMapping")


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
