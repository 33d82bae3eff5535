"""Dialect 4: one environment with arrays and numbers; a step returns `(next_state, reward, done, info)`.

The conversions from and to TensorDicts are imported at the first access; the rest does not need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ..imports import require_extra
from .base import BaseEnv
from .config import Config
from .gym import GymEnv
from .roboschool import RoboschoolEnv

if TYPE_CHECKING:
    from .conversions import from_classic, to_classic

__all__ = ["BaseEnv", "Config", "GymEnv", "RoboschoolEnv", "from_classic", "to_classic"]


def __getattr__(name: str) -> object:
    if name in ("from_classic", "to_classic"):
        require_extra("tensordict", f"{__name__}.{name}")
        return getattr(import_module(".conversions", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
