"""Transforms: what lies between an environment and its user. By theme, one module each."""

from .base import FunctionTransform, Transform
from .compose import Compose
from .counting import InitTracker, RewardSum, StepCounter
from .env import TransformedEnv
from .numbers import ClipTransform, ObservationNorm, ObservationTransform

__all__ = [
    "ClipTransform",
    "Compose",
    "FunctionTransform",
    "InitTracker",
    "ObservationNorm",
    "ObservationTransform",
    "RewardSum",
    "StepCounter",
    "Transform",
    "TransformedEnv",
]
