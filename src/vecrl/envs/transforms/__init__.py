"""Transforms: what lies between an environment and its user. By theme, one module each."""

from .base import FunctionTransform, Transform
from .compose import Compose
from .counting import InitTracker, RewardSum, StepCounter
from .env import TransformedEnv
from .frames import CatFrames
from .images import CenterCrop, Crop, GrayScale, Resize, ToTensorImage
from .numbers import ClipTransform, ObservationNorm, ObservationTransform
from .timing import Timer, TrajCounter

__all__ = [
    "CatFrames",
    "CenterCrop",
    "ClipTransform",
    "Compose",
    "Crop",
    "FunctionTransform",
    "GrayScale",
    "InitTracker",
    "ObservationNorm",
    "ObservationTransform",
    "Resize",
    "RewardSum",
    "StepCounter",
    "Timer",
    "ToTensorImage",
    "TrajCounter",
    "Transform",
    "TransformedEnv",
]
