"""Videos and settings beside TorchRL's loggers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vecrl.envs import GymEnv
from vecrl.record import CSVLogger, PixelRenderTransform, VideoRecorder

pytestmark = [pytest.mark.torchrl, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def peer() -> Any:
    return pytest.importorskip("torchrl.record.loggers.csv").CSVLogger


def test_a_recorder_writes_to_a_logger_of_torchrl(tmp_path: Path, peer: Any) -> None:
    logger = peer("exp", log_dir=str(tmp_path), video_format="pt")
    env = GymEnv("CartPole-v1", render_mode="rgb_array").append_transform(PixelRenderTransform())
    env = env.append_transform(VideoRecorder(logger, "run", skip=1))
    frames = env.rollout(3)["next", "pixels"]
    env.transform.dump()
    saved = torch.load(tmp_path / "exp/videos/run_0.pt", weights_only=True)
    assert saved.shape[:3] == (1, 4, 3)
    assert torch.equal(saved[0, 1:].permute(0, 2, 3, 1), frames)


@pytest.mark.parametrize("video_format", ["pt", "memmap"])
@pytest.mark.parametrize("channels", [1, 3])
def test_tensor_files_are_those_of_torchrl(tmp_path: Path, peer: Any, video_format: str, channels: int) -> None:
    video = torch.arange(2 * 5 * channels * 4 * 4, dtype=torch.uint8).reshape(2, 5, channels, 4, 4)
    for library, logger_class in (("peer", peer), ("own", CSVLogger)):
        logger_class(library, log_dir=str(tmp_path), video_format=video_format).log_video("v", video, step=3)
    peer_file, own_file = (tmp_path / f"{library}/videos/v_3.{video_format}" for library in ("peer", "own"))
    if video_format == "pt":
        assert torch.equal(torch.load(own_file, weights_only=True), torch.load(peer_file, weights_only=True))
    else:
        assert own_file.read_bytes() == peer_file.read_bytes()


def test_settings_are_written_as_by_torchrl(tmp_path: Path, peer: Any) -> None:
    settings = {"lr": 1e-3, "env": "CartPole-v1", "net": {"sizes": [4, 2]}, "device": None, "compile": True}
    for library, logger_class in (("peer", peer), ("own", CSVLogger)):
        logger_class(library, log_dir=str(tmp_path)).log_hparams(settings)
    peer_text, own_text = ((tmp_path / library / "texts/hparams0.txt").read_text() for library in ("peer", "own"))
    assert own_text == peer_text
