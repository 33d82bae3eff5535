"""A logger that writes event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...imports import import_library
from ..video import VideoWriter
from .base import INSTALL_HINT, Logger, flatten, parse_data, parse_text, parse_value, series_path


class TensorBoardLogger(Logger):
    """Writes event files for TensorBoard; videos are animated images (gif).

    Args:
        exp_name: the name of the experiment, which is the name of its folder.
        log_dir: the folder of all experiments.

    Attributes:
        experiment: the `torch.utils.tensorboard.SummaryWriter`.

    Raises:
        VersionError: (an ImportError) tensorboard is not installed.
    """

    video_suffix = ".gif"

    def __init__(self, exp_name: str, log_dir: str = "tb_logs"):
        super().__init__(exp_name, log_dir)

    def _create_experiment(self) -> Any:
        writer = import_library("torch.utils.tensorboard.writer", INSTALL_HINT.format("tensorboard"))
        return writer.SummaryWriter(log_dir=str(series_path(Path(self.log_dir), self.exp_name, "")))

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Writes a number under "scalars"."""
        self.experiment.add_scalar(name, parse_value(name, value), global_step=self._next_step(name, step))

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Writes a text under "text"."""
        self.experiment.add_text(name, parse_text(name, value), global_step=self._next_step(name, step))

    def log_histogram(self, name: str, data: Sequence[float] | Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Writes a distribution under "histograms"."""
        values, bins = parse_data(name, data, kwargs.get("bins"))
        self.experiment.add_histogram(name, values, global_step=self._next_step(name, step), bins=bins or "tensorflow")

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Writes the settings under "hparams"; values that are no numbers, texts or bools are written as texts."""
        settings = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in flatten(cfg, ".").items()
        }
        self.experiment.add_hparams(settings, {}, run_name=".")

    def _add_video(self, name: str, video: VideoWriter, step: int | None) -> None:
        summaries = import_library("tensorboard.compat.proto.summary_pb2", INSTALL_HINT.format("tensorboard"))
        height, width, channels = video.frame_shape
        path = video.close(self._video_folder() / f"video-{id(video)}.gif")
        assert path is not None
        try:
            image = summaries.Summary.Image(
                height=height, width=width, colorspace=channels, encoded_image_string=path.read_bytes()
            )
        finally:
            path.unlink()
        summary = summaries.Summary(value=[summaries.Summary.Value(tag=name, image=image)])
        self.experiment.file_writer.add_summary(summary, self._next_step(name, step))

    def close(self) -> None:
        """Writes all events and closes the file."""
        self.experiment.close()


TensorboardLogger = TensorBoardLogger  # TorchRL's name
