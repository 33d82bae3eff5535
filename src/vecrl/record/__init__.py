"""Recorders, which are transforms that write what passes through an environment, and loggers."""

from ..imports import require_extra

require_extra("tensordict", __name__)

from ..envs.aliases import lazy_names
from .loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    TensorboardLogger,
    WandbLogger,
    generate_exp_name,
    get_logger,
)
from .recorder import PixelRenderTransform, TensorDictRecorder, VideoRecorder
from .video import VideoWriter

__all__ = [
    "CSVLogger",
    "Logger",
    "MLFlowLogger",
    "PixelRenderTransform",
    "TensorBoardLogger",
    "TensorDictRecorder",
    "TensorboardLogger",
    "VideoRecorder",
    "VideoWriter",
    "WandbLogger",
    "generate_exp_name",
    "get_logger",
]

__getattr__ = lazy_names(__name__)
