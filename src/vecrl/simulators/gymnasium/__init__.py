"""gymnasium's environments, single ones that are stepped one after another, and libraries with its interface."""

from __future__ import annotations

from .make import env_fn, names
from .simulator import GymnasiumSimulator, close_all, make_all, restore_env

__all__ = ["GymnasiumSimulator", "close_all", "env_fn", "make_all", "names", "restore_env"]
