"""Loggers: write numbers, texts and videos of experiments to files or to a service."""

from pathlib import Path
from typing import Any

from ...envs.aliases import lazy_names
from .base import Logger, generate_exp_name
from .csv import CSVLogger
from .mlflow import MLFlowLogger
from .tensorboard import TensorBoardLogger, TensorboardLogger
from .wandb import WandbLogger

__all__ = [
    "CSVLogger",
    "Logger",
    "MLFlowLogger",
    "TensorBoardLogger",
    "TensorboardLogger",
    "WandbLogger",
    "generate_exp_name",
    "get_logger",
]

__getattr__ = lazy_names(__name__)


def get_logger(logger_type: str | None, logger_name: str, experiment_name: str, **kwargs: Any) -> Logger | None:
    """Returns a logger by the name of its type.

    Args:
        logger_type: "csv", "tensorboard", "wandb" or "mlflow"; None or "" for no logger.
        logger_name: the folder of all experiments.
        experiment_name: the name of the experiment.
        kwargs: further arguments of the logger; `wandb_kwargs` and `mlflow_kwargs` are those of one type only, and are
            not used for the others.

    Raises:
        ValueError: the type is unknown.
        ImportError: the library of the logger is not installed.
    """
    options = {name: kwargs.pop(f"{name}_kwargs", None) or {} for name in ("wandb", "mlflow")}
    if not logger_type:
        return None
    if logger_type == "csv":
        return CSVLogger(experiment_name, log_dir=logger_name, **kwargs)
    if logger_type == "tensorboard":
        return TensorBoardLogger(experiment_name, log_dir=logger_name, **kwargs)
    if logger_type == "wandb":
        return WandbLogger(experiment_name, save_dir=logger_name, **{**kwargs, **options["wandb"]})
    if logger_type == "mlflow":
        folder = Path(logger_name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "tracking_uri": f"sqlite:///{folder / 'mlflow.db'}",
            "artifact_location": (folder / "artifacts").as_uri(),
        }
        return MLFlowLogger(experiment_name, **{**files, **kwargs, **options["mlflow"]})
    raise ValueError(f"Expected a logger_type of 'csv', 'tensorboard', 'wandb' or 'mlflow', got {logger_type!r}.")
