"""A logger that writes runs of MLflow."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ...imports import import_library
from ..video import VideoWriter
from .base import INSTALL_HINT, Logger, flatten, histogram, parse_text, parse_value


class MLFlowLogger(Logger):
    """Writes a run of MLflow; texts, distributions and videos are its artifacts.

    Args:
        exp_name: the name of the experiment, which is made if it does not exist, and of the run.
        tracking_uri: the address of the server, a folder as "file:///...", or "sqlite:///..." for a file.
        tags: tags of the run.
        artifact_location: the folder of the artifacts of a new experiment.
        video_fps: frames per second.

    Attributes:
        experiment: the run, as MLflow describes it.
        client: the `mlflow.MlflowClient`.

    Raises:
        VersionError: (an ImportError) mlflow is not installed.
    """

    def __init__(
        self,
        exp_name: str,
        tracking_uri: str,
        tags: dict[str, Any] | None = None,
        *,
        artifact_location: str | None = None,
        video_fps: float = 30,
    ):
        self._tags, self._artifact_location = tags, artifact_location
        self.video_fps = video_fps
        super().__init__(exp_name, tracking_uri)

    def _create_experiment(self) -> Any:
        self.client = import_library("mlflow", INSTALL_HINT.format("mlflow")).MlflowClient(tracking_uri=self.log_dir)
        found = self.client.get_experiment_by_name(self.exp_name)
        self.id = (
            self.client.create_experiment(self.exp_name, artifact_location=self._artifact_location)
            if found is None
            else found.experiment_id
        )
        return self.client.create_run(self.id, tags=self._tags, run_name=self.exp_name)

    @property
    def _run_id(self) -> str:
        return self.experiment.info.run_id

    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Writes a metric."""
        self.client.log_metric(self._run_id, name, parse_value(name, value), step=self._next_step(name, step))

    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Writes the artifact `texts/NAME_STEP.txt`."""
        self.client.log_text(self._run_id, parse_text(name, value), f"texts/{name}_{self._next_step(name, step)}.txt")

    def log_histogram(self, name: str, data: Sequence[float] | Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Writes the artifact `histograms/NAME_STEP.json` with the edges of the bins and the counts."""
        counts, edges = histogram(name, data, kwargs.get("bins"))
        content = {"edges": edges, "counts": counts}
        self.client.log_dict(self._run_id, content, f"histograms/{name}_{self._next_step(name, step)}.json")

    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Writes the settings as parameters of the run."""
        for name, value in flatten(cfg, ".").items():
            self.client.log_param(self._run_id, name, value)

    def _add_video(self, name: str, video: VideoWriter, step: int | None) -> None:
        folder, _, last = name.rpartition("/")
        path = video.close(self._video_folder() / f"{last}_{self._next_step(name, step)}{self.video_suffix}")
        self.client.log_artifact(self._run_id, str(path), "/".join(filter(None, ("videos", folder))))
        Path(str(path)).unlink()

    def _video_folder(self) -> Path:
        if not hasattr(self, "_temporary_folder"):
            self._temporary_folder = tempfile.TemporaryDirectory(prefix="vecrl-videos-")
        return Path(self._temporary_folder.name)

    def close(self) -> None:
        """Ends the run."""
        self.client.set_terminated(self._run_id)
