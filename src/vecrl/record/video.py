"""Writes videos frame by frame, so that memory does not grow with the length of the video.

This module must not know environments.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import VideoError
from ..imports import import_library
from ..snapshot.atomic_write import open_draft, replace_file
from .raw_tensor import RawTensor

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov", ".gif", ".png", ".pt", ".memmap")
_SHEET_FRAMES = 24  # the maximum number of frames on a contact sheet
_GIF_FILTER = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"  # one palette for each frame


class VideoWriter:
    """Writes the frames of a video to a file as they arrive.

    The file is written under a temporary name in its folder, and gets its own name when it is complete. So no
    incomplete file has the name of a video. A killed process leaves the temporary file, which the next video of the
    same name removes.

    Args:
        path: the file. Its suffix selects the format: encoded by ffmpeg (".mp4", ".mkv", ".mov", ".gif"); a contact
            sheet of at most 24 frames, evenly spread over the video (".png"); a tensor `[1, T, 3, H, W]` uint8 by
            `torch.save` (".pt") or as the bare bytes that `tensordict.MemoryMappedTensor` reads (".memmap"). None to
            give the path to `close`.
        fps: frames per second.
        suffix, folder: the suffix and the folder of the temporary file if there is no path.

    Attributes:
        path: the file; None if there is no path yet.
        fps: frames per second.
        num_frames: the number of frames that were written.
        frame_shape: their shape `(H, W, 3)`; `()` before the first.

    Raises:
        ValueError: the suffix is unknown, or `fps` is no finite number above 0.
        ImportError: imageio-ffmpeg is not installed, which the formats of ffmpeg need.

    >>> import tempfile, torch
    >>> folder = tempfile.TemporaryDirectory()
    >>> with VideoWriter(f"{folder.name}/noise.gif", fps=10) as video:
    ...     for _ in range(5):
    ...         video.write(torch.randint(256, (32, 48, 3), dtype=torch.uint8))
    >>> video.num_frames, video.frame_shape, video.path.name
    (5, (32, 48, 3), 'noise.gif')
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        fps: float = 30.0,
        suffix: str = ".mp4",
        folder: str | Path = ".",
    ):
        self.path = None if path is None else Path(path)
        suffix = suffix if self.path is None else self.path.suffix.lower()
        if suffix not in VIDEO_SUFFIXES:
            known = ", ".join(VIDEO_SUFFIXES)
            raise ValueError(f"Expected a video file with a suffix of {known}, got {suffix or str(path)!r}. Rename it.")
        check_fps(fps)
        folder = Path(folder) if self.path is None else self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        self._sink: _Sink | None = None
        self._lock, self._draft = open_draft(self.path or folder / f"video{suffix}", suffix)
        self.fps = float(fps)
        self.num_frames = 0
        self.frame_shape: tuple[int, ...] = ()
        try:
            self._sink = _make_sink(self._draft, self.fps)
        except BaseException:
            self._remove_draft()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether the video is finished or discarded."""
        return self._sink is None

    def write(self, frame: Tensor | np.ndarray) -> None:
        """Adds a frame.

        Args:
            frame: `[H, W, 3]`, `[3, H, W]`, or the same with 1 or 4 channels, or `[H, W]`; integers in
                [0, 255], or floats in [0, 1].

        Raises:
            ValueError: it has another shape or dtype, another size than the frames before, or the video is closed.
            VideoError: (an OSError) the video could not be encoded or written whole, as on a full disk. An existing
                file is kept, and the video is closed.
        """
        if self._sink is None:
            raise ValueError("Expected an open video, got a frame for a closed one. Make a new VideoWriter.")
        image = to_rgb(frame)
        if self.num_frames and image.shape != self.frame_shape:
            raise ValueError(
                f"Expected frames of shape {self.frame_shape}, as the first, got {image.shape}. Resize the frame, or "
                "write it to another video."
            )
        self.frame_shape = image.shape
        try:
            with self._video_errors():
                self._sink.write(image)
        except VideoError:
            self.discard()
            raise
        self.num_frames += 1

    def close(self, path: str | Path | None = None) -> Path | None:
        """Finishes the video.

        Args:
            path: the file to move it to, with the same suffix as before; by default the path given to the constructor.

        Returns:
            The path of the file; None if there were no frames, and so no file.

        Raises:
            ValueError: there is no path, or its suffix is that of another format. The video remains open.
            VideoError: as `write`.
        """
        if self._sink is None:
            return self.path
        new_path = self.path if path is None else Path(path)
        if new_path is None:
            raise ValueError("Expected the path of the video, got none. Give one to the constructor or to close.")
        if new_path.suffix.lower() != self._draft.suffix:
            raise ValueError(
                f"Expected a path with the suffix of the video, {self._draft.suffix}, got {str(new_path)!r}. Rename "
                "it, or make the VideoWriter with the other suffix."
            )
        self.path = new_path
        sink, self._sink = self._sink, None
        try:
            with self._video_errors():
                sink.close()
                if self.num_frames:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    replace_file(self._draft, self.path)
        except BaseException:
            sink.discard()
            raise
        finally:
            self._remove_draft()
        return self.path if self.num_frames else None

    def discard(self) -> None:
        """Ends the video without a file. Has no effect on a closed one."""
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.discard()
            finally:
                self._remove_draft()

    @contextmanager
    def _video_errors(self) -> Iterator[None]:
        """A context in which errors of files and of libraries that write them become a `VideoError`."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch raises a RuntimeError if it cannot write
            reason = " ".join(str(error).split()) or type(error).__name__
            raise VideoError(
                f"Expected to write the whole video {self.path or self._draft}, got an error after {self.num_frames} "
                f"frames: {reason}. Free disk space, or change the frames, then record again."
            ) from error

    def _remove_draft(self) -> None:
        self._draft.unlink(missing_ok=True)
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self):
        if getattr(self, "_sink", None) is not None:
            self.discard()


def check_fps(fps: object) -> None:
    """Raises a ValueError unless `fps` is a finite number above 0."""
    if not isinstance(fps, Real) or not 0 < float(fps) < math.inf:
        raise ValueError(f"Expected fps to be a finite number above 0, got {fps!r}. Give the frames per second.")


def to_rgb(frame: Tensor | np.ndarray) -> np.ndarray:
    """Returns a frame as an array `[H, W, 3]` uint8.

    Args:
        frame: `[H, W, C]`, `[C, H, W]` with 1, 3 or 4 channels, or `[H, W]`; integers in [0, 255], or floats in [0, 1].
            If both the first and the last size could be channels, the last is.

    Raises:
        ValueError: it has another shape or dtype.
    """
    image: Any = frame.detach().cpu().numpy() if isinstance(frame, Tensor) else frame
    if not isinstance(image, np.ndarray):
        raise ValueError(f"Expected a frame as a tensor or an array, got {type(frame).__name__}. Convert it.")
    if image.ndim == 3 and image.shape[-1] not in (1, 3, 4) and image.shape[0] in (1, 3, 4):
        image = np.moveaxis(image, 0, -1)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[-1] not in (1, 3, 4) or 0 in image.shape:
        raise ValueError(
            "Expected a frame [H, W, C] or [C, H, W] with 1, 3 or 4 channels, or [H, W], got shape "
            f"{tuple(frame.shape)}. Reshape it."
        )
    if np.issubdtype(image.dtype, np.floating):
        image = np.round(np.clip(np.nan_to_num(image), 0.0, 1.0) * 255.0).astype(np.uint8)
    elif image.dtype == np.bool_:
        image = image.astype(np.uint8) * np.uint8(255)
    elif np.issubdtype(image.dtype, np.integer):
        image = image.clip(0, 255).astype(np.uint8, copy=False)
    else:
        raise ValueError(f"Expected a frame of integers, or of floats in [0, 1], got {image.dtype}. Convert it.")
    return np.ascontiguousarray(np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image[..., :3])


def tile(frames: Tensor | np.ndarray | Sequence[np.ndarray], columns: int | None = None) -> np.ndarray:
    """Arranges frames in a grid, row by row; missing frames of the last row are black.

    Args:
        frames: `[N, ...]`, each frame as in `to_rgb`; one or more of the same size.
        columns: the number of columns; by default about as many as rows.

    Returns:
        An image `[rows * H, columns * W, 3]` uint8.

    Raises:
        ValueError: there are no frames, or frames of several sizes; or as `to_rgb`.

    >>> tile(np.zeros((5, 10, 20, 3), np.uint8)).shape
    (20, 60, 3)
    """
    images = [to_rgb(frame) for frame in frames]
    shapes = sorted({image.shape for image in images})
    if len(shapes) != 1:
        got = f"shapes {', '.join(map(str, shapes))}" if shapes else "none"
        raise ValueError(f"Expected one frame or more, of the same shape, got {got}. Give frames of one shape.")
    count, (height, width, channels) = len(images), shapes[0]
    columns = columns or math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    grid = np.zeros((rows * columns, height, width, channels), np.uint8)
    grid[:count] = images
    grid = grid.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels)


def check_video(video: object) -> None:
    """Raises a ValueError unless `video` is a tensor or an array of one video or more, `[..., T, C, H, W]`."""
    if not isinstance(video, Tensor | np.ndarray) or video.ndim < 4 or 0 in video.shape[:-4]:
        got = f"shape {tuple(video.shape)}" if isinstance(video, Tensor | np.ndarray) else type(video).__name__
        raise ValueError(
            f"Expected a video [..., T, C, H, W] as a tensor or an array, got {got}. Give one video or more."
        )


def frames_of(video: Tensor | np.ndarray) -> Iterator[np.ndarray]:
    """Yields the frames of a video, and grids of the frames of several videos, as arrays `[H, W, 3]` uint8.

    Args:
        video: `[T, C, H, W]` or `[T, H, W, C]`, each frame as in `to_rgb`; several videos have leading dimensions.

    Raises:
        ValueError: the video has fewer than four dimensions or an empty leading one, or is no tensor or array.
    """
    check_video(video)
    batch = video.reshape(math.prod(video.shape[:-4]), *video.shape[-4:])
    for step in range(batch.shape[1]):
        frames = batch[:, step]
        yield to_rgb(frames[0]) if len(frames) == 1 else tile(frames)


# -- formats


class _Sink(Protocol):
    """Writes images `[H, W, 3]` uint8 of one size to a file."""

    def write(self, image: np.ndarray) -> None: ...

    def close(self) -> None: ...

    def discard(self) -> None:
        """Frees what the sink uses, since its file will be removed. May be called after `close`."""


def _make_sink(path: Path, fps: float) -> _Sink:
    if path.suffix == ".png":
        return _ContactSheet(path)
    if path.suffix in (".pt", ".memmap"):
        return _TensorFile(path)
    return _EncodedVideo(path, fps)


def require_ffmpeg() -> Any:
    """Returns the package imageio-ffmpeg.

    Raises:
        VersionError: (an ImportError) it is not installed.
    """
    return import_library(
        "imageio_ffmpeg", 'Expected imageio-ffmpeg for videos, got none. Install it: pip install "vecrl[video]"'
    )


class _EncodedVideo:
    """A video encoded by an ffmpeg process."""

    def __init__(self, path: Path, fps: float):
        self._program, self._path = require_ffmpeg().get_ffmpeg_exe(), path
        self._rate = str(Fraction(fps).limit_denominator(65535))
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", self._rate, "-i", "-", "-an"]
        output = ["-vcodec", "libx264", "-pix_fmt", "yuv420p", "-crf", "25"]
        if self._path.suffix == ".gif":
            output = ["-vcodec", "gif", "-pix_fmt", "pal8", "-filter_complex", _GIF_FILTER]
        command = [self._program, "-y", "-v", "warning", *source, *output, str(self._path.absolute())]
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 -- no pipe, which could fill up
        # JAX warns at a fork, since the new process could wait for a lock that one of JAX's threads holds. Here it
        # cannot, since it runs ffmpeg at once and no code of JAX.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
                start_new_session=True,  # so that Ctrl-C in the terminal interrupts this process only
                # Python ignores SIGXFSZ, and ffmpeg inherits that. So if the file reaches the limit for the size of
                # files, ffmpeg gets an error and prints it, instead of being killed without a message.
                restore_signals=False,
            )

    def write(self, image: np.ndarray) -> None:
        image = _pad_to_even(image)
        if self._process is None:
            self._process = self._start(*image.shape[:2])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(image.data)
        except OSError as error:  # ffmpeg has ended
            self._process.wait()
            raise OSError(self._exit_message()) from error

    def close(self) -> None:
        process = self._process
        if process is not None:
            assert process.stdin is not None
            try:
                process.stdin.close()
                ended_early = False
            except OSError:
                ended_early = True
            if process.wait() or ended_early:
                raise OSError(self._exit_message())
            self.discard()

    def _exit_message(self) -> str:
        """Returns how ffmpeg ended and the end of what it printed."""
        assert self._process is not None
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").splitlines()
        return "; ".join([f"ffmpeg exited with status {self._process.returncode}", *lines[-3:]])

    def discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.kill()
            process.wait()
            with suppress(OSError):  # frames that were not sent
                process.stdin.close()
            self._messages.close()


class _ContactSheet:
    """An image of evenly spaced frames. When there are too many, every second one is dropped."""

    def __init__(self, path: Path):
        self._path = path
        self._images: list[np.ndarray] = []
        self._interval, self._count = 1, 0

    def write(self, image: np.ndarray) -> None:
        if self._count % self._interval == 0:
            self._images.append(image)
        self._count += 1
        if len(self._images) > _SHEET_FRAMES:
            self._images, self._interval = self._images[::2], 2 * self._interval

    def close(self) -> None:
        if self._images:
            from PIL import Image

            Image.fromarray(tile(self._images)).save(self._path, format="png")

    def discard(self) -> None:
        self._images = []


class _TensorFile:
    """A tensor `[1, T, 3, H, W]` uint8 in a file."""

    def __init__(self, path: Path):
        self._path = path
        self._is_bare = path.suffix == ".memmap"
        self._frames = RawTensor(path if self._is_bare else path.with_suffix(".raw"))

    def write(self, image: np.ndarray) -> None:
        self._frames.append(torch.from_numpy(image).permute(2, 0, 1))

    def close(self) -> None:
        if self._is_bare:
            self._frames.close()
            return
        if self._frames.length:
            torch.save(self._frames.read()[None], self._path)
        self._frames.remove()

    def discard(self) -> None:
        with suppress(OSError):  # bytes that do not fit on the disk
            self._frames.close()
        self._frames.remove()


def _pad_to_even(image: np.ndarray) -> np.ndarray:
    """Repeats the last row or column of an image if their number is odd, since yuv420p needs even sizes."""
    height, width = image.shape[:2]
    if height % 2 == width % 2 == 0:
        return image
    return np.ascontiguousarray(np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))
