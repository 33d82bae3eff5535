"""What a thing is at a moment, as plain data; and a thing put back to what it was. See `take` and `put`."""

from .putting import put
from .stateful import Stateful
from .taking import take

__all__ = ["Stateful", "put", "take"]
