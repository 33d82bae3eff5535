"""Learned models of environments, as environments: rollouts in imagination, with gradients."""

from ..aliases import lazy_names
from .base import ModelBasedEnvBase, WorldModelWrapper
from .dreamer import DreamerDecoder, DreamerEnv
from .imagined import ImaginedEnv

__all__ = ["DreamerDecoder", "DreamerEnv", "ImaginedEnv", "ModelBasedEnvBase", "WorldModelWrapper"]

__getattr__ = lazy_names(__name__)
