"""Plain data as bytes: supported data round-trips, other data raises, and damaged bytes are detected."""

import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vecrl import checkpoint
from vecrl.errors import CheckpointError, StateError
from vecrl.snapshot import capture, restore
from vecrl.snapshot.serialization import dump, parse

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
DTYPES = arrays.scalar_dtypes() | arrays.byte_string_dtypes() | arrays.unicode_string_dtypes()
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=3))
KEYS = st.text() | st.integers() | st.tuples(st.booleans(), st.text())
DATA = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)


def whole(data):
    return b"".join(bytes(piece) for piece in dump(data))


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(a, b)
    return repr(a) == repr(b)


@settings(max_examples=150, deadline=None)
@given(DATA)
def test_data_round_trips_bit_exactly(data):
    assert same(parse(whole(data), "here"), data)


def test_every_tensor_dtype_round_trips():
    kinds = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
    data = [torch.ones(2, 3).to(kind) for kind in kinds] + [
        torch.zeros(0, 2),
        torch.tensor(3),
        torch.arange(6).view(2, 3).T,
    ]
    assert same(parse(whole(data), "here"), [item.contiguous() for item in data])


def test_arrays_are_writable_and_shared_after_loading():
    array = np.ones((2, 3), [("x", "f4"), ("y", "i2", (2,))])
    data = parse(whole([array, array, np.asfortranarray(np.eye(3))]), "here")
    assert data[0].dtype == array.dtype
    data[0]["x"] = 5
    assert len(whole([array] * 9)) - len(whole([array])) < 300
    assert np.array_equal(data[2], np.eye(3))


@pytest.mark.parametrize("odd", [object(), len, np.array([None]), {"a": [np.array([object()])]}, type, Exception()])
def test_other_data_raise(odd):
    with pytest.raises(StateError, match=r"Expected numbers, text, arrays, tensors .* got a .* at data"):
        dump({"k": odd})


def test_truncated_bytes_raise():
    raw = whole({"a": np.arange(20), "b": [1, "x"]})
    for length in range(len(raw)):
        with pytest.raises(CheckpointError, match=r"is empty|is cut short|no checkpoint"):
            parse(raw[:length], "here")
    with pytest.raises(CheckpointError, match="is damaged: expected"):
        parse(raw + b"x", "here")


def test_flipped_bits_raise():
    raw = whole({"a": np.arange(20), "b": [1, "x"]})
    body = raw.rindex(np.arange(20).tobytes())
    places = [*range(32, raw.index(b"}]}", 32) if b"}]}" in raw else 64), *range(body, body + 160, 7)]
    for place in places:
        with pytest.raises(CheckpointError, match=r"is damaged"):
            parse(raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :], "here")


def test_other_files_and_versions_raise():
    with pytest.raises(CheckpointError, match=r"run\.ckpt is no checkpoint of vecrl"):
        parse(b"PK\x03\x04" + bytes(100), "run.ckpt")
    raw = bytearray(whole([1]))
    raw[8:12] = struct.pack("<I", 9)
    with pytest.raises(CheckpointError, match=r"Expected run\.ckpt to be in version 2 of the format, got version 9"):
        parse(bytes(raw), "run.ckpt")


def test_files_of_an_older_version_raise(tmp_path):
    raw = bytearray(whole([1]))
    raw[8:12] = struct.pack("<I", 1)
    path = tmp_path / "old.ckpt"
    path.write_bytes(raw)
    with pytest.raises(
        CheckpointError, match=r"to be in version 2 .* got version 1. Read it with the version of vecrl that wrote it"
    ):
        checkpoint.load(path)


def header(text):

    head = struct.pack("<8sIIQQ", b"VECRLCKP", 2, zlib.crc32(text), len(text), 0)
    start = -(-(len(head) + len(text)) // 64) * 64
    head = struct.pack("<8sIIQQ", b"VECRLCKP", 2, zlib.crc32(text), len(text), start)
    return head + text + bytes(start - len(head) - len(text))


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{",
        b'{"data":1}',
        b'{"data":{"$":"object","v":0},"blobs":[]}',
        b'{"data":{"$":"array","v":0},"blobs":[]}',
        b'{"data":{"$":"array","v":0},"blobs":[["O",[1],0,0,0]]}',
        b'{"data":{"$":"array","v":0},"blobs":[["<f8",[1000000000000],0,0,0]]}',
        b'{"data":{"$":"array","v":0},"blobs":[[[["x","|O"]],[0],0,0,0]]}',
        b'{"data":{"$":"tensor","v":0},"blobs":[["load",[0],0,0,0]]}',
        b'{"data":{"$":"tensor","v":0},"blobs":[["float32",[4096],0,0,0]]}',
        b'{"data":{"$":"tensor","v":0},"blobs":[["float32",[1125899906842624],0,0,0]]}',
        b'{"data":{"$":"tensor","v":0},"blobs":[["bfloat16",[-1],0,0,0]]}',
        b'{"data":{"$":"tensor","v":0},"blobs":[["quint8",[2.5],0,0,0]]}',
        b'{"data":{"$":"float","v":"__import__"},"blobs":[]}',
        b'{"data":' + b"[" * 100000 + b"]" * 100000 + b',"blobs":[]}',
        b'{"data":{"$":"dict","v":[[[1],2]]},"blobs":[]}',
    ],
)
def test_forged_headers_raise(text):
    with pytest.raises(CheckpointError, match=r"run\.ckpt (is damaged|contains)"):
        parse(header(text), "run.ckpt")


def test_a_small_file_does_not_fill_the_memory():
    """One array of a megabyte that occurs 20,000 times; 20,000 arrays that are one."""
    block = np.zeros(2**20, np.uint8)
    with pytest.raises(CheckpointError, match="arrays of here to occur 64 times or less on average"):
        parse(whole([block] * 20_000), "here")
    row = b'["|u1",[1048576],0,1048576,%d]' % zlib.crc32(block)
    text = b'{"data":1,"blobs":[' + b",".join([row] * 20_000) + b"]}"
    start = -(-(32 + len(text)) // 64) * 64
    head = struct.pack("<8sIIQQ", b"VECRLCKP", 2, zlib.crc32(text), len(text), start + len(block))
    with pytest.raises(CheckpointError, match="occur 64 times"):
        parse(head + text + bytes(start - 32 - len(text)) + block.tobytes(), "here")
    assert len(parse(whole([block] * 500), "here")) == 500


def test_a_number_is_no_content_of_a_bytearray():
    state = capture(bytearray(b"x"))
    state["nodes"][0]["value"] = 9_000_000_000
    with pytest.raises(StateError, match="Expected the bytes of a bytearray, got int"):
        restore(bytearray(b"x"), state)
