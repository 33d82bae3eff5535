"""The descriptor behind the spec attributes of an environment, such as `env.action_spec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from .spec_container import SpecContainer


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
    def __get__(self, owner: None, owner_class: Any) -> SpecProperty: ...
    @overload
    def __get__(self, owner: SpecContainer, owner_class: Any) -> Any: ...
    def __get__(self, owner: SpecContainer | None, owner_class: Any = None) -> Any:
        if owner is None:
            return self
        spec = owner._full(self._name) if self._full else owner._leaf(self._name)
        return spec[(0,) * owner.ndim] if self._unbatched and owner.ndim else spec

    def __set__(self, owner: SpecContainer, spec: Any) -> None:
        if self._unbatched:
            spec = spec.expand(*owner.batch_size, *spec.shape)
        owner._set_full(self._name, spec)
