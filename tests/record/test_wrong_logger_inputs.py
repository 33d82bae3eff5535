"""Loggers refuse wrong names, numbers and texts with one message, and report a disk that is full."""

from __future__ import annotations

import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from vecrl.record.loggers import Logger, get_logger

SERVICES = ("tensorboard", "wandb", "mlflow")
KINDS = ["csv", *(pytest.param(kind, marks=pytest.mark.loggers) for kind in SERVICES)]
VIDEO = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
NAMES = ["../x", "a/../../x", "", None, 3, "a\0b", "a\nb", "/etc/x", "a//b", "x" * 5000, b"x", ["x"]]
VALUES = ["text", "3", b"3", None, [1, 2], {}, 10**400, 1j, torch.zeros(2), object()]
TEXTS = [3, None, b"x", "\ud800", ["text"]]
DATA = ["text", None, [], [float("nan")], [float("inf")], {}, [[1], [2, 3]], [1j], torch.zeros(0)]
BINS = [0, -1, "a", 1.5, True, [2], 10**9]
SETTINGS = [3, None, "text", ["a"]]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=KINDS)
def logger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logger:
    monkeypatch.setenv("WANDB_SILENT", "true")
    options: dict[str, Any] = {"wandb_kwargs": {"offline": True}} if request.param == "wandb" else {}
    found = get_logger(request.param, str(tmp_path / "logs"), "exp", **options)
    assert found is not None
    return found


def test_wrong_values_are_refused(logger: Logger, tmp_path: Path) -> None:
    calls: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
        *(
            ("Expected a name such as", method, (name, value), {})
            for name in NAMES
            for method, value in (
                (logger.log_scalar, 1.0),
                (logger.log_str, "text"),
                (logger.log_histogram, [1.0, 2.0]),
                (logger.log_video, VIDEO),
            )
        ),
        *(("Expected a number for 'x', got", logger.log_scalar, ("x", value), {}) for value in VALUES),
        *(("Expected a number for 'x/y', got", logger.log_metrics, ({"x": {"y": value}},), {}) for value in VALUES[:3]),
        *(("Expected a text for 'x', got", logger.log_str, ("x", text), {}) for text in TEXTS),
        *(("Expected finite numbers", logger.log_histogram, ("x", data), {}) for data in DATA),
        *(("Expected bins", logger.log_histogram, ("x", [1.0, 2.0]), {"bins": bins}) for bins in BINS),
        *(("by name, got", logger.log_hparams, (settings,), {}) for settings in SETTINGS),
    ]
    problems = []
    for expected, method, arguments, options in calls:
        try:
            method(*arguments, **options)
            problems.append(f"{method.__name__}{arguments!s:.60}: accepted")
        except ValueError as error:
            if expected not in str(error):
                problems.append(f"{method.__name__}{arguments!s:.60}: {error!s:.100}")
        except Exception as error:
            problems.append(f"{method.__name__}{arguments!s:.60}: {type(error).__name__} {error!s:.100}")
    assert not problems, "\n".join(["", *problems])
    assert {path.name for path in tmp_path.iterdir()} <= {"logs"}
    logger.log_scalar("x", 1.0)
    logger.log_str("x", "text")
    logger.close()


def log_much(logger: Logger) -> None:
    for step in range(100):
        logger.log_str("text", "text" * 5000, step)
        logger.log_scalar("x", 1.0, step)


@pytest.mark.parametrize("logger", [kind for kind in KINDS if kind != KINDS[2]], indirect=True)
def test_a_full_disk_is_an_error(logger: Logger) -> None:
    """The process may write files of 8 kB only. The process of wandb, which writes its files, says nothing."""
    previous, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, previous[1]))
    try:
        with pytest.raises(Exception, match=r"File too large|disk I/O error|disk is full"):
            log_much(logger)
        with suppress(Exception):  # that of the thread of TensorBoard's writer again
            logger.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)
        signal.signal(signal.SIGXFSZ, handler)
