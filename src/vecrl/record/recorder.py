"""Transforms that record what passes through an environment. They change no entry but add rendered images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from ..envs.entries.keys import Key, key_path
from ..envs.entries.step_mdp import as_keys
from ..envs.transforms.base import ObservationTransform, StatelessTransform
from ..imports import import_library
from ..snapshot.atomic_write import atomic_file
from ..specs import Composite, NonTensor, Unbounded
from .loggers import Logger
from .raw_tensor import RawTensor
from .video import VideoWriter, check_fps, tile, to_rgb

__all__ = ["PixelRenderTransform", "TensorDictRecorder", "VideoRecorder"]


class VideoRecorder(ObservationTransform):
    """Records images of resets and steps as a video, which `dump` gives to a logger.

    With a logger of vecrl, frames are written to a file as they arrive, so memory does not grow. Otherwise they are
    held in `obs` until `dump`. Images pass unchanged.

    Args:
        logger: writes the videos: one of `vecrl.record`, or any object with `log_video(name, video, step=...)`, which
            gets `[1, T, 3, H, W]` uint8, and `fps` if it was given. None for no logger; `dump` then drops the frames.
        tag: the name of the videos; None without a logger.
        in_keys: the key of the images, `[*batch, 3, H, W]` or `[*batch, H, W, 3]`, uint8 or floats in [0, 1]; by
            default "pixels".
        skip: record every `skip`-th image; by default 2 in an environment, 1 on stored data.
        center_crop: record only a square of this size in the center.
        make_grid: put the images of a batch side by side; if False, each is a frame of its own. True by default.
        out_keys: keys at which the images are written again.
        fps: frames per second; by default that of the logger.

    Attributes:
        obs: the frames since the last `dump`, each `[3, H, W]` uint8 on the CPU; empty with a logger of vecrl.

    Raises:
        TypeError: the logger has no `log_video`, or a logger has no tag.
        ValueError: `skip` or `center_crop` is less than 1, `in_keys` are several, or `fps` is no finite number above 0.

    >>> import tempfile
    >>> from vecrl.envs import GymEnv
    >>> from vecrl.record import CSVLogger, PixelRenderTransform
    >>> folder = tempfile.TemporaryDirectory()
    >>> logger = CSVLogger("exp", log_dir=folder.name, video_format="mp4")
    >>> env = GymEnv("CartPole-v1", render_mode="rgb_array").append_transform(PixelRenderTransform())
    >>> env = env.append_transform(VideoRecorder(logger, "run", skip=1))
    >>> data = env.rollout(5)
    >>> env.transform.dump()
    >>> [path.name for path in Path(folder.name).rglob("*.mp4")]
    ['run_0.mp4']
    >>> env.close()
    >>> folder.cleanup()
    """

    excluded_from_state = ("logger", "_video", "obs")

    def __init__(
        self,
        logger: Any,
        tag: str | None = None,
        in_keys: Sequence[Key] | None = None,
        skip: int | None = None,
        center_crop: int | None = None,
        make_grid: bool | None = None,
        out_keys: Sequence[Key] | None = None,
        fps: float | None = None,
    ):
        in_keys = ["pixels"] if in_keys is None else as_keys(in_keys)
        if len(in_keys) != 1:
            raise ValueError(f"Expected one key of images, got {in_keys}. Use one VideoRecorder for each.")
        for name, value in (("skip", skip), ("center_crop", center_crop)):
            if value is not None and value < 1:
                raise ValueError(f"Expected {name} of 1 or more, got {value}.")
        if fps is not None:
            check_fps(fps)
        if logger is not None and not callable(getattr(logger, "log_video", None)):
            raise TypeError(
                f"Expected a logger with log_video, or None, got {type(logger).__name__}. Use one of vecrl.record."
            )
        if logger is not None and not isinstance(tag, str):
            raise TypeError(f'Expected a tag as text, the name of the videos, got {tag!r}. Give one, such as "eval".')
        super().__init__(in_keys=in_keys, out_keys=out_keys)
        self.logger, self.tag, self.skip = logger, tag, skip
        self._center_crop, self._fps = center_crop, fps
        self._make_grid = make_grid is not False
        self._video: VideoWriter | None = None
        self.obs: list[Tensor] = []
        self._num_images = self._num_dumps = 0

    def _apply_transform(self, value: Tensor) -> Tensor:
        self._num_images += 1
        skip = (1 if self.parent is None else 2) if self.skip is None else self.skip
        if self._num_images % skip == 0:
            if self._video is None and isinstance(self.logger, Logger):
                self._video = self.logger.new_video(self._fps)
            for frame in self._frames_of(value):
                if self._video is None:
                    self.obs.append(torch.from_numpy(frame).permute(2, 0, 1))
                else:
                    self._video.write(frame)
        return value

    def _frames_of(self, images: Tensor) -> list[np.ndarray]:
        batch = images.detach().reshape(-1, *images.shape[-3:]) if images.ndim > 3 else images.detach()[None]
        frames = [to_rgb(image) for image in batch]
        if self._center_crop is not None:
            frames = [_crop_center(frame, self._center_crop) for frame in frames]
        return [tile(frames)] if self._make_grid and len(frames) > 1 else frames

    def _spec(self, spec: Any) -> Any:
        return spec

    def dump(self, suffix: str | None = None, step: int | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gives the video since the last call to the logger, and starts a new one. No effect without images.

        Args:
            suffix: is added to the name, as "TAG_SUFFIX".
            step: the step of the video; by default the number of earlier videos.
        """
        video, self._video = self._video, None
        frames, self.obs = self.obs, []
        self._num_images = 0
        if self.logger is None or (video is None and not frames):
            return
        name = self.tag if suffix is None else f"{self.tag}_{suffix}"
        step = self._num_dumps if step is None else step
        if video is not None:
            self.logger.log_video(name, video, step=step)
        else:
            options = {} if self._fps is None else {"fps": self._fps}
            self.logger.log_video(name, torch.stack(frames)[None], step=step, **options)
        self._num_dumps += 1

    def to_animation(
        self, *, title: str | None = None, interval: int = 50, repeat_delay: int = 1000, clear: bool = False
    ) -> Any:
        """Returns the frames in `obs` as a `matplotlib.animation.ArtistAnimation`.

        Its `to_jshtml()` shows it in a notebook, and its `save` writes a file.

        Args:
            title: the title of the plot.
            interval: the time between frames in milliseconds.
            repeat_delay: the time before the animation starts again, in milliseconds.
            clear: whether to drop the frames, as `dump` does without a logger.

        Raises:
            VersionError: (an ImportError) matplotlib is not installed.
            ValueError: there are no frames; a logger of vecrl writes them to its files at once.
        """
        import_library(
            "matplotlib.animation", "Expected matplotlib for animations, got none. Install it: pip install matplotlib"
        )
        from matplotlib.animation import ArtistAnimation
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        if not self.obs:
            reason = "Step the environment." if not isinstance(self.logger, Logger) else "Use logger=None to hold them."
            raise ValueError(f"Expected frames in obs, got none. {reason}")
        figure = Figure()
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_axis_off()
        if title is not None:
            axes.set_title(title)
        images = [[axes.imshow(frame.permute(1, 2, 0).numpy(), animated=True)] for frame in self.obs]
        if clear:
            self.obs = []
        return ArtistAnimation(figure, images, interval=interval, repeat_delay=repeat_delay)

    def close(self) -> None:
        """Gives the rest of the video to the logger. Without a logger, `obs` keeps the frames."""
        if self.logger is not None:
            self.dump()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_video": None, "obs": []}


class TensorDictRecorder(StatelessTransform):
    """Records results of steps, which `dump` saves as one TensorDict with time as the first dimension.

    Values are written to temporary files as they arrive, so memory does not grow. Entries pass unchanged.

    Args:
        out_file_base: the beginning of the names of files. `dump` writes "BASE_tensordict.t", or
            "BASE_SUFFIX_tensordict.t", which `torch.load(..., weights_only=False)` reads.
        skip_reset: do not record the results of resets.
        skip: record every `skip`-th result.
        in_keys: the keys to record; all by default.

    Raises:
        ValueError: `skip` is less than 1.
    """

    excluded_from_state = ("_columns", "_folder")

    def __init__(
        self,
        out_file_base: str,
        skip_reset: bool = True,
        skip: int = 4,
        in_keys: Sequence[Key] | None = None,
    ):
        if skip < 1:
            raise ValueError(f"Expected skip of 1 or more, got {skip}.")
        super().__init__(in_keys=None if in_keys is None else as_keys(in_keys))
        self.out_file_base, self.skip, self.skip_reset = out_file_base, skip, skip_reset
        self._records_all = in_keys is None
        self._num_results = 0
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[tuple[str, ...], RawTensor | list[Any]] = {}
        self._batch_size = torch.Size()
        self._length = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._num_results += 1
        if self._num_results % self.skip == 0:
            recorded = next_tensordict if self._records_all else next_tensordict.select(*self.in_keys)
            self._record(recorded)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset if self.skip_reset else self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Records stored data."""
        return self._call(tensordict)

    def _record(self, data: TensorDictBase) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="vecrl-recorder-")
            self._batch_size = data.batch_size
        value: Any
        for key, value in data.items(include_nested=True, leaves_only=True, is_leaf=_is_leaf):
            path = key_path(key)
            column = self._columns.get(path)
            if column is None:
                column = RawTensor(Path(self._folder.name, str(len(self._columns)))) if type(value) is Tensor else []
                self._columns[path] = column
            column.append(value)
        self._length += 1

    def dump(self, suffix: str | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Saves what was recorded since the last call. No effect without any.

        Args:
            suffix: is added to the name of the file.
        """
        if self._folder is None:
            return
        names = [self.out_file_base, *([] if suffix is None else [suffix]), "tensordict.t"]
        path = Path("_".join(names))
        path.parent.mkdir(parents=True, exist_ok=True)
        data = TensorDict({}, [self._length, *self._batch_size])
        for key, column in self._columns.items():
            data.set(key, column.read() if isinstance(column, RawTensor) else torch.stack(column))
        with atomic_file(path) as file:
            torch.save(data, file)
        for column in self._columns.values():
            if isinstance(column, RawTensor):
                column.remove()
        self._folder.cleanup()
        self._num_results = 0
        self._clear()


class PixelRenderTransform(StatelessTransform):
    """Adds the rendered image of the environment to the results of resets and steps.

    Args:
        out_keys: the key of the image; by default "pixels".
        preproc: a function applied to what the environment renders.
        as_non_tensor: store the image unchanged, not as a tensor; False by default.
        render_method: the method of the environment that renders.
        pass_tensordict: pass the TensorDict of the result to that method.
        kwargs: passed to that method.

    The image is `[*batch, H, W, 3]` uint8, as rendered; batches render lists of images, which are stacked. To find its
    spec, the environment is rendered once, and reset before if it needs to be.

    Raises:
        RuntimeError: on use with stored data, as there is no environment to render.
        ValueError: the environment renders no image; its message says how to make one that does.
    """

    def __init__(
        self,
        out_keys: Sequence[Key] | None = None,
        preproc: Callable[[Any], Any] | None = None,
        as_non_tensor: bool | None = None,
        render_method: str = "render",
        pass_tensordict: bool = False,
        **kwargs: Any,
    ):
        out_keys = ["pixels"] if out_keys is None else as_keys(out_keys)
        if len(out_keys) != 1:
            raise ValueError(f"Expected one key for the image, got {out_keys}.")
        super().__init__(in_keys=[], out_keys=[])
        self._key = out_keys[0]
        self._preproc, self._as_non_tensor = preproc, bool(as_non_tensor)
        self.render_method, self._pass_tensordict, self._kwargs = render_method, pass_tensordict, kwargs
        self._enabled = True

    @property
    def enabled(self) -> bool:
        """Whether images are rendered."""
        return self._enabled

    def switch(self, mode: str | bool | None = None) -> None:
        """Switches rendering.

        Args:
            mode: "on" or True, "off" or False; None for the other mode.

        Raises:
            ValueError: the mode is none of these.
        """
        modes = {"on": True, "off": False, True: True, False: False, None: not self._enabled}
        if mode not in modes:
            raise ValueError(f"Expected mode 'on', 'off', a bool or None, got {mode!r}.")
        self._enabled = modes[mode]
        if self.container is not None:
            self._invalidate()

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        if self._enabled:
            next_tensordict.set(self._key, self._render(next_tensordict))
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Raises a RuntimeError: stored data have no environment to render."""
        raise RuntimeError(
            "Expected PixelRenderTransform in an environment, got stored data, which cannot be rendered."
        )

    def _render(self, tensordict: TensorDictBase) -> Any:
        arguments = (tensordict,) if self._pass_tensordict else ()
        image: Any = getattr(self._require_parent(), self.render_method)(*arguments, **self._kwargs)
        if isinstance(image, list | tuple) and any(part is not None for part in image):
            image = np.stack([np.asarray(part) for part in image])
        if image is None or isinstance(image, list | tuple):
            raise ValueError(
                "Expected an environment that renders images, got None. Make it with render_mode='rgb_array'."
            )
        image = image if self._preproc is None else self._preproc(image)
        if self._as_non_tensor:
            return NonTensorData(image, batch_size=tensordict.batch_size)
        return torch.as_tensor(np.array(image) if isinstance(image, np.ndarray) else image, device=tensordict.device)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the spec of the image."""
        if not self._enabled:
            return observation_spec
        if self._as_non_tensor:
            observation_spec[self._key] = NonTensor(observation_spec.shape, device=observation_spec.device)
            return observation_spec
        image = self._first_image()
        observation_spec[self._key] = Unbounded(image.shape, dtype=image.dtype, device=observation_spec.device)
        return observation_spec

    def _first_image(self) -> Tensor:
        parent = self._require_parent()
        try:
            return self._render(TensorDict({}, parent.batch_size, device=parent.device))
        except ValueError:
            raise
        except Exception:  # most environments cannot render before a reset
            return self._render(parent.reset())


def _is_leaf(cls: type) -> bool:
    return not issubclass(cls, TensorDictBase) or issubclass(cls, LazyStackedTensorDict)


def _crop_center(frame: np.ndarray, size: int) -> np.ndarray:
    top, left = (max(0, (length - size) // 2) for length in frame.shape[:2])
    return frame[top : top + size, left : left + size]
