"""What a thing is at a moment, as plain data; and a thing put back to what it was. See `capture` and `restore`."""

from .capture import capture
from .mixin import Stateful
from .restore import restore

__all__ = ["Stateful", "capture", "restore"]
