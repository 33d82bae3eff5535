"""Transforms: what lies between an environment and its user. By theme, one module each."""

from .base import FunctionTransform, Transform
from .casts import DeviceCastTransform, DoubleToFloat, DTypeCastTransform, PinMemoryTransform
from .checks import FiniteTensorDictCheck
from .compose import Compose
from .counting import InitTracker, RewardSum, StepCounter
from .env import TransformedEnv
from .keys import CatTensors, ExcludeTransform, RenameTransform, SelectTransform
from .numbers import ClipTransform, ObservationNorm, SignTransform, UnaryTransform
from .rewards import BinarizeReward, RewardClipping, RewardScaling
from .shapes import FlattenObservation, PermuteTransform, SqueezeTransform, UnsqueezeTransform
from .throughout import ObservationTransform
from .vecnorm import VecNorm

__all__ = [
    "BinarizeReward",
    "CatTensors",
    "ClipTransform",
    "Compose",
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DoubleToFloat",
    "ExcludeTransform",
    "FiniteTensorDictCheck",
    "FlattenObservation",
    "FunctionTransform",
    "InitTracker",
    "ObservationNorm",
    "ObservationTransform",
    "PermuteTransform",
    "PinMemoryTransform",
    "RenameTransform",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SelectTransform",
    "SignTransform",
    "SqueezeTransform",
    "StepCounter",
    "Transform",
    "TransformedEnv",
    "UnaryTransform",
    "UnsqueezeTransform",
    "VecNorm",
]
