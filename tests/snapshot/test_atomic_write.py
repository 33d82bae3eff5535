"""If a writer is killed, the file has the old or the new content, and temporary files are removed later."""

import os
import signal
import subprocess
import sys

import pytest

from vecrl.snapshot.atomic_write import atomic_file, write_atomically

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


def test_permissions_are_kept(tmp_path):
    path = tmp_path / "run.ckpt"
    for mode in (0o600, 0o640, 0o444):
        path.touch()
        path.chmod(mode)
        with atomic_file(path) as file:
            assert os.fstat(file.fileno()).st_mode & 0o777 & ~mode == 0
        assert path.stat().st_mode & 0o777 == mode
        path.unlink()
    write_atomically(path, [b"new"])
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_symbolic_links_are_followed(tmp_path):
    (tmp_path / "runs").mkdir()
    link, target = tmp_path / "latest.ckpt", tmp_path / "runs" / "1.ckpt"
    link.symlink_to(target)
    for content in (b"first", b"second"):  # the target does not exist before the first
        write_atomically(link, [content])
        assert link.is_symlink()
        assert target.read_bytes() == content
        assert [file.name for file in target.parent.iterdir()] == ["1.ckpt"]


def test_pipes_and_devices_are_no_files(tmp_path):
    path = tmp_path / "run.ckpt"
    draft = tmp_path / ".run.ckpt.01234567.draft"
    os.mkfifo(draft)
    write_atomically(path, [b"new"])
    assert draft.exists()
    assert path.read_bytes() == b"new"
    for other in (draft, "/dev/null"):
        with pytest.raises(OSError, match=r"expected the path of a file, got a device or a pipe"):
            write_atomically(other, [b"new"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_owner_is_kept(tmp_path):
    path = tmp_path / "run.ckpt"
    path.touch()
    os.chown(path, 65534, 65534)
    path.chmod(0o4755)
    write_atomically(path, [b"new"])
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (65534, 65534, 0o755)
