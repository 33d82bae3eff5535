"""Learned models of environments, as environments: rollouts in imagination, with gradients."""

from .base import ModelBasedEnvBase, WorldModelWrapper
from .dreamer import DreamerDecoder, DreamerEnv
from .imagined import ImaginedEnv

__all__ = ["DreamerDecoder", "DreamerEnv", "ImaginedEnv", "ModelBasedEnvBase", "WorldModelWrapper"]
