"""Batches of environments: `SerialEnv` and `ParallelEnv` on the engine, and `EnvCreator` for their environments."""

from .env_factories import EnvCreator
from .metadata import EnvMetaData
from .serial_parallel_env import BatchedEnv, ParallelEnv, SerialEnv

__all__ = ["BatchedEnv", "EnvCreator", "EnvMetaData", "ParallelEnv", "SerialEnv"]
