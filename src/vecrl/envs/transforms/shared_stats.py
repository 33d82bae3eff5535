"""Statistics shared by processes, as memory-mapped files, and a file lock for them.

A TensorDict of mapped files still refers to the same files after pickling. One in shared memory does not. This module
must not know how statistics are computed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from ...errors import SpaceError
from ..keys import Key, join_key, split_key
from ..shared_folder import publish

STAT_NAMES = ("count", "mean", "m2")


def stat_key(key: Key, stat_name: str) -> Key:
    """Returns the key of one statistic of an entry: in the same group, with the statistic after the name.

    >>> stat_key("observation", "mean"), stat_key(("agents", "reward"), "m2")
    ('observation_mean', ('agents', 'reward_m2'))
    """
    prefix, name = split_key(key)
    return join_key(prefix, f"{name}_{stat_name}")


def memory_mapped_stats(shapes: Mapping[Key, torch.Size]) -> TensorDictBase:
    """Returns counts, means and sums of squared deviations of entries of these shapes, float64 zeros in mapped files.

    The files are deleted with the returned TensorDict, also if unpickled copies in other processes still exist.
    """
    folder = tempfile.mkdtemp(prefix="vecrl-statistics-")
    mapped = empty_statistics(shapes).memmap_(prefix=folder)
    weakref.finalize(mapped, _remove, folder, os.getpid())
    return mapped


def empty_statistics(shapes: Mapping[Key, torch.Size]) -> TensorDictBase:
    """Returns counts, means and sums of squared deviations of entries of these shapes, float64 zeros."""
    data = TensorDict({})
    for key, shape in shapes.items():
        for stat_name in STAT_NAMES:
            data.set(stat_key(key, stat_name), torch.zeros(shape, dtype=torch.float64))
    return data


def joined_statistics(path: Path, shapes: Mapping[Key, torch.Size], state: Mapping[Key, np.ndarray]) -> TensorDictBase:
    """Returns the statistics in mapped files in the folder `path`. A new folder is initialized with `state`.

    Keys and shapes are part of the name of the folder, so that different statistics are not shared.

    Raises:
        SpaceError: a size is dynamic (-1).
    """
    if any(-1 in shape for shape in shapes.values()):
        raise SpaceError(
            f"Expected entries of fixed shapes for statistics that an EnvCreator shares, got {dict(shapes)}. Give "
            "VecNorm their shapes, or the creator share_memory=False."
        )
    statistics = empty_statistics(shapes)
    write(statistics, state)
    sizes = ", ".join(f"{key!r}: {tuple(shape)}" for key, shape in shapes.items())
    path = path.with_name(f"{path.name}-{crc32(sizes.encode())}")
    publish(path, lambda draft: statistics.memmap(prefix=draft))
    return TensorDict.load_memmap(path)


def read(shared_td: TensorDictBase, keys: Sequence[Key]) -> dict[Key, np.ndarray]:
    """Returns the statistics of `keys` as arrays that share memory with `shared_td`."""
    return {
        stat_key(key, stat_name): shared_td.get(stat_key(key, stat_name)).numpy()
        for key in keys
        for stat_name in STAT_NAMES
    }


def write(shared_td: TensorDictBase, state: Mapping[Key, np.ndarray]) -> None:
    """Copies arrays of statistics into `shared_td`."""
    for key, value in state.items():
        np.copyto(shared_td.get(key).numpy(), value)


def check_shared(shared_td: object, keys: Sequence[Key]) -> None:
    """Checks that `shared_td` is a TensorDict with the statistics of all `keys`.

    Raises:
        TypeError: it is no TensorDict.
        KeyError: statistics are missing.
    """
    if not isinstance(shared_td, TensorDictBase):
        raise TypeError(
            f"Expected shared_td to be a TensorDict, got {shared_td!r:.80}. Use VecNorm.build_td_for_shared_vecnorm."
        )
    missing_keys = [
        key for key in keys if any(shared_td.get(stat_key(key, stat_name), None) is None for stat_name in STAT_NAMES)
    ]
    if missing_keys:
        raise KeyError(
            f"Expected statistics of {missing_keys} in shared_td, got none. Give these keys to "
            "VecNorm.build_td_for_shared_vecnorm, or remove them from in_keys."
        )


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork of the owner
        shutil.rmtree(folder, ignore_errors=True)


def lock_for(shared_td: TensorDictBase) -> AbstractContextManager[Any]:
    """Returns a lock for statistics in mapped files, or a context that does nothing for others."""
    leaf: Any = next(iter(shared_td.values(include_nested=True, leaves_only=True)))
    path = getattr(leaf, "filename", None)
    return nullcontext() if path is None else FileLock(str(path))


class FileLock:
    """A lock between processes that use the same file, as a context manager. It can be pickled.

    Args:
        path: the path of an existing file.
    """

    excluded_from_state = ("_path", "_owner_and_fd")

    def __init__(self, path: str):
        self._path = path
        self._owner_and_fd: tuple[int, int] = (-1, -1)

    def __enter__(self) -> Self:
        import fcntl  # not on Windows

        if self._owner_and_fd[0] != os.getpid():  # an inherited file descriptor would share the lock
            self._owner_and_fd = os.getpid(), os.open(self._path, os.O_RDWR)
            weakref.finalize(self, os.close, self._owner_and_fd[1])
        fcntl.flock(self._owner_and_fd[1], fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        import fcntl

        fcntl.flock(self._owner_and_fd[1], fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_owner_and_fd": (-1, -1)}
