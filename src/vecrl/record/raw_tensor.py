"""Tensors in files that grow step by step, so that recordings do not fill the memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


class RawTensor:
    """A tensor `[T, ...]` in a file of bare bytes, to which values are appended.

    Args:
        path: the file, which is made.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115 -- close closes it
        self._shape, self._dtype = torch.Size(), torch.uint8
        self.length = 0

    def append(self, value: Tensor) -> None:
        """Appends a value `[...]`.

        Raises:
            ValueError: its shape or dtype is not that of the values before.
        """
        if not self.length:
            self._shape, self._dtype = value.shape, value.dtype
        if (value.shape, value.dtype) != (self._shape, self._dtype):
            raise ValueError(
                f"Expected {self._dtype} of shape {tuple(self._shape)}, as recorded before, got {value.dtype} of shape "
                f"{tuple(value.shape)}."
            )
        data = value.detach().cpu().contiguous().reshape(-1)
        self._file.write(data.view(torch.uint8).numpy().tobytes())
        self.length += 1

    def read(self) -> Tensor:
        """Returns all values `[T, ...]`; the memory is the file, which must stay as long as the tensor is used."""
        self._file.flush()
        shape = (self.length, *self._shape)
        if 0 in shape:
            return torch.empty(shape, dtype=self._dtype)
        size = torch.Size(shape).numel()
        return torch.from_file(str(self._path), size=size, dtype=self._dtype).view(shape)

    def close(self) -> None:
        """Closes the file, which stays."""
        self._file.close()

    def remove(self) -> None:
        """Closes and removes the file."""
        self.close()
        self._path.unlink(missing_ok=True)
