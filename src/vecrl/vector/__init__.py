"""Dialect 1: gymnasium-style vector environments."""

from ..engine.transitions import AutoresetMode
from .vector_env import VectorEnv, info_of

__all__ = ["AutoresetMode", "VectorEnv", "info_of"]
