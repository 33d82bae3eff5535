"""`SpecLock`: a lock of nested specs. A nested one cannot be unlocked alone. It must not know keys and entries."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Self

from ..errors import LockedError


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
