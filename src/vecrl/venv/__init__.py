"""Dialect 2: environments with ids, any of which may be stepped or reset, synchronously or not. The names are
Tianshou's.

>>> import gymnasium
>>> envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4)
>>> obs, infos = envs.reset([3, 1])
>>> obs.shape, envs.env_num
((2, 4), 4)
>>> envs.close()
"""

from .base import BaseVectorEnv
from .vector_envs import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from .running_mean_std import RunningMeanStd
from .wrappers import VectorEnvNormObs, VectorEnvWrapper

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
