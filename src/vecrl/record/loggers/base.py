"""What all loggers have in common. This module must not know a logging service."""

from __future__ import annotations

import math
import re
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from ...validation import check_text, parse_optional_count
from ..video import VideoWriter, check_fps, frames_of

_MOST_BINS, _LONGEST_NAME = 2**16, 200  # the file system takes names of 255 bytes, which have a step and a suffix too
INSTALL_HINT = 'Expected {} for this logger, got none. Install it: pip install "vecrl[loggers]"'


class Logger(ABC):
    """Writes numbers, texts and videos of an experiment.

    A subclass gives `_create_experiment`, `log_scalar`, `log_histogram`, `log_str`, `log_hparams` and `_add_video`.

    Args:
        exp_name: the name of the experiment.
        log_dir: the folder of all experiments.

    Attributes:
        exp_name, log_dir: as given.
        experiment: the object of the service that stands for the experiment.
        video_fps: frames per second of videos that name none.
        video_suffix: the format of videos, a suffix of `vecrl.record.video.VIDEO_SUFFIXES`.
    """

    video_fps: float = 30.0
    video_suffix = ".mp4"

    def __init__(self, exp_name: str, log_dir: str | Path):
        check_text("exp_name", exp_name)
        check_fps(self.video_fps)
        self.exp_name, self.log_dir = exp_name, str(log_dir)
        self._counts: Counter[str] = Counter()
        self.experiment = self._create_experiment()

    @abstractmethod
    def _create_experiment(self) -> Any:
        """Returns the object that stands for the experiment."""

    def _next_step(self, series: str, step: int | None) -> int:
        """Counts a value of a series, and returns its step: `step`, or the number of earlier values."""
        step = None if step is None else parse_step(step)
        count = self._counts[series]
        self._counts[series] += 1
        return count if step is None else step

    @abstractmethod
    def log_scalar(self, name: str, value: float, step: int | None = None) -> None:
        """Writes a number.

        Args:
            name: the name of the series; "/" separates groups.
            value: the number.
            step: its position; by default the number of values that the series has.
        """

    @abstractmethod
    def log_str(self, name: str, value: str, step: int | None = None) -> None:
        """Writes a text; the arguments are those of `log_scalar`."""

    @abstractmethod
    def log_histogram(self, name: str, data: Sequence[float] | Tensor, step: int | None = None, **kwargs: Any) -> None:
        """Writes the distribution of numbers.

        Args:
            name, step: see `log_scalar`.
            data: the numbers, in any shape.
            kwargs: `bins`, the number of bins.
        """

    @abstractmethod
    def log_hparams(self, cfg: Mapping[str, Any]) -> None:
        """Writes the settings of the experiment.

        Args:
            cfg: settings by name; may be nested.
        """

    def log_metrics(
        self, metrics: Mapping[str, Any] | TensorDictBase, step: int | None = None, *, keys_sep: str = "/"
    ) -> dict[str, float]:
        """Writes several numbers.

        Args:
            metrics: numbers, or tensors of one element, by name; may be nested.
            step: see `log_scalar`.
            keys_sep: separates the parts of nested names.

        Returns:
            The numbers by name.
        """
        numbers = {name: parse_value(name, value) for name, value in flatten(metrics, keys_sep).items()}
        for name, value in numbers.items():
            self.log_scalar(name, value, step)
        return numbers

    def new_video(self, fps: float | None = None) -> VideoWriter:
        """Returns a video to write frames to, which `log_video` takes when it is complete."""
        fps = self.video_fps if fps is None else fps
        return VideoWriter(fps=fps, suffix=self.video_suffix, folder=self._video_folder())

    def log_video(
        self,
        name: str,
        video: Tensor | np.ndarray | VideoWriter,
        step: int | None = None,
        *,
        fps: float | None = None,
    ) -> None:
        """Writes a video.

        Args:
            name, step: see `log_scalar`.
            video: `[T, C, H, W]` or `[T, H, W, C]`, uint8 or floats in [0, 1]; further leading sizes make a grid. Or
                a video from `new_video`, which is closed.
            fps: frames per second; by default `video_fps`. A video from `new_video` has its own.

        Raises:
            ValueError: the video has no frames, or its shape does not fit.
        """
        check_series(name)
        if not isinstance(video, VideoWriter):
            frames, video = frames_of(video), self.new_video(fps)
            try:
                for frame in frames:
                    video.write(frame)
            except BaseException:
                video.discard()
                raise
        if not video.num_frames:
            video.discard()
            raise ValueError(f"Expected a video with frames for {name!r}, got none.")
        self._add_video(name, video, step)

    @abstractmethod
    def _add_video(self, name: str, video: VideoWriter, step: int | None) -> None:
        """Closes a video and adds it to the experiment."""

    def _video_folder(self) -> Path:
        """Returns the folder of videos that are not complete."""
        return Path(self.log_dir, self.exp_name)

    def close(self) -> None:  # noqa: B027 -- optional
        """Ends the experiment; everything is written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(exp_name={self.exp_name!r}, log_dir={self.log_dir!r})"


def as_settings(cfg: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns settings by name; raises a ValueError if they are none."""
    if not isinstance(cfg, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"Expected settings by name, got {cfg!r:.80}.")
    return cfg


def flatten(values: Any, separator: str = "/", prefix: str = "") -> dict[str, Any]:
    """Returns nested mappings or TensorDicts as one dict; names are joined by `separator`.

    >>> flatten({"loss": {"actor": 1.0, "critic": 2.0}, "step": 3})
    {'loss/actor': 1.0, 'loss/critic': 2.0, 'step': 3}
    """
    if not isinstance(values, Mapping | TensorDictBase):
        raise ValueError(f"Expected values by name, got {values!r:.80}.")
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping | TensorDictBase):
            flat |= flatten(value, separator, path + separator)
        else:
            flat[path] = value
    return flat


def histogram(name: str, data: Sequence[float] | Tensor, bins: int | None) -> tuple[list[int], list[float]]:
    """Returns the counts in `bins` bins of equal width (64 by default), and the edges of the bins.

    Raises:
        ValueError: as `parse_data`.
    """
    numbers, bins = parse_data(name, data, bins)
    counts, edges = np.histogram(numbers.numpy(), bins=bins or 64)
    return counts.tolist(), edges.tolist()


def parse_data(name: str, data: Sequence[float] | Tensor, bins: int | None) -> tuple[Tensor, int | None]:
    """Returns the numbers of a histogram, `[n]` float64 on the CPU, and the number of its bins.

    Raises:
        ValueError: `name` cannot be the name of a series, there are no numbers or infinite ones, or too many bins.
    """
    check_series(name)
    bins = parse_optional_count("bins", bins)
    if bins is not None and bins > _MOST_BINS:
        raise ValueError(f"Expected bins of {_MOST_BINS} or less, got {bins}.")
    try:
        numbers = torch.as_tensor(data).detach().cpu().flatten()
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(0)
    if not numbers.numel() or numbers.is_complex() or not numbers.isfinite().all():
        raise ValueError(f"Expected finite numbers for the histogram {name!r}, one or more, got {data!r:.80}.")
    return numbers.double(), bins


def parse_value(name: str, value: Any) -> float:
    """Returns a number for the series `name` as a float.

    Raises:
        ValueError: `name` cannot be the name of a series, or `value` is no number.
    """
    check_series(name)
    if not isinstance(value, str | bytes):
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            return float(value.item() if getattr(value, "size", 0) == 1 else value)
    raise ValueError(f"Expected a number for {name!r}, got {value!r:.80}.")


def parse_text(name: str, value: str) -> str:
    """Returns a text for the series `name`.

    Raises:
        ValueError: `name` cannot be the name of a series, or `value` is no text, or one that UTF-8 does not have.
    """
    check_series(name)
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"Expected a text for {name!r}, got {value!r:.80}.")
    return value


def parse_step(step: object) -> int:
    """Returns a step as an int.

    Raises:
        ValueError: it is no whole number of 0 or more.
    """
    number: Any = step.item() if isinstance(step, Tensor | np.ndarray) and step.ndim == 0 else step
    if (
        not isinstance(number, int | float | np.integer | np.floating)
        or not 0 <= number < math.inf
        or number != int(number)
    ):
        raise ValueError(f"Expected a step that is a whole number of 0 or more, got {step!r}.")
    return int(number)


def check_series(name: object) -> list[str]:
    """Returns the parts of the name of a series.

    Raises:
        ValueError: it is no text, is empty or long, has characters such as line breaks, or leads out of a folder.
    """
    parts = name.split("/") if isinstance(name, str) and name.isprintable() else [""]
    if not all(0 < len(part.encode()) <= _LONGEST_NAME for part in parts) or ".." in parts:
        raise ValueError(f"Expected a name such as 'train/loss', got {name!r:.80}.")
    return parts


def series_path(folder: Path, name: str, suffix: str) -> Path:
    """Returns the path of the file of a series in `folder`, and makes its folder.

    Raises:
        ValueError: `name` cannot be the name of a series.
    """
    parts = check_series(name)
    path = folder.joinpath(*parts[:-1], parts[-1] + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def generate_exp_name(model_name: str, experiment_name: str) -> str:
    """Returns a name for an experiment that no other has: both names, random digits and the time.

    >>> generate_exp_name("ppo", "pong").startswith("ppo_pong_")
    True
    """
    name = re.sub(r"[/\\\s]+", "-", f"{model_name}_{experiment_name}")
    return f"{name}_{secrets.token_hex(4)}_{datetime.now():%y_%m_%d-%H_%M_%S}"
