"""Dialect 1: gymnasium-style vector environments."""

from ..engine.transitions import AutoresetMode
from .async_env import AsyncVectorEnv
from .sync import SyncVectorEnv
from .vector_env import VectorEnv, info_of

__all__ = ["AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv", "VectorEnv", "info_of"]
