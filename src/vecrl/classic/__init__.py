"""Dialect 4: one environment with arrays and numbers, `(next_state, reward, done, info)` a step.

What converts from and to TensorDicts is imported when it is asked for; all else goes without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import BaseEnv
from .config import Config
from .gym import GymEnv
from .roboschool import RoboschoolEnv

if TYPE_CHECKING:
    from .conversions import from_classic, to_classic

__all__ = ["BaseEnv", "Config", "GymEnv", "RoboschoolEnv", "from_classic", "to_classic"]


def __getattr__(name: str) -> Any:
    if name in ("from_classic", "to_classic"):
        return getattr(import_module(".conversions", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
