"""A logger that writes runs of Weights & Biases, online or into files of an offline run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...imports import import_library
from ..video import VideoWriter
from .base import INSTALL_HINT, Logger, flatten, parse_data, parse_text, parse_value


class WandbLogger(Logger):
    """Writes a run of Weights & Biases.

    Each series has its own axis of steps, "NAME/step", so steps may come in any order. A process of wandb writes the
    files. It reports no full disk: what did not fit is missing.

    Args:
        exp_name: the name of the run.
        offline: write files that `wandb sync` uploads later, and connect to nothing.
        save_dir: the folder of the files; by default the working folder.
        id: the run's id; by default a new one. The id of an earlier run continues it.
        project: the project of the run.
        video_fps: frames per second.
        kwargs: passed on to `wandb.init`.

    Attributes:
        experiment: the run, from `wandb.init`.

    Raises:
        VersionError: (an ImportError) wandb is not installed.
    """

    def __init__(
        self,
        exp_name: str,
        offline: bool = False,
        save_dir: str | None = None,
        id: str | None = None,  # noqa: A002 -- wandb's name
        project: str | None = None,
        *,
        video_fps: float = 32,
        **kwargs: Any,
    ):
        self.offline, self.save_dir, self.id, self.project = offline, save_dir, id, project
        self.video_fps = video_fps
        self._init_options = kwargs
        self._library = import_library("wandb", INSTALL_HINT.format("wandb"))
        super().__init__(exp_name, save_dir or ".")

    def _create_experiment(self) -> Any:
        Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        options = {"resume": "allow", **self._init_options}
        if self.offline:
            options["mode"] = "offline"
            del options["resume"]
        return self._library.init(name=self.exp_name, dir=self.log_dir, id=self.id, project=self.project, **options)

    def _log(self, name: str, value: Any, step: int | None) -> None:
        step_name = f"{name}/step"
        if not self._counts[name]:
            self.experiment.define_metric(name, step_metric=step_name)
        self.experiment.log({name: value, step_name: self._next_step(name, step)})

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Writes a number."""
        self._log(name, parse_value(name, value), step)

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Writes a text."""
        self._log(name, parse_text(name, value), step)

    def log_histogram(self, name: str, data: Sequence[float] | Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Writes a distribution."""
        numbers, bins = parse_data(name, data, kwargs.get("bins"))
        self._log(name, self._library.Histogram(numbers.tolist(), num_bins=bins or 64), step)

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Writes the settings into the configuration of the run."""
        self.experiment.config.update(flatten(cfg, "."), allow_val_change=True)

    def _add_video(self, name: str, video: VideoWriter, step: int | None) -> None:
        path = video.close(self._video_folder() / f"video-{id(video)}{self.video_suffix}")
        assert path is not None
        self._log(name, self._library.Video(str(path), format="mp4"), step)
        path.unlink()  # wandb has copied it

    def _video_folder(self) -> Path:
        return Path(self.experiment.dir)

    def close(self) -> None:
        """Ends the run; everything is written."""
        self.experiment.finish()
