"""Environments of gymnasium and of the old gym over TensorDicts, and environments over TensorDicts in gymnasium."""

from ...aliases import lazy_names
from ...gym_like import default_info_dict_reader
from .backends import DEFAULT_GYM, gym_backend, set_gym_backend
from .env import GymEnv, GymWrapper
from .spaces import register_gym_spec_conversion

__all__ = [
    "DEFAULT_GYM",
    "GymEnv",
    "GymWrapper",
    "default_info_dict_reader",
    "gym_backend",
    "register_gym_spec_conversion",
    "set_gym_backend",
]

__getattr__ = lazy_names(__name__)
