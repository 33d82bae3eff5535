"""Converts plain data to bytes and back: a JSON header, then the raw memory of the arrays. Reading runs no code.

    8 bytes   "VECRLCKP"
    4         version of the format
    4         CRC-32 of the header
    8         length of the header
    8         length of the whole file
    header    JSON: the data, with arrays as numbers; for each array its dtype, shape, offset, size and CRC-32
    arrays    each starts at a multiple of 64 bytes

This module knows numbers, text, containers, arrays and tensors, but not what they are used for.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..errors import CheckpointError, StateError

MAGIC = b"VECRLCKP"
VERSION = 2
_PREFIX = struct.Struct("<8sIIQQ")
_ALIGN = 64
_MOST_COPIES, _MOST_BYTES = 64, 2**30  # of an array that occurs more than once: a small file must not fill the memory
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Piece: TypeAlias = bytes | memoryview


class _Blob(NamedTuple):
    """Where the raw memory of an array, a tensor or bytes lies in a file. The header has it as a list.

    Attributes:
        dtype: a description of NumPy's dtype, or the name of torch's; None for bytes.
        shape: the lengths of all dimensions.
        start: the offset from the first array of the file, in bytes.
        size: the length in bytes.
        checksum: the CRC-32 of the memory.
    """

    dtype: object
    shape: list[int]
    start: int
    size: int
    checksum: int


def dump(data: object) -> list[Piece]:
    """Converts plain data to a list of pieces of bytes, which are to be written in this order.

    Raises:
        StateError: the data contain an object that is not plain data; the message gives its path.
    """
    writer = _Writer()
    tree = writer.encode(data, "")
    header = json.dumps({"data": tree, "blobs": writer.table}, separators=(",", ":"), allow_nan=False).encode()
    start = _aligned(_PREFIX.size + len(header))
    total = start + writer.size
    prefix = _PREFIX.pack(MAGIC, VERSION, zlib.crc32(header), len(header), total)
    return [prefix, header, bytes(start - _PREFIX.size - len(header)), *writer.pieces]


def parse(raw: bytes, name: str) -> object:
    """Reads the data that `dump` wrote. Arrays and tensors are new, and tensors are on the CPU.

    Args:
        raw: all bytes.
        name: of the source, for messages.

    Raises:
        CheckpointError: the bytes are not from `dump`, have another version, or are truncated or damaged.
    """
    checksum, length = _check_prefix(raw, len(raw), name)
    header = raw[_PREFIX.size : _PREFIX.size + length]
    if zlib.crc32(header) != checksum:
        raise CheckpointError(f"{name} is damaged: the checksum of its header is wrong. Use another file.")
    try:
        header_data = json.loads(header)
        reader = _Reader(memoryview(raw)[_aligned(_PREFIX.size + length) :], header_data["blobs"], name)
        return reader.decode(header_data["data"])
    except Exception as error:  # damaged data make NumPy, torch and Python raise any exception
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{name} is damaged ({type(error).__name__}: {error}). Use another file.") from error


def read(path: Path) -> object:
    """Reads a file with the data that `dump` wrote, as `parse` does. A file of another kind is not read whole.

    Raises:
        CheckpointError: as `parse`.
        OSError: the file cannot be opened.
    """
    with path.open("rb") as file:
        prefix = file.read(_PREFIX.size)
        _check_prefix(prefix, os.fstat(file.fileno()).st_size, str(path))
        file.seek(0)
        return parse(file.read(), str(path))


def _check_prefix(raw: bytes, size: int, name: str) -> tuple[int, int]:
    """Checks the start of a file of `size` bytes. Returns the checksum and the length of its header."""
    if len(raw) < _PREFIX.size or raw[:8] != MAGIC:
        problem = (
            "is empty" if not raw else "is cut short" if MAGIC.startswith(raw[:8]) else "is no checkpoint of vecrl"
        )
        raise CheckpointError(f"{name} {problem}: expected a file that vecrl.checkpoint.save wrote.")
    _, version, checksum, length, total = _PREFIX.unpack(raw[: _PREFIX.size])
    if version != VERSION:
        raise CheckpointError(
            f"Expected {name} to be in version {VERSION} of the format, got version {version}. Read it with the "
            "version of vecrl that wrote it."
        )
    if size != total:
        problem = "is cut short" if size < total else "is damaged"
        raise CheckpointError(f"{name} {problem}: expected {total} bytes, got {size}. Use another file.")
    return checksum, length


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class _Writer:
    """Converts data to what JSON can hold, and collects the arrays."""

    def __init__(self) -> None:
        self.table: list[_Blob] = []
        self.pieces: list[Piece] = []
        self.size = 0
        self._blob_index: dict[int, int] = {}
        self._kept_alive: list[object] = []

    def encode(self, value: Any, path: str) -> Json:
        value_type = type(value)
        if value is None or value_type in (bool, int, str):
            return value
        if value_type is float:
            return value if math.isfinite(value) else {"$": "float", "v": str(value)}
        if value_type is list:
            return [self.encode(item, path) for item in value]
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, tuple):
            return {"$": "tuple", "v": [self.encode(item, path) for item in value]}
        if value_type is complex:
            return {"$": "complex", "v": [self.encode(value.real, path), self.encode(value.imag, path)]}
        return self._blob(value, path)

    def _mapping(self, value: Mapping[Any, object], path: str) -> Json:
        if all(type(key) is str and key != "$" for key in value):
            return {key: self.encode(item, f"{path}[{key!r}]") for key, item in value.items()}
        pairs: list[Json] = [[self.encode(k, path), self.encode(v, f"{path}[{k!r:.40}]")] for k, v in value.items()]
        return {"$": "dict", "v": pairs}

    def _blob(self, value: object, path: str) -> Json:
        tag = "bytes" if type(value) is bytes else "array" if type(value) is np.ndarray else ""
        tag = tag or ("scalar" if isinstance(value, np.generic) else "tensor" if _is_tensor(value) else "")
        if not tag or (tag in ("array", "scalar") and np.asarray(value).dtype.hasobject):
            raise StateError(
                f"Expected numbers, text, arrays, tensors and containers of these, got {_describe(value)}{path}."
            )
        if id(value) not in self._blob_index:
            self._blob_index[id(value)] = len(self.table)
            self._kept_alive.append(value)
            self._add(*_blob_layout(tag, value))
        return {"$": tag, "v": self._blob_index[id(value)]}

    def _add(self, dtype: object, shape: list[int], raw: Piece) -> None:
        size = len(raw)  # the elements of a memoryview here are bytes
        self.table.append(_Blob(dtype, shape, self.size, size, zlib.crc32(raw)))
        padding = _aligned(size) - size
        self.pieces += [raw, bytes(padding)] if padding else [raw]
        self.size += size + padding


def _describe(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__} at data"


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _blob_layout(tag: str, value: Any) -> tuple[object, list[int], Piece]:
    """Returns the dtype, the shape and the raw bytes of a value."""
    if tag == "bytes":
        return None, [], value
    if tag == "tensor":
        torch = sys.modules["torch"]
        flat = value.detach().to("cpu").contiguous().reshape(-1)
        shape = list(value.shape)
        return str(value.dtype).partition(".")[2], shape, flat.view(torch.uint8).numpy().data
    array = np.ascontiguousarray(value)
    registered = array.dtype.isbuiltin == 2  # a dtype of another library, such as bfloat16
    dtype = array.dtype.name if registered else np.lib.format.dtype_to_descr(array.dtype)
    return dtype, list(np.shape(value)), array.reshape(-1).view(np.uint8).data


class _Reader:
    """Converts JSON back to data. Names in it are only looked up in tables of this file and in torch's dtypes."""

    def __init__(self, body: memoryview, table: list[list[Any]], name: str):
        self._body, self._table, self._name = body, [_Blob(*row) for row in table], name
        self._left = _MOST_COPIES * len(body) + _MOST_BYTES  # bytes that may still be read
        for index, blob in enumerate(self._table):
            if zlib.crc32(self._raw(index)) != blob.checksum:
                raise CheckpointError(f"{name} is damaged: the checksum of an array is wrong. Use another file.")
        self._decoders: dict[str, Callable[[Any], object]] = {
            "float": lambda v: _SPECIAL[v],
            "tuple": lambda v: tuple(self.decode(item) for item in v),
            "complex": lambda v: complex(*map(self.decode, v)),
            "dict": lambda v: {self.decode(key): self.decode(item) for key, item in v},
            "bytes": lambda v: bytes(self._raw(v)),
            "array": self._array,
            "scalar": lambda v: self._array(v)[()],
            "tensor": self._tensor,
        }

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$" in value:
            return self._decoders[value["$"]](value["v"])
        return {key: self.decode(item) for key, item in value.items()}

    def _raw(self, blob_index: int) -> memoryview:
        blob = self._table[blob_index]
        if min(blob.start, blob.size, *blob.shape) < 0 or blob.start + blob.size > len(self._body):
            raise CheckpointError(f"{self._name} is damaged: an array lies outside of it. Use another file.")
        self._left -= blob.size
        if self._left < 0:
            raise CheckpointError(
                f"Expected the arrays of {self._name} to occur {_MOST_COPIES} times or less on average, got more. Save "
                "fewer copies of one array, or use another file."
            )
        return self._body[blob.start : blob.start + blob.size]

    def _array(self, blob_index: int) -> np.ndarray:
        blob = self._table[blob_index]
        return np.frombuffer(self._raw(blob_index), _dtype(blob.dtype)).reshape(blob.shape).copy()

    def _tensor(self, blob_index: int) -> object:
        blob, torch = self._table[blob_index], sys.modules.get("torch")
        if torch is None:
            raise CheckpointError(f"{self._name} contains tensors. Import torch first.")
        dtype: Any = getattr(torch, str(blob.dtype), None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointError(
                f"{self._name} contains a tensor of dtype {blob.dtype!r}, which torch does not have. Use another file."
            )
        if min(blob.shape, default=1) < 0 or math.prod(blob.shape) * dtype.itemsize != blob.size:
            raise CheckpointError(
                f"{self._name} is damaged: {blob.size} bytes are no tensor of shape {blob.shape} and dtype "
                f"{blob.dtype}. Use another file."
            )
        if not blob.size:
            return torch.empty(blob.shape, dtype=dtype)
        raw = torch.from_numpy(np.frombuffer(self._raw(blob_index), np.uint8).copy())
        return raw.view(dtype).reshape(blob.shape)


def _dtype(descriptor: Any) -> np.dtype:
    """Returns the dtype for its name, or for the list of its fields."""
    if not isinstance(descriptor, str):
        descriptor = [(field[0], _dtype(field[1]), *map(tuple, field[2:])) for field in descriptor]
    dtype = np.dtype(descriptor)
    if dtype.hasobject:
        raise ValueError(f"expected a dtype without objects, got {descriptor!r}")
    return dtype
