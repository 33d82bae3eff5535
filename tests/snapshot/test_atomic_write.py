"""If a writer is killed, the file has the old or the new content, and temporary files are removed later."""

import os
import signal
import subprocess
import sys

import pytest

from vecrl.snapshot.atomic_write import write_atomically

WRITER = """
import os, signal, sys
from vecrl.snapshot.atomic_write import write_atomically
name, number, path = sys.argv[1:]
left = int(number)
def count(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
def killing(function):
    def called(*args, **kwargs):
        count()
        return function(*args, **kwargs)
    return called
if name != "piece":
    setattr(os, name, killing(getattr(os, name)))
def pieces():
    for _ in range(3):
        count() if name == "piece" else None
        yield b"new" * 100000
write_atomically(path, pieces())
"""


def killed(name, number, path):
    done = subprocess.run([sys.executable, "-c", WRITER, name, str(number), str(path)], check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode


@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [("piece", 0, "old"), ("piece", 2, "old"), ("fsync", 0, "old"), ("replace", 0, "old"), ("fsync", 1, "new")],
)
def test_killed_writers_leave_a_complete_file(tmp_path, name, number, expected):
    path = tmp_path / "run.ckpt"
    path.write_text("old")
    assert killed(name, number, path) == -signal.SIGKILL
    assert path.read_text() == ("old" if expected == "old" else "new" * 300000)
    assert len(list(tmp_path.iterdir())) == (2 if expected == "old" else 1)
    write_atomically(path, [b"newer"])
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("run.ckpt", "newer")]


def test_temporary_files_in_use_are_kept(tmp_path):
    path = tmp_path / "run.ckpt"

    def pieces():
        yield b"first"
        write_atomically(path, [b"second"])
        yield b" and last"

    write_atomically(path, pieces())
    assert path.read_text() == "first and last"
    assert os.listdir(tmp_path) == ["run.ckpt"]


def test_temporary_files_of_other_targets_are_kept(tmp_path):
    others = [tmp_path / name for name in (".run.ckpt2.0123abcd.draft", ".xrun.ckpt.0123abcd.draft", ".run.ckpt.draft")]
    for other in others:
        other.write_text("x")
    write_atomically(tmp_path / "run.ckpt", [b"new"])
    assert all(other.exists() for other in others)


def test_errors_keep_the_old_file_and_remove_the_temporary_file(tmp_path):
    path = tmp_path / "run.ckpt"
    path.write_text("old")

    def pieces():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, pieces())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.ckpt"]
    with pytest.raises(OSError, match="nowhere"):
        write_atomically(tmp_path / "nowhere" / "run.ckpt", [b""])
