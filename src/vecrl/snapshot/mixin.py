"""What every environment of every dialect has: `get_state` and `set_state`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .capture import capture
from .restore import Allowed, restore


class Stateful:
    """A mixin: the state of an object is that of all that hangs on it.

    A class may say more of it, in attributes to which those of its base classes are added:
    `excluded_from_state`, names of attributes that follow from how the object was made, or are none of its state; and
    `state_classes`, classes of which there may be objects in a state.
    """

    def get_state(self) -> dict[str, Any]:
        """All that going on from here takes, as plain data that shares nothing with this object.

        Raises:
            StateError: something in an environment keeps its state where nobody sees it; says where.
            PendingError: a command is under way.
        """
        return capture(self, self._state_facts())

    get_state.is_generic_get_state = True  # pyright: ignore[reportFunctionMemberAccess] -- where it hangs on another, nobody asks it

    def set_state(self, state: Mapping[str, Any], *, allow: Allowed = ()) -> None:
        """Go on from where `get_state` was called, of this object or of one made alike.

        Args:
            state: what it returned.
            allow: classes (or their full names) that environments may have objects of, beside those that they have.

        Raises:
            StateError: this is no state, or one of something that was made otherwise.
        """
        restore(self, state, allow=allow, about=self._state_facts())

    def _state_facts(self) -> dict[str, Any]:
        """What must be equal, as plain data by name."""
        return {}
