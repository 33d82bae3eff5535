"""The running statistics of `VecNorm`: one table for all entries, and mapped files that processes share.

A TensorDict of mapped files still refers to the same files after pickling. One in shared memory does not. In the table,
the entries are columns, so that a step needs one update of `RunningStats`. On the CPU the update runs in NumPy,
otherwise on the device of the tensors.
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
from torch import Tensor

from ...errors import SpaceError
from ...running_stats import RunningStats
from ..entries.keys import Key, join_key, split_key
from ..entries.row_masks import RowMasks
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


Array = np.ndarray | Tensor


class StatsTable:
    """Statistics of several entries as columns of one table.

    Args:
        keys: the entries.
        decay, eps: as in `VecNorm`.
        shapes: the shape of each entry in one row; None if not known yet.

    Attributes:
        stats: None before `open`.
        frozen: whether statistics are not updated.
    """

    state_classes = (RunningStats,)  # see `vecrl.snapshot`

    def __init__(self, keys: Sequence[Key], decay: float, eps: float, shapes: Sequence[torch.Size] | None):
        self.keys, self.shapes = list(keys), shapes
        self._options = {"epsilon": 0.0, "min_variance": eps, "decay": decay}
        self.stats: RunningStats | None = None
        self.frozen = False
        self._slices: list[slice] = []

    def open(self, shapes: Sequence[torch.Size], device: torch.device | None) -> None:
        """Creates the statistics, with columns for rows of these shapes. They are in NumPy if `device` is None."""
        self.shapes = list(shapes)
        offsets = np.cumsum([shape.numel() for shape in shapes]).tolist()
        self._slices = [slice(offset - shape.numel(), offset) for offset, shape in zip(offsets, shapes, strict=True)]
        self.stats = RunningStats((offsets[-1],), **self._options, device=device)

    def rows(self, values: Sequence[Tensor | None], n: int) -> Array:
        """Returns rows `[n, columns]` float64, zeros for missing entries; an array if that is faster, else a tensor."""
        assert self.stats is not None
        if self.stats.device is not None:
            return self._tensor_rows(values, n)
        rows = np.zeros((self._slices[-1].stop, n)).T  # sums over contiguous memory are faster
        for key, value, column_slice in zip(self.keys, values, self._slices):  # noqa: B905 as strict, it takes twice as long
            if value is not None:
                if value.requires_grad or not value.is_cpu or value.dtype is torch.bfloat16:
                    return self._tensor_rows(values, n)
                rows[:, column_slice] = self._flatten_rows(key, value.numpy(), n, column_slice)
        return rows

    def _tensor_rows(self, values: Sequence[Tensor | None], n: int) -> Tensor:
        device = next(value.device for value in values if value is not None)
        rows = torch.zeros(n, self._slices[-1].stop, dtype=torch.float64, device=device)
        for key, value, column_slice in zip(self.keys, values, self._slices, strict=True):
            if value is not None:
                rows[:, column_slice] = self._flatten_rows(key, value, n, column_slice)
        return rows

    def _flatten_rows(self, key: Key, value: Array, n: int, column_slice: slice) -> Any:
        width = column_slice.stop - column_slice.start
        try:
            return value.reshape(n, width)
        except (RuntimeError, ValueError) as error:
            shape = None if self.shapes is None else tuple(self.shapes[self.keys.index(key)])
            raise SpaceError(
                f"Expected {n} rows of shape {shape} at {key!r}, as before, got shape {tuple(value.shape)}. Use "
                "another transform for another shape or, for batches of any size, VecNormV2(reduce_batch_dims=True)."
            ) from error

    def mask(self, values: Sequence[Tensor | None], masks: RowMasks | None, batch: torch.Size, n: int) -> Tensor:
        """Returns the mask of values to count.

        Args:
            values: the entries.
            masks: the masks of the environments to count, of batch size `batch`; None for all.
            batch: the batch size of the environments.
            n: the number of rows of the table.

        Returns:
            `[n]` bool if it is equal for all columns, else `[n, columns]`.
        """
        key_masks: list[Tensor | None] = [None if masks is None else masks.for_key(key) for key in self.keys]
        complete = all(value is not None for value in values)
        if (
            n == batch.numel()
            and complete
            and key_masks[0] is not None
            and all(mask is key_masks[0] for mask in key_masks)
        ):
            return _row_mask(key_masks[0], batch)
        device = next(value.device for value in values if value is not None)
        mask_table = torch.zeros(n, self._slices[-1].stop, dtype=torch.bool, device=device)
        for value, mask, column_slice in zip(values, key_masks, self._slices, strict=True):
            if value is not None and mask is None:
                mask_table[:, column_slice] = True
            elif value is not None and mask is not None:
                elements = _row_mask(mask, batch).unsqueeze(-1).expand(-1, value.numel() // batch.numel())
                mask_table[:, column_slice] = elements.reshape(n, -1)
        return mask_table

    def normalize(self, rows: Array, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the normalized entries, in the shape and floating dtype of `values`."""
        assert self.stats is not None
        mean, scale = self.stats.affine()
        if not isinstance(rows, np.ndarray):
            mean, scale = (torch.as_tensor(stat, device=rows.device) for stat in (mean, scale))
        normalized = (rows - mean) * scale
        pairs = zip(values, self._slices)  # noqa: B905 as strict, it takes twice as long
        return [
            None if value is None else _restore_shape(normalized[:, column_slice], value)
            for value, column_slice in pairs
        ]

    def affine(self) -> list[tuple[Key, Tensor, Tensor]]:
        """Returns the key, mean and standard deviation of each entry, `[*shape]` in torch's default dtype."""
        if self.stats is None or self.shapes is None:
            raise RuntimeError("Expected VecNorm to have statistics, got none. Reset or step the environment first.")
        mean, scale = (torch.as_tensor(stat).to("cpu", torch.get_default_dtype()) for stat in self.stats.affine())
        column_slices = zip(self.keys, self._slices, self.shapes, strict=True)
        return [
            (key, mean[column_slice].reshape(shape), 1 / scale[column_slice].reshape(shape))
            for key, column_slice, shape in column_slices
        ]

    def state(self) -> dict[Key, np.ndarray]:
        """Returns copies of counts, means and sums of squared deviations, `[*shape]` float64 for each entry."""
        assert self.stats is not None
        assert self.shapes is not None
        state = {name: torch.as_tensor(value).numpy(force=True) for name, value in self.stats.state_dict().items()}
        state["count"] = np.broadcast_to(state["count"], state["mean"].shape)
        column_slices = list(zip(self.keys, self._slices, self.shapes, strict=True))
        return {
            stat_key(k, name): state[name][part].reshape(shape).copy()
            for k, part, shape in column_slices
            for name in STAT_NAMES
        }

    def load(self, state: Mapping[Key, Array]) -> None:
        """Sets the statistics to those that `state` returned."""
        assert self.stats is not None
        self.stats.load_state_dict(
            {
                name: np.concatenate([np.asarray(state[stat_key(key, name)]).reshape(-1) for key in self.keys])
                for name in STAT_NAMES
            }
        )


_NUMPY_DTYPES = {torch.float16: np.float16, torch.float64: np.float64}


def _restore_shape(values: Array, value: Tensor) -> Tensor:
    """Returns columns as a new tensor in the shape of `value`, in its floating dtype or float32."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values.astype(_NUMPY_DTYPES.get(value.dtype, np.float32), "C").reshape(value.shape))
    return values.to(value.dtype if value.is_floating_point() else torch.float32).reshape(value.shape)


def _row_mask(mask: Tensor, batch: torch.Size) -> Tensor:
    """Returns a mask `[rows]`, True if any element of the row is True."""
    return mask.reshape(batch.numel(), -1).any(-1)
