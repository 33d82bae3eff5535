"""Videos, written frame by frame and read back."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import MemoryMappedTensor

from vecrl.errors import VersionError, VideoError
from vecrl.record.video import VideoWriter, frames_of, tile, to_rgb


def gray_frames(count: int, height: int = 34, width: int = 50) -> list[np.ndarray]:
    """Returns frames of one shade each, which becomes brighter."""
    return [np.full((height, width, 3), 4 * i, np.uint8) for i in range(count)]


def write(path: Path, frames: Any, **options: Any) -> VideoWriter:
    with VideoWriter(path, **options) as video:
        for frame in frames:
            video.write(frame)
    return video


def read_video(path: Path, height: int, width: int) -> np.ndarray:
    """Returns the frames of an encoded video."""
    import imageio_ffmpeg

    options = ["-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), *options], check=True, capture_output=True).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov", ".gif"])
def test_encoded_videos_have_all_frames_in_order(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"video{suffix}", gray_frames(40), fps=np.float32(20))
    import imageio_ffmpeg

    num_frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / f"video{suffix}"))
    assert (num_frames, seconds) == (40, pytest.approx(2.0, abs=0.1))
    shades = read_video(tmp_path / f"video{suffix}", 34, 50).mean((1, 2, 3))
    np.testing.assert_allclose(shades, 4 * np.arange(40), atol=4)


def test_odd_sizes_are_padded(tmp_path: Path) -> None:
    write(tmp_path / "video.mp4", gray_frames(3, 33, 51))
    assert len(read_video(tmp_path / "video.mp4", 34, 52)) == 3


def test_tensor_files_hold_the_exact_frames(tmp_path: Path) -> None:
    frames = torch.randint(256, (7, 3, 8, 9), dtype=torch.uint8)
    write(tmp_path / "video.pt", frames)
    write(tmp_path / "video.memmap", frames)
    torch.testing.assert_close(torch.load(tmp_path / "video.pt", weights_only=True), frames[None])
    mapped = MemoryMappedTensor.from_filename(
        str(tmp_path / "video.memmap"), dtype=torch.uint8, shape=torch.Size([1, 7, 3, 8, 9])
    )
    torch.testing.assert_close(mapped.as_subclass(torch.Tensor), frames[None])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["video.memmap", "video.pt"]


def test_a_contact_sheet_shows_frames_of_the_whole_video(tmp_path: Path) -> None:
    from PIL import Image

    write(tmp_path / "sheet.png", gray_frames(60, 10, 20))
    with Image.open(tmp_path / "sheet.png") as image:
        sheet = np.asarray(image)
    shades = sorted(set(sheet.reshape(-1).tolist()))
    assert sheet.shape[0] % 10 == sheet.shape[1] % 20 == 0
    assert len(shades) <= 24
    assert shades[0] == 0
    assert shades[-1] >= 4 * 48
    assert len(set(np.diff(shades))) == 1


def test_memory_does_not_grow_with_the_video(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    frame = np.random.default_rng(0).integers(256, size=(256, 256, 3), dtype=np.uint8)
    process = psutil.Process()
    with VideoWriter(tmp_path / "video.memmap") as video:
        for _ in range(20):
            video.write(frame)
        before = process.memory_info().rss
        for _ in range(1000):  # 196 MB
            video.write(frame)
        assert process.memory_info().rss - before < 40e6
    assert (tmp_path / "video.memmap").stat().st_size == 1020 * frame.size


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), VideoWriter(tmp_path / "video.mp4") as video:  # noqa: PT012
        video.write(np.zeros((8, 8, 3), np.uint8))
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_new_video_removes_the_incomplete_file_of_a_killed_process(tmp_path: Path) -> None:
    """Other videos, and a video that is being written to the same path, keep their files."""
    path = tmp_path / "video.mp4"
    incomplete, other = (tmp_path / f".{name}.mp4.0123abcd.draft.mp4" for name in ("video", "other"))
    for file in (incomplete, other):
        file.write_bytes(b"x")
    first = VideoWriter(path)
    assert not incomplete.exists()
    first.write(np.zeros((8, 8, 3), np.uint8))
    with VideoWriter(path) as second:
        second.write(np.zeros((8, 8, 3), np.uint8))
    assert first.close() == path
    assert sorted(tmp_path.iterdir()) == [other, path]


def test_an_existing_file_is_kept_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = write(tmp_path / "video.pt", gray_frames(2)).path
    assert path is not None
    video = VideoWriter(path)
    video.write(np.zeros((8, 8, 3), np.uint8))
    assert torch.load(path, weights_only=True).shape == (1, 2, 3, 34, 50)
    video.close()
    assert torch.load(path, weights_only=True).shape == (1, 1, 3, 8, 8)


def test_a_forgotten_video_leaves_neither_file_nor_process(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    video = VideoWriter(tmp_path / "video.mp4")
    video.write(np.zeros((8, 8, 3), np.uint8))
    assert len(psutil.Process().children()) >= 1
    del video
    assert list(tmp_path.iterdir()) == []
    assert not [child for child in psutil.Process().children() if "ffmpeg" in child.name()]


@pytest.mark.parametrize("suffix", [".mp4", ".png", ".pt", ".memmap"])
def test_a_video_without_frames_makes_no_file(tmp_path: Path, suffix: str) -> None:
    video = VideoWriter(tmp_path / f"video{suffix}")
    assert video.close() is None
    assert list(tmp_path.iterdir()) == []


def test_frames_of_another_size_are_refused(tmp_path: Path) -> None:
    video = VideoWriter(tmp_path / "video.mp4")
    video.write(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"Expected frames of shape \(8, 8, 3\), as the first, got \(8, 10, 3\)"):
        video.write(np.zeros((8, 10, 3), np.uint8))
    video.discard()
    with pytest.raises(ValueError, match="Expected an open video"):
        video.write(np.zeros((8, 8, 3), np.uint8))


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Expected a video file with a suffix of .*, got '.avi'"):
        VideoWriter(tmp_path / "video.avi")
    with pytest.raises(ValueError, match="Expected the path of the video, got none"):
        VideoWriter(folder=tmp_path).close()


@pytest.mark.parametrize("first", [None, "video.png"])
def test_a_path_of_another_format_is_refused(tmp_path: Path, first: str | None) -> None:
    """The video stays open, so that the caller can give another path."""
    video = VideoWriter(None if first is None else tmp_path / first, suffix=".png", folder=tmp_path)
    video.write(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"Expected a path with the suffix of the video, \.png, got '.*other\.mp4'"):
        video.close(tmp_path / "other.mp4")
    assert not video.is_closed
    assert video.close(tmp_path / "other.PNG") == tmp_path / "other.PNG"
    assert [path.name for path in tmp_path.iterdir()] == ["other.PNG"]


@pytest.mark.parametrize(
    "frame",
    [
        torch.full((3, 4, 6), 0.5),
        torch.full((4, 6, 3), 0.5),
        torch.full((4, 6), 0.5),
        torch.full((1, 4, 6), 0.5, requires_grad=True),
        np.full((4, 6, 4), 128, np.uint8),
        np.full((4, 6, 1), 128, np.uint8),
    ],
)
def test_frames_of_all_layouts_become_rgb(frame: Any) -> None:
    np.testing.assert_array_equal(to_rgb(frame), np.full((4, 6, 3), 128, np.uint8))


def test_floats_outside_the_range_are_clipped() -> None:
    np.testing.assert_array_equal(to_rgb(np.array([[-1.0, 2.0, np.nan]]))[0, :, 0], [0, 255, 0])


@pytest.mark.parametrize("frame", [np.zeros((2, 3, 4, 5), np.uint8), np.zeros((7, 8, 9), np.uint8), np.zeros((0, 3))])
def test_frames_of_another_shape_are_refused(frame: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"Expected a frame \[H, W, C\]"):
        to_rgb(frame)


def test_integers_are_clipped() -> None:
    np.testing.assert_array_equal(to_rgb(np.array([[-1, 256, 7]]))[0, :, 0], [0, 255, 7])


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected a frame of integers, or of floats"):
        to_rgb(np.zeros((4, 6, 3), np.complex64))


def test_tiles_are_in_reading_order() -> None:
    grid = tile(np.stack([np.full((2, 3, 3), i, np.uint8) for i in range(1, 6)]), columns=3)
    np.testing.assert_array_equal(grid[::2, ::3, 0], [[1, 2, 3], [4, 5, 0]])


@pytest.mark.parametrize(
    ("frames", "got"), [([], "none"), ([np.zeros((2, 3)), np.zeros((4, 3))], r"shapes \(2, 3, 3\), \(4, 3, 3\)")]
)
def test_tiles_need_frames_of_one_shape(frames: list[np.ndarray], got: str) -> None:
    with pytest.raises(ValueError, match=f"Expected one frame or more, of the same shape, got {got}\\. Give"):
        tile(frames)


def test_empty_batches_of_videos_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected a video .*, got shape \(0, 5, 3, 6, 8\)\. Give one video or more"):
        list(frames_of(torch.zeros(0, 5, 3, 6, 8)))


def test_batches_of_videos_become_grids() -> None:
    frames = list(frames_of(torch.zeros(4, 5, 3, 6, 8)))
    assert [frame.shape for frame in frames] == [(12, 16, 3)] * 5


NO_SPACE = """
import resource, sys
import numpy as np
from vecrl.errors import VersionError, VideoError
from vecrl.record.video import VideoWriter
frames = np.random.default_rng(0).integers(256, size=(40, 64, 64, 3), dtype=np.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for path in sys.argv[1:]:
    video = VideoWriter(path)
    try:
        for frame in frames:
            video.write(frame)
        video.close()
    except VideoError as error:
        print(error)
    print(video.is_closed)
"""


@pytest.mark.timeout(300)
def test_a_video_that_does_not_fit_is_an_error_and_keeps_the_file(tmp_path: Path) -> None:
    """The process may write files of 20 kB only, as on a disk that is full then."""
    paths = [tmp_path / f"video{suffix}" for suffix in (".mp4", ".mkv", ".mov", ".gif", ".png", ".pt", ".memmap")]
    for path in paths:
        path.write_bytes(b"a good video")
    command = [sys.executable, "-W", "error", "-c", NO_SPACE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for path, message, is_closed in zip(paths, lines[::2], lines[1::2], strict=True):
        assert message.startswith(f"Expected to write the whole video {path}, got an error after ")
        assert "Free disk space" in message
        if path.suffix in (".mp4", ".mkv", ".mov", ".gif"):
            assert "ffmpeg exited with status " in message
            assert "File too large" in message
        assert is_closed == "True"
        assert path.read_bytes() == b"a good video"
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_an_encoder_that_ends_early_is_an_error_of_write(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    path = tmp_path / "video.mp4"
    path.write_bytes(b"a good video")
    frame = np.zeros((512, 512, 3), np.uint8)  # larger than the buffer of a pipe
    video = VideoWriter(path)
    video.write(frame)
    (encoder,) = [child for child in psutil.Process().children() if "ffmpeg" in child.name()]
    os.kill(encoder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, encoder.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(VideoError, match="ffmpeg exited with status -9"):
        video.write(frame)
    assert video.is_closed
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"a good video"


@pytest.mark.parametrize("fps", [0, -1, math.nan, math.inf, "30", None])
def test_wrong_rates_are_refused_before_a_file_is_made(tmp_path: Path, fps: Any) -> None:
    with pytest.raises(ValueError, match="Expected fps to be a finite number above 0, got"):
        VideoWriter(tmp_path / "video.mp4", fps=fps)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("frame", [None, "frame", [[1, 2], [3]], 3.5])
def test_frames_that_are_no_arrays_are_refused(tmp_path: Path, frame: Any) -> None:
    with (
        VideoWriter(tmp_path / "video.mp4") as video,
        pytest.raises(ValueError, match=r"Expected a frame as a tensor or an array, got \w+\. Convert it"),
    ):
        video.write(frame)
    with pytest.raises(ValueError, match=r"Expected a video \[\.\.\., T, C, H, W\] as a tensor or an array"):
        list(frames_of(frame))


def test_a_missing_encoder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(VersionError, match=r'Expected imageio-ffmpeg for videos, .* pip install "vecrl\[video\]"'):
        VideoWriter(tmp_path / "video.mp4", fps=10)
