"""Batches of environments: `SerialEnv` and `ParallelEnv` over the engine, and what makes their environments."""

from .env import BatchedEnv, ParallelEnv, SerialEnv
from .makers import EnvCreator
from .metadata import EnvMetaData

__all__ = ["BatchedEnv", "EnvCreator", "EnvMetaData", "ParallelEnv", "SerialEnv"]
