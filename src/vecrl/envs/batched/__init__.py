"""Batches of environments: `SerialEnv` and `ParallelEnv` on the engine, and `EnvCreator` for their environments."""

from .batched_env import BatchedEnv, ParallelEnv, SerialEnv
from .env_factories import EnvCreator
from .metadata import EnvMetaData

__all__ = ["BatchedEnv", "EnvCreator", "EnvMetaData", "ParallelEnv", "SerialEnv"]
