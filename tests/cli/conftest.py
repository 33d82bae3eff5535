"""Fixtures that call the command line within this process, and environments for it."""

import os
import re
import subprocess
from dataclasses import dataclass

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from tests.fixtures import invalid_envs
from typer.testing import CliRunner

from vecrl.cli.app import app

ODD = ["Valid", "NewActionSpace", "Fast", "WrongDtype", "OutOfBounds", "Unseeded", "OddFlag", "Raising"]
ODD += [
    "Unmakeable",
    "Spaceless",
    "NoObservationSpace",
    "Exiting",
    "Stuck",
    "Unclosable",
    "Noisy",
    "NestedDtype",
    "NestedKeys",
    "WrongShape",
    "Endless",
    "Motionless",
    "Rewardless",
    "Repetitive",
    "FourValues",
    "NotANumber",
]


@dataclass
class Answer:
    code: int
    out: str  # with what is written to the standard error
    error: BaseException | None
    stdout: str


@pytest.fixture
def vecrl(monkeypatch):
    """Returns a function that calls a command and returns its exit code and its output, without line breaks added by
    wrapping."""
    for name, value in {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MUJOCO_GL": "egl"}.items():
        monkeypatch.setitem(os.environ, name, os.environ.get(name, value))
    monkeypatch.setattr("vecrl.cli.console.console._width", 200)
    monkeypatch.setattr("vecrl.cli.console.error_console._width", 200)

    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", result.output)
        return Answer(result.exit_code, text, result.exception, result.stdout)

    return call


@pytest.fixture
def odd():
    """Registers `Odd/<name>-v0` for each environment of `ODD`."""
    for name in ODD:
        gymnasium.register(f"Odd/{name}-v0", getattr(invalid_envs, name))
    yield
    for name in ODD:
        del gymnasium.registry[f"Odd/{name}-v0"]


def frames_of(video):
    """Returns the frames `[n, height, width, 3]` of an mp4 or gif file and its frames per second, read by ffmpeg."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(video), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    found = re.search(rb"Video: (?:h264|gif).* (\d+)x(\d+)[ ,].*?([\d.]+) fps", done.stderr)
    width, height, rate = int(found[1]), int(found[2]), float(found[3])
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3), rate
