"""Loggers, with what they write read back by the library that reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tests.fixtures.processes import wait_until

from vecrl.record.loggers import CSVLogger, Logger, get_logger
from vecrl.record.loggers.base import generate_exp_name

VIDEO = torch.arange(5, dtype=torch.uint8).mul(50)[:, None, None, None].expand(5, 3, 32, 34)


def write_everything(logger: Logger) -> None:
    with logger:
        logger.log_hparams({"lr": 1e-3, "net": {"sizes": [4, 2]}})
        numbers = logger.log_metrics({"loss": {"actor": 1.0, "critic": torch.tensor(2.0)}}, step=5)
        assert numbers == {"loss/actor": 1.0, "loss/critic": 2.0}
        logger.log_metrics(TensorDict(loss=TensorDict(actor=torch.tensor([3.0]))), step=9)
        logger.log_str("note", "hello", step=1)
        logger.log_histogram("weights", torch.linspace(0, 1, 100), step=2, bins=10)
        logger.log_video("eval/episode", VIDEO, step=2, fps=10)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_csv_files(tmp_path: Path) -> None:
    write_everything(CSVLogger("exp", log_dir=str(tmp_path)))
    folder = tmp_path / "exp"
    assert lines(folder / "scalars/loss/actor.csv") == ["5,1.0", "9,3.0"]
    assert lines(folder / "scalars/loss/critic.csv") == ["5,2.0"]
    assert lines(folder / "texts/note_1.txt") == ["hello"]
    assert lines(folder / "texts/hparams0.txt") == ["lr: 0.001", "net: {'sizes': [4, 2]}"]
    assert [line.rsplit(",", 1)[1] for line in lines(folder / "histograms/weights_2.csv")] == ["10"] * 10
    torch.testing.assert_close(torch.load(folder / "videos/eval/episode_2.pt", weights_only=True), VIDEO[None])


def test_csv_counts_values_without_a_step(tmp_path: Path) -> None:
    logger = CSVLogger("exp", log_dir=str(tmp_path), video_format="mp4")
    for value in (1.0, 2.0):
        logger.log_scalar("loss", value)
        logger.log_video("run", VIDEO)
    assert lines(tmp_path / "exp/scalars/loss.csv") == ["0,1.0", "1,2.0"]
    assert sorted(path.name for path in (tmp_path / "exp/videos").iterdir()) == ["run_0.mp4", "run_1.mp4"]


@pytest.mark.parametrize("name", ["../loss", "a/../../b", "", "/etc/loss", None, 3, "a\nb", "a\0b"])
def test_wrong_names_are_refused(tmp_path: Path, name: Any) -> None:
    logger = CSVLogger("exp", log_dir=str(tmp_path / "logs"))
    with pytest.raises(ValueError, match="Expected a name such as 'train/loss'"):
        logger.log_scalar(name, 1.0)
    with pytest.raises(ValueError, match="Expected a name such as"):
        CSVLogger("../exp", log_dir=str(tmp_path / "logs"))


def test_csv_prints_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = CSVLogger("exp", log_dir=str(tmp_path))
    logger.log_scalar("loss", 1.0)
    logger.print_log_dir()
    assert capsys.readouterr().out == "scalars/loss.csv  6\n"


def test_videos_without_frames_are_refused(tmp_path: Path) -> None:
    logger = CSVLogger("exp", log_dir=str(tmp_path))
    with pytest.raises(ValueError, match="Expected a video with frames for 'run', got none"):
        logger.log_video("run", VIDEO[:0])
    with pytest.raises(ValueError, match=r"Expected a video \[..., T, C, H, W\]"):
        logger.log_video("run", VIDEO[0])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("shape", [(1, 5, 1, 4, 6), (5, 1, 4, 6), (2, 5, 3, 4, 6)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_tensor_files_keep_shape_and_dtype(tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    video = torch.rand(shape).mul(255).to(dtype)
    expected = video if len(shape) == 5 else video[None]
    CSVLogger("exp", log_dir=str(tmp_path)).log_video("run", video.clone().requires_grad_(dtype.is_floating_point))
    torch.testing.assert_close(torch.load(tmp_path / "exp/videos/run_0.pt", weights_only=True), expected)
    CSVLogger("exp", log_dir=str(tmp_path), video_format="memmap").log_video("raw", video.numpy())
    assert (tmp_path / "exp/videos/raw_0.memmap").read_bytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("step", [float("nan"), -1, "x", 0.5, float("inf"), [1]])
def test_wrong_steps_are_refused(tmp_path: Path, step: Any) -> None:
    logger = CSVLogger("exp", log_dir=str(tmp_path))
    with pytest.raises(ValueError, match="Expected a step that is a whole number of 0 or more, got"):
        logger.log_scalar("loss", 1.0, step=step)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_steps_may_be_numbers_of_any_library(tmp_path: Path) -> None:
    logger = CSVLogger("exp", log_dir=str(tmp_path))
    for step in (1, np.int64(2), torch.tensor(3), 4.0):
        logger.log_scalar("loss", 1.0, step=step)  # pyright: ignore[reportArgumentType]
    assert lines(tmp_path / "exp/scalars/loss.csv") == ["1,1.0", "2,1.0", "3,1.0", "4,1.0"]


@pytest.mark.parametrize("fps", [0, -1, float("nan")])
def test_wrong_rates_of_videos_are_refused(tmp_path: Path, fps: float) -> None:
    with pytest.raises(ValueError, match="Expected fps to be a finite number above 0"):
        CSVLogger("exp", log_dir=str(tmp_path), video_fps=fps)
    with pytest.raises(ValueError, match="Expected fps to be a finite number above 0"):
        CSVLogger("exp", log_dir=str(tmp_path), video_format="mp4").log_video("run", VIDEO, fps=fps)


@pytest.mark.parametrize("kind", ["", None])
def test_no_logger(kind: Any) -> None:
    assert get_logger(kind, "logs", "exp") is None


def test_unknown_loggers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Expected a logger_type of 'csv', .*, got 'xml'"):
        get_logger("xml", str(tmp_path), "exp")
    with pytest.raises(ValueError, match=r"Expected a video_format of .*, got 'avi'"):
        CSVLogger("exp", log_dir=str(tmp_path), video_format="avi")


@pytest.mark.parametrize(
    ("kind", "library"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_library_is_named(tmp_path: Path, kind: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "torch.utils.tensorboard.writer" if kind == "tensorboard" else kind
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ImportError, match=f"Expected {library} for this logger, got none. Install it: pip install"):
        get_logger(kind, str(tmp_path), "exp")


def test_experiment_names_differ() -> None:
    names = {generate_exp_name("ppo", "ALE/Pong-v5") for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("ppo_ALE-Pong-v5_") for name in names)


@pytest.mark.loggers
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_everything(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = get_logger("tensorboard", str(tmp_path), "exp")
    assert logger is not None
    write_everything(logger)
    events = EventAccumulator(str(tmp_path / "exp"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/actor")] == [(5, 1.0), (9, 3.0)]
    assert [event.step for event in events.Histograms("weights")] == [2]
    (video,) = events.Images("eval/episode")
    assert (video.step, video.width, video.height) == (2, 34, 32)
    assert video.encoded_image_string.startswith(b"GIF8")
    assert [path.name for path in tmp_path.rglob("*.gif")] == []
    assert "note/text_summary" in events.Tags()["tensors"]


def read_records(path: Path) -> Iterator[Any]:
    """Yields the records in the file of an offline run: a header of 7 bytes, then parts of records as in LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        size, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if position + 7 + size > len(data):
            return
        parts += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


@pytest.mark.loggers
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = get_logger("wandb", str(tmp_path), "exp", wandb_kwargs={"offline": True, "project": "tests"})
    assert logger is not None
    run = logger.experiment
    write_everything(logger)
    (records,) = tmp_path.rglob("*.wandb")
    # Its process writes the file after `finish` has returned; the last record is that of the end.
    assert wait_until(lambda: any(record.HasField("exit") for record in read_records(records)))
    rows = [record.history.item for record in read_records(records) if record.history.item]
    history = [{i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items} for items in rows]
    actor_losses = [(row["loss/actor/step"], row["loss/actor"]) for row in history if "loss/actor" in row]
    assert actor_losses == [(5, 1.0), (9, 3.0)]
    assert [row["eval/episode/_type"] for row in history if "eval/episode/_type" in row] == ["video-file"]
    assert [row["weights/values"] for row in history if "weights/values" in row] == [[10] * 10]
    assert run.config["net.sizes"] == [4, 2]
    (video,) = tmp_path.rglob("*.mp4")
    assert "media/videos/eval" in str(video)


@pytest.mark.loggers
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_everything(tmp_path: Path) -> None:
    logger: Any = get_logger("mlflow", str(tmp_path), "exp")
    write_everything(logger)
    client, run_id = logger.client, logger.experiment.info.run_id
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.001", "net.sizes": "[4, 2]"}
    history = client.get_metric_history(run_id, "loss/actor")
    assert [(metric.step, metric.value) for metric in history] == [(5, 1.0), (9, 3.0)]
    folder = Path(client.download_artifacts(run_id, "", str(tmp_path)))
    assert (folder / "texts/note_1.txt").read_text() == "hello"
    counts = json.loads((folder / "histograms/weights_2.json").read_text())["counts"]
    np.testing.assert_array_equal(counts, [10] * 10)
    assert (folder / "videos/eval/episode_2.mp4").stat().st_size > 0
