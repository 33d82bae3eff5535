"""Transforms: what lies between an environment and its user. By theme, one module each."""

from .base import Transform
from .casts import DeviceCastTransform, DoubleToFloat, DTypeCastTransform, PinMemoryTransform
from .checks import FiniteTensorDictCheck
from .compose import Compose
from .counting import InitTracker, RewardSum, StepCounter
from .env import TransformedEnv
from .episodes import FrameSkipTransform, NoopResetEnv
from .frames import CatFrames
from .functions import FunctionTransform
from .images import CenterCrop, Crop, GrayScale, Resize, ToTensorImage
from .keys import CatTensors, ExcludeTransform, RenameTransform, SelectTransform
from .masking import ActionMask
from .numbers import ClipTransform, ObservationNorm, SignTransform, UnaryTransform
from .priming import TensorDictPrimer
from .renewing import AutoResetEnv, AutoResetTransform, VecGymEnvTransform
from .rewards import BinarizeReward, RewardClipping, RewardScaling
from .shapes import FlattenObservation, PermuteTransform, SqueezeTransform, UnsqueezeTransform
from .throughout import ObservationTransform
from .timing import Timer, TrajCounter
from .vecnorm import VecNorm

__all__ = [
    "ActionMask",
    "AutoResetEnv",
    "AutoResetTransform",
    "BinarizeReward",
    "CatFrames",
    "CatTensors",
    "CenterCrop",
    "ClipTransform",
    "Compose",
    "Crop",
    "DTypeCastTransform",
    "DeviceCastTransform",
    "DoubleToFloat",
    "ExcludeTransform",
    "FiniteTensorDictCheck",
    "FlattenObservation",
    "FrameSkipTransform",
    "FunctionTransform",
    "GrayScale",
    "InitTracker",
    "NoopResetEnv",
    "ObservationNorm",
    "ObservationTransform",
    "PermuteTransform",
    "PinMemoryTransform",
    "RenameTransform",
    "Resize",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SelectTransform",
    "SignTransform",
    "SqueezeTransform",
    "StepCounter",
    "TensorDictPrimer",
    "Timer",
    "ToTensorImage",
    "TrajCounter",
    "Transform",
    "TransformedEnv",
    "UnaryTransform",
    "UnsqueezeTransform",
    "VecGymEnvTransform",
    "VecNorm",
]
