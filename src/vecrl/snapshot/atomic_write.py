"""Writes a file so that nobody ever sees half of it, whenever the process or the machine stops."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: str | os.PathLike[str], pieces: Iterable[Any]) -> None:
    """Write `pieces` of bytes to a draft beside `path`, which takes its name once all of it is on the disk.

    A draft is locked as long as its writer lives. Those that nobody holds, whose writers were killed, are removed.

    Raises:
        OSError: the file cannot be written; what was there is unharmed.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to write to; make it first", str(path.parent))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "expected the name of a file, but there is a folder", str(path))
    _remove_abandoned(path)
    file, temp_path = _open_temp_file(path)
    try:
        with file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temp_path, path)
    except BaseException:
        temp_path.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _open_temp_file(path: Path) -> tuple[BinaryIO, Path]:
    """A draft of `path`, open and locked."""
    while True:
        temp_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")
        file = open(temp_path, "xb")  # noqa: SIM115 -- closed by who asked
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file, temp_path
        file.close()  # somebody took it for an abandoned one before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove drafts of `path` whose writers are gone."""
    for temp_path in path.parent.glob(f".{_escape_glob(path.name)}.????????.draft"):
        with suppress(OSError), open(temp_path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temp_path.unlink(missing_ok=True)


def _escape_glob(name: str) -> str:
    """A name as a pattern that means itself alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk, where the file system can say when they are."""
    folder = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(folder)
    finally:
        os.close(folder)
