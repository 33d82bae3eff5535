"""Batches of environments: `SerialEnv` and `ParallelEnv` on the engine, and `EnvCreator` for their environments."""

from .async_env_pool import AsyncEnvPool, ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
from .env_factories import EnvCreator, env_creator, get_env_metadata
from .metadata import EnvMetaData
from .serial_parallel_env import BatchedEnv, ParallelEnv, SerialEnv

__all__ = [
    "AsyncEnvPool",
    "BatchedEnv",
    "EnvCreator",
    "EnvMetaData",
    "ParallelEnv",
    "ProcessorAsyncEnvPool",
    "SerialEnv",
    "ThreadingAsyncEnvPool",
    "env_creator",
    "get_env_metadata",
]
