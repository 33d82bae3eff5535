"""A logger that writes plain files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...snapshot.atomic_write import append_text, atomic_file, write_atomically
from ..video import VIDEO_SUFFIXES, VideoWriter, check_video
from .base import Logger, as_settings, histogram, parse_text, parse_value, series_path


class CSVLogger(Logger):
    """Writes plain files: `scalars/NAME.csv` with lines "step,value", `videos/NAME_STEP.mp4`, `texts/NAME_STEP.txt`,
    `histograms/NAME_STEP.csv` with lines "left,right,count", and `texts/hparams0.txt`.

    Args:
        exp_name: the name of the experiment, which is the name of its folder.
        log_dir: the folder of all experiments; by default "csv_logs".
        video_format: "pt" (the tensor with the shape and dtype that it has; `[1, T, 3, H, W]` uint8 from recorders),
            "memmap" (its bytes), a video of ffmpeg ("mp4", "mkv", "mov", "gif"), or "png" (a contact sheet).
        video_fps: frames per second.

    Attributes:
        experiment: the folder of the experiment.

    Raises:
        ValueError: `video_format` is unknown.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> logger = CSVLogger("exp", log_dir=folder.name)
    >>> for step, loss in enumerate([0.5, 0.25]):
    ...     logger.log_scalar("train/loss", loss, step=step)
    >>> Path(folder.name, "exp", "scalars", "train", "loss.csv").read_text().splitlines()
    ['0,0.5', '1,0.25']
    >>> folder.cleanup()
    """

    experiment: Path

    def __init__(self, exp_name: str, log_dir: str | None = None, video_format: str = "pt", video_fps: float = 30):
        if f".{video_format}" not in VIDEO_SUFFIXES:
            formats = [suffix[1:] for suffix in VIDEO_SUFFIXES]
            raise ValueError(f"Expected a video_format of {formats}, got {video_format!r}.")
        self.video_suffix, self.video_fps = f".{video_format}", video_fps
        super().__init__(exp_name, "csv_logs" if log_dir is None else log_dir)

    def _create_experiment(self) -> Path:
        folder = series_path(Path(self.log_dir), self.exp_name, "")
        folder.mkdir(exist_ok=True)
        return folder

    def _next_path(self, kind: str, name: str, suffix: str, step: int | None) -> Path:
        """Returns the path of the next file of a series that has one file per step."""
        path = series_path(self.experiment / kind, name, "")
        return path.with_name(f"{path.name}_{self._next_step(f'{kind}/{name}', step)}{suffix}")

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Adds a line "step,value" to `scalars/NAME.csv`."""
        value = parse_value(name, value)
        path = series_path(self.experiment / "scalars", name, ".csv")
        step = self._next_step(f"scalars/{name}", step)
        append_text(path, f"{step},{value}\n")

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Writes `texts/NAME_STEP.txt`."""
        text = parse_text(name, value)
        write_atomically(self._next_path("texts", name, ".txt", step), [text.encode()])

    def log_histogram(self, name: str, data: Sequence[float] | Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Writes `histograms/NAME_STEP.csv` with a line "left,right,count" for each bin."""
        counts, edges = histogram(name, data, kwargs.get("bins"))
        bins = zip(edges[:-1], edges[1:], counts, strict=True)
        lines = (f"{left},{right},{count}\n".encode() for left, right, count in bins)
        write_atomically(self._next_path("histograms", name, ".csv", step), lines)

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Writes the settings as lines "name: value", sorted by name, to the next file `texts/hparamsN.txt`."""
        lines = sorted(f"{name}: {value}" for name, value in as_settings(cfg).items())
        number = self._next_step("hparams", None)
        path = series_path(self.experiment / "texts", f"hparams{number}", ".txt")
        write_atomically(path, ["\n".join(lines).encode()])

    def log_video(
        self,
        name: str,
        video: Tensor | np.ndarray | VideoWriter,
        step: int | None = None,
        *,
        fps: float | None = None,
    ) -> None:
        """Writes a video, see `Logger.log_video`.

        The formats "pt" and "memmap" keep shape and dtype of `[N, T, C, H, W]`; `[T, C, H, W]` gets a first size of 1.
        """
        if isinstance(video, VideoWriter) or self.video_suffix not in (".pt", ".memmap"):
            super().log_video(name, video, step, fps=fps)
            return
        check_video(video)
        if not math.prod(video.shape):
            raise ValueError(f"Expected a video with frames for {name!r}, got none. Write at least one.")
        tensor = torch.as_tensor(video).detach().cpu()
        tensor = tensor[None] if tensor.ndim == 4 else tensor
        with atomic_file(self._next_path("videos", name, self.video_suffix, step)) as file:
            if self.video_suffix == ".pt":
                torch.save(tensor.clone(memory_format=torch.contiguous_format), file)
            else:
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)

    def _add_video(self, name: str, video: VideoWriter, step: int | None) -> None:
        video.close(self._next_path("videos", name, self.video_suffix, step))

    def _video_folder(self) -> Path:
        return self.experiment / "videos"

    def print_log_dir(self) -> None:
        """Prints the files of the experiment with their sizes in bytes."""
        for path in sorted(self.experiment.rglob("*")):
            if path.is_file():
                print(f"{path.relative_to(self.experiment)}  {path.stat().st_size}")
