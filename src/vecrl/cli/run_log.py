"""What a command writes to a logger of `vecrl.record` if one was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from ..record.loggers import Logger


class RunLog:
    """Writes settings, numbers and videos of a run to a logger.

    Args:
        logger: the logger; None to write nothing.
    """

    def __init__(self, logger: Logger | None = None):
        self._logger = logger

    @classmethod
    def open(cls, kind: str | None, folder: Path) -> Self:
        """Returns a log with the name of `folder` in the parent of `folder`.

        Args:
            kind: "csv", "tensorboard", "wandb" or "mlflow"; None to write nothing.
            folder: the folder of the run.

        Raises:
            ImportError: the library of the logger is not installed.
        """
        if kind is None:
            return cls()
        from ..record.loggers import get_logger  # here, since the package imports TensorDicts

        options = {"video_format": "mp4"} if kind == "csv" else {}
        folder = folder.resolve()  # "." has no name
        return cls(get_logger(kind, str(folder.parent), folder.name, **options))

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Writes the settings of the run."""
        if self._logger is not None:
            self._logger.log_hparams(settings)

    def metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes numbers of one step, without those that are NaN."""
        if self._logger is not None:
            self._logger.log_metrics({key: value for key, value in metrics.items() if not math.isnan(value)}, step)

    @contextmanager
    def video(self, name: str, fps: float) -> Iterator[Callable[[np.ndarray], None]]:
        """Yields a function that adds a frame to a video, which is written at the end of the `with` block."""
        if self._logger is None:
            yield lambda frame: None
            return
        video = self._logger.new_video(fps)
        try:
            yield video.write
        except BaseException:
            video.discard()
            raise
        self._logger.log_video(name, video)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._logger is not None:
            self._logger.close()
