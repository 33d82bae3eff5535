"""Transforms of the inputs, outputs and specs of environments, one module per topic."""

from .action_mask import ActionMask
from .auto_reset import AutoResetEnv, AutoResetTransform, VecGymEnvTransform
from .base import Transform
from .compose import Compose
from .counters import InitTracker, RewardSum, StepCounter
from .dtype_device import DeviceCastTransform, DoubleToFloat, DTypeCastTransform, PinMemoryTransform
from .elementwise import ClipTransform, ObservationNorm, SignTransform, UnaryTransform
from .finite_check import FiniteTensorDictCheck
from .frame_skip import FrameSkipTransform, NoopResetEnv
from .frames import CatFrames
from .function_transform import FunctionTransform
from .images import CenterCrop, Crop, GrayScale, Resize, ToTensorImage
from .keys import CatTensors, ExcludeTransform, RenameTransform, SelectTransform
from .primer import TensorDictPrimer
from .rewards import BinarizeReward, RewardClipping, RewardScaling
from .shapes import FlattenObservation, PermuteTransform, SqueezeTransform, UnsqueezeTransform
from .stateless import ObservationTransform
from .timing import Timer, TrajCounter
from .transformed_env import TransformedEnv
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
