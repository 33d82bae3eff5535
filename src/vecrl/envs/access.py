"""Specs as attributes of who owns them. Knows its owner by a few names only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from .owner import SpecOwner


class SpecAccess:
    """An attribute that reads and sets one of the five specs.

    Args:
        name: which.
        full: always the `Composite`; otherwise the leaf where there is only one.
        unbatched: without the batch dimensions.
    """

    def __init__(self, name: str, *, full: bool = False, unbatched: bool = False):
        self._name, self._whole, self._unbatched = name, full, unbatched

    @overload
    def __get__(self, owner: None, kind: Any) -> SpecAccess: ...
    @overload
    def __get__(self, owner: SpecOwner, kind: Any) -> Any: ...
    def __get__(self, owner: SpecOwner | None, kind: Any = None) -> Any:
        if owner is None:
            return self
        spec = owner._full(self._name) if self._whole else owner._leaf(self._name)
        return spec[(0,) * owner.ndim] if self._unbatched and owner.ndim else spec

    def __set__(self, owner: SpecOwner, spec: Any) -> None:
        if self._unbatched:
            spec = spec.expand(*owner.batch_size, *spec.shape)
        owner._set_full(self._name, spec)
