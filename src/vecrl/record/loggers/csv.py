"""A logger that writes plain files."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..video import VIDEO_SUFFIXES, VideoWriter
from .base import Logger, flatten, histogram, series_path


class CSVLogger(Logger):
    """Writes plain files: `scalars/NAME.csv` with lines "step,value", `videos/NAME_STEP.mp4`, `texts/NAME_STEP.txt`,
    `histograms/NAME_STEP.csv` with lines "left,right,count", and `texts/hparams0.txt`.

    Args:
        exp_name: the name of the experiment, which is the name of its folder.
        log_dir: the folder of all experiments; by default "csv_logs".
        video_format: "pt" (a tensor `[1, T, 3, H, W]` uint8), "memmap" (its bytes), or a film or picture: "mp4", "mkv",
            "mov", "gif", "png" (a contact sheet).
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
        step = self._next_step(f"{kind}/{name}", step)
        return series_path(self.experiment / kind, f"{name}_{step}", suffix)

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Adds a line "step,value" to `scalars/NAME.csv`."""
        path = series_path(self.experiment / "scalars", name, ".csv")
        step = self._next_step(f"scalars/{name}", step)
        with path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow((step, float(value)))

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Writes `texts/NAME_STEP.txt`."""
        self._next_path("texts", name, ".txt", step).write_text(value)

    def log_histogram(self, name: str, data: Sequence[float] | Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Writes `histograms/NAME_STEP.csv` with a line "left,right,count" for each bin."""
        counts, edges = histogram(data, kwargs.get("bins"))
        with self._next_path("histograms", name, ".csv", step).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(zip(edges[:-1], edges[1:], counts, strict=True))

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Writes the settings as lines "name: value" to the next file `texts/hparamsN.txt`."""
        number = self._next_step("hparams", None)
        lines = [f"{name}: {_to_text(value)}\n" for name, value in flatten(cfg, ".").items()]
        series_path(self.experiment / "texts", f"hparams{number}", ".txt").write_text("".join(lines))

    def _add_video(self, name: str, video: VideoWriter, step: int | None) -> None:
        video.close(self._next_path("videos", name, self.video_suffix, step))

    def _video_folder(self) -> Path:
        return self.experiment / "videos"

    def print_log_dir(self) -> None:
        """Prints the files of the experiment with their sizes in bytes."""
        for path in sorted(self.experiment.rglob("*")):
            if path.is_file():
                print(f"{path.relative_to(self.experiment)}  {path.stat().st_size}")


def _to_text(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        return str(value)
