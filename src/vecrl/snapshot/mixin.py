"""`Stateful`: the methods `get_state` and `set_state` of all environments of all dialects."""

from __future__ import annotations

from collections.abc import Mapping

from .capture import capture
from .handlers.base import State
from .restore import Allowed, restore


class Stateful:
    """A mixin: the state of an object includes that of all objects that can be reached from it.

    A class can declare more in two attributes, which are combined with those of its base classes:
    `excluded_from_state`, the names of attributes that are not part of the state, or that the constructor determines;
    and `state_classes`, classes of objects that a state may contain.
    """

    def get_state(self) -> State:
        """Returns the full state as plain data that shares no memory with this object.

        Raises:
            StateError: an object in an environment keeps its state outside Python; the message gives its path.
            PendingError: a command is pending.
        """
        return capture(self, self._state_facts())

    # Marks this implementation: `capture` walks over such objects and does not call their `get_state`.
    get_state.is_generic_get_state = True  # pyright: ignore[reportFunctionMemberAccess]

    def set_state(self, state: Mapping[str, object], *, allow: Allowed = ()) -> None:
        """Restores a state that `get_state` returned, of this object or of one that was constructed in the same way.

        Args:
            state: the result of `get_state`.
            allow: classes (or their full names) of objects that may be created, in addition to the classes of objects
                that the environments contain now.

        Raises:
            StateError: this is not a state, or the object was constructed in another way.
        """
        restore(self, state, allow=allow, about=self._state_facts())

    def _state_facts(self) -> dict[str, object]:
        """Returns facts that must be equal when the state is restored, as plain data by name."""
        return {}
