"""Live views of a tree of specs, which `Composite.keys`, `items` and `values` return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import TensorSpec
    from .composite_mapping import SpecMapping

Key = str | tuple[str, ...]


class SpecView:
    """A view of the keys of a Composite, of its specs, or of both.

    Args:
        composite: the Composite that is viewed.
        include_nested: include the entries of nested Composites, under tuples of keys.
        leaves_only: exclude the nested Composites themselves.
        is_leaf: returns whether the specs of a class are leaves; None for all except Composites.
        step_mdp_static_only: include only entries that are marked as not changing from step to step.
    """

    def __init__(
        self,
        composite: SpecMapping,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        step_mdp_static_only: bool = False,
    ):
        self._composite = composite
        self._include_nested = include_nested
        self._leaves_only = leaves_only
        self._is_leaf = is_leaf
        self._static_only = step_mdp_static_only

    def _pairs(self) -> Iterator[tuple[Key, TensorSpec | None]]:
        yield from self._walk(self._composite, ())

    def _walk(self, composite: SpecMapping, path: tuple[str, ...]) -> Iterator[tuple[Key, TensorSpec | None]]:
        from .composite_mapping import SpecMapping

        for name, spec in composite._entries().items():
            key = (*path, name) if path else name
            is_nested = isinstance(spec, SpecMapping)
            if is_nested and self._include_nested and not (self._is_leaf and self._is_leaf(type(spec))):
                yield from self._walk(spec, (*path, name))
            is_branch = is_nested and not (self._is_leaf and self._is_leaf(type(spec)))
            if self._static_only and not (is_nested and spec.step_mdp_static):
                continue
            if not (is_branch and self._leaves_only):
                yield key, spec

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return sum(1 for _ in self._pairs())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class SpecKeys(SpecView):
    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self._pairs())

    def __contains__(self, key: object) -> bool:
        key = key[0] if isinstance(key, tuple) and len(key) == 1 else key  # pyright: ignore[reportUnknownVariableType]
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
