"""Writes files atomically: no reader sees an incomplete file, even if the process or the machine stops.

A new version of a file has its permissions and, where this is allowed, its owner. What a symbolic link names is
replaced, and not the link.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, BinaryIO

from ..errors import PlatformError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_PERMISSIONS = 0o777  # without the setuid and setgid bits


def write_atomically(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """Writes `pieces` of bytes as the file `path`, by `atomic_file`.

    Raises:
        OSError: the file cannot be written; an existing file is not changed.
    """
    with atomic_file(path) as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a temporary file beside `path`, which is renamed at the end of the context, once it is on the disk.

    It is locked while it is open, see `open_draft`.

    Raises:
        OSError: the file cannot be written; an existing file is not changed; or `path` is a folder, a device or a pipe.
    """
    path = Path(path)
    folder = _followed(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist; create it first", str(folder))
    file, temp_path = open_draft(path)
    with _named_errors(path):
        try:
            with file:
                yield file
                file.flush()
                replace_file(temp_path, path)
        except BaseException:
            temp_path.unlink(missing_ok=True)
            raise


def append_text(path: str | os.PathLike[str], text: str) -> None:
    """Appends `text` to the file `path`, or creates it.

    Raises:
        OSError: the file cannot be written; an existing one is not changed; or `path` is a folder, a device or a pipe.
    """
    path = Path(path)
    _file_mode(path)
    with _named_errors(path), open(_followed(path), "ab", buffering=0, opener=_open_without_waiting) as file:
        size = file.tell()
        data = text.encode()
        try:
            while data:
                data = data[file.write(data) :]
        except BaseException:
            file.truncate(size)  # without the part of a line that found space
            raise


def replace_file(draft: Path, path: Path) -> None:
    """Renames a complete file to `path`, in the same file system, once its contents are on the disk."""
    path = _followed(path)
    with open(draft, "rb") as file:
        with suppress(FileNotFoundError):
            old = path.stat()
            with suppress(OSError):  # only root can give a file to another user
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), old.st_mode & _PERMISSIONS)
        os.fsync(file.fileno())
    os.replace(draft, path)
    _sync_folder(path.parent)


def open_draft(path: Path, suffix: str = "") -> tuple[BinaryIO, Path]:
    """Creates a temporary file beside `path`; returns it, open and locked, and its path.

    Temporary files without a lock, which killed writers left behind, are removed.

    Args:
        path: the file that it is for.
        suffix: the end of its name, for libraries that choose a format by it.

    Raises:
        OSError: it cannot be created, or `path` is a folder, a device or a pipe.
        PlatformError: the platform has no locks of files.
    """
    _require_locks()
    mode = _file_mode(path)
    path = _followed(path)
    _remove_abandoned(path, suffix)
    while True:
        temp_path = path.with_name(f".{_stem(path)}.{secrets.token_hex(4)}.draft{suffix}")
        opener = partial(os.open, mode=mode & _PERMISSIONS)  # the draft of a private file is private
        file = open(temp_path, "xb", opener=opener)  # noqa: SIM115 -- the caller closes it
        with suppress(OSError):  # a file system without locks
            lock_file(file)
        if os.fstat(file.fileno()).st_nlink:
            return file, temp_path
        file.close()  # another process removed it as abandoned before it was locked


def lock_file(file: IO[bytes] | int, *, wait: bool = True) -> None:
    """Locks an open file, or a folder by its descriptor, for this process until it is closed.

    Args:
        file: the file.
        wait: whether to wait while another process has the lock.

    Raises:
        OSError: the file system has no locks; or, with `wait=False`, another process has the lock (BlockingIOError).
        PlatformError: the platform has none.
    """
    system = _require_locks()
    system.flock(file, system.LOCK_EX if wait else system.LOCK_EX | system.LOCK_NB)


def _require_locks() -> ModuleType:
    if fcntl is None:
        raise PlatformError(f"Files are written on Linux and macOS only, where they can be locked, got {sys.platform}.")
    return fcntl


def _file_mode(path: Path) -> int:
    """Returns the mode of a file, or that of a new file, from which the umask is taken.

    Raises:
        OSError: `path` is a folder, a device or a pipe.
    """
    mode = path.stat().st_mode if path.exists() else stat.S_IFREG | 0o666
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "expected the path of a file, got a folder", str(path))
    if not stat.S_ISREG(mode):
        text = "expected the path of a file, got a device or a pipe, which has no content"
        raise OSError(errno.EINVAL, text, str(path))
    return mode


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Adds the path to an error of the system that has none, such as that of a full disk.

    Libraries that write to an open file may raise an error of their own then.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None or cause.errno is None or cause.filename is not None:
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from error


def _followed(path: Path) -> Path:
    """Returns the path of the file itself, which is not a symbolic link."""
    return Path(os.path.realpath(path))


def _remove_abandoned(path: Path, suffix: str) -> None:
    """Removes the temporary files for `path` that no process has locked."""
    for temp_path in path.parent.glob(f".{_escape_glob(_stem(path))}.????????.draft{suffix}"):
        # without waiting, should there be a pipe of this name
        with suppress(OSError), open(temp_path, "rb", opener=_open_without_waiting) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                lock_file(file, wait=False)
                temp_path.unlink(missing_ok=True)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def _stem(path: Path) -> str:
    """Returns the start of a name, short enough for a draft of that name in any file system."""
    return path.name.encode(errors="surrogateescape")[:200].decode(errors="surrogateescape")


def _escape_glob(name: str) -> str:
    """Escapes a name for use in a glob pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync_folder(path: Path) -> None:
    """Flushes the names in a folder to the disk, if the file system supports this."""
    folder = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(folder)
    finally:
        os.close(folder)
