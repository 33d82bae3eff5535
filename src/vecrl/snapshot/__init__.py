"""Captures the state of objects as plain data (`capture`) and restores it (`restore`)."""

from .capture import capture
from .mixin import Stateful
from .restore import restore

__all__ = ["Stateful", "capture", "restore"]
