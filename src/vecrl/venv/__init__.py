"""Vector environments with Tianshou's interface: any subset of environments can be stepped or reset by id,
synchronously or asynchronously.

>>> import gymnasium
>>> envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4)
>>> obs, infos = envs.reset([3, 1])
>>> obs.shape, envs.env_num
((2, 4), 4)
>>> envs.close()
"""

from .base import BaseVectorEnv
from .vector_envs import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from .wrappers import RunningMeanStd, VectorEnvNormObs, VectorEnvWrapper

__all__ = [
    "BaseVectorEnv",
    "DummyVectorEnv",
    "RayVectorEnv",
    "RunningMeanStd",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
    "VectorEnvNormObs",
    "VectorEnvWrapper",
]
