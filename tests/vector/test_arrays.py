"""Arrays between torch and NumPy. Tests with JAX are in `test_arrays_jax.py`, which has its own Python environment."""

import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from vecrl.vector.arrays import array_type, convert_from_torch, convert_to_torch, convert_to_torch_bool, reset_tensors

# ---------------------------------------------------------------- array_type


def test_array_type_knows_torch_and_numpy():
    """array_type: "torch" or "numpy"; NumPy scalars count as "numpy"."""
    assert array_type(torch.zeros(())) == "torch"
    assert array_type(np.zeros(3)) == "numpy"
    assert array_type(np.float32(1)) == "numpy"
    assert array_type(torch.zeros(1), fallback="numpy") == "torch"


def test_array_type_of_other_objects():
    """array_type: otherwise the fallback if given, else a TypeError that names the type."""
    assert array_type([1, 2], fallback="numpy") == "numpy"
    assert array_type(None, "whatever") == "whatever"
    with pytest.raises(TypeError, match="list"):
        array_type([1, 2])


def test_jax_is_not_imported_for_other_arrays():
    """Arrays: JAX is imported only if a JAX array can exist or is requested."""
    code = (
        "import sys, numpy as np, torch; from vecrl.vector import arrays as a;"
        "a.array_type(3, 'x'); a.convert_to_torch(np.ones(2)); a.convert_to_torch([1]); a.convert_to_torch_bool(1.0);"
        "a.convert_from_torch(torch.ones(2), 'numpy'); a.reset_tensors([torch.ones(2), 'x'], 0);"
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- convert_to_torch


def test_tensors_are_returned_unchanged():
    """convert_to_torch: a tensor is returned unchanged, with its gradient."""
    x = torch.ones(2, requires_grad=True)
    assert convert_to_torch(x) is x


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int8", "uint8", "uint32", "bool"])
def test_numpy_shares_memory_and_keeps_dtype(dtype):
    """convert_to_torch: a NumPy array shares memory."""
    x = np.zeros((2, 3), dtype)
    y = convert_to_torch(x)
    assert str(y.dtype) == f"torch.{dtype}"
    x[1, 2] = 1
    assert y[1, 2].item() == 1


def test_read_only_arrays_are_copied_without_a_warning():
    """convert_to_torch: read-only arrays are copied, no warning (warnings are errors here)."""
    x = np.arange(3.0)
    x.flags.writeable = False
    y = convert_to_torch(x)
    y[0] = 9
    assert x[0] == 0


@pytest.mark.parametrize(
    "x",
    [np.arange(3)[::-1], np.arange(3, dtype=">f4"), np.arange(6)[::2], np.array(2.5), np.float64(3), np.bool_(True)],
)
def test_unsupported_layouts_are_copied(x):
    """convert_to_torch: negative strides, foreign byte order, no dimensions, NumPy scalars."""
    y = convert_to_torch(x)
    assert y.shape == np.shape(x)
    np.testing.assert_array_equal(y.numpy(), x)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (3, torch.tensor(3)),
        (2.5, torch.tensor(2.5)),
        (True, torch.tensor(True)),
        ([1, 2], torch.tensor([1, 2])),
        (((1.0, 2.0),), torch.tensor([[1.0, 2.0]])),
        (range(3), torch.tensor([0, 1, 2])),
        ((i * 2 for i in range(3)), torch.tensor([0, 2, 4])),
        ({"a": 1.0, "b": 2.0}.values(), torch.tensor([1.0, 2.0])),
        ([np.ones(2), np.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)),
        ([torch.ones(2), torch.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
        ([np.float32(1), np.float32(2)], torch.tensor([1.0, 2.0])),
        ([], torch.tensor([])),
    ],
    ids=lambda value: type(value).__name__,  # equal in every test process
)
def test_iterables_and_numbers(x, expected):
    """convert_to_torch: any other iterable or number is converted like torch.as_tensor does."""
    y = convert_to_torch(x)
    assert y.dtype == expected.dtype
    assert torch.equal(y, expected)


@pytest.mark.parametrize("x", ["text", np.array(["a"]), np.array([{}])])
def test_unsupported_dtypes_raise_type_error(x):
    """convert_to_torch: values for which torch has no dtype."""
    with pytest.raises(TypeError):
        convert_to_torch(x)


# ---------------------------------------------------------------- convert_from_torch


def test_to_torch_returns_the_tensor_and_to_numpy_shares_memory():
    """convert_from_torch: "torch" returns the tensor; "numpy" is on the CPU and shares memory if possible."""
    x = torch.zeros(3)
    assert convert_from_torch(x, "torch") is x
    y = convert_from_torch(x, "numpy")
    y[1] = 5
    assert x.tolist() == [0, 5, 0]


def test_a_tensor_that_requires_grad_is_detached():
    """convert_from_torch: a tensor that requires grad is detached first."""
    x = torch.ones(2, requires_grad=True)
    np.testing.assert_array_equal(convert_from_torch(x * 2, "numpy"), [2, 2])


def test_dtypes_missing_in_numpy_are_converted():
    """convert_from_torch: bfloat16 becomes float32; conjugate views are resolved."""
    assert convert_from_torch(torch.tensor([1.5], dtype=torch.bfloat16), "numpy").dtype == np.float32
    assert convert_from_torch(torch.tensor([1 + 2j]).conj(), "numpy").tolist() == [1 - 2j]


def test_an_unknown_array_type_is_a_value_error():
    """convert_from_torch: any other array type is a ValueError."""
    with pytest.raises(ValueError, match="cupy"):
        convert_from_torch(torch.zeros(1), "cupy")


def test_missing_jax_raises_with_the_extra(monkeypatch):
    """convert_from_torch: "jax" without JAX raises with the extra to install."""
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"vecrl\[brax\]"):
        convert_from_torch(torch.zeros(1), "jax")


@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int64", "uint8", "bool"]),
)
def test_round_trip_through_numpy(shape, dtype):
    """convert_from_torch and convert_to_torch: a round trip changes neither shape nor dtype nor values."""
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    y = convert_from_torch(convert_to_torch(x), "numpy")
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    np.testing.assert_array_equal(x, y)


# ---------------------------------------------------------------- convert_to_torch_bool


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([0.0, 1.0, -1.0, 0.9e-4, 1.1e-4, -1.1e-4], [False, True, True, False, True, True]),
        (np.array([0, 1, 2, -1], np.int8), [False, True, True, True]),
        (np.array([0, 3], np.uint32), [False, True]),
        (np.array([0.0, 1.0], np.float16), [False, True]),
        (True, True),
        (0, False),
    ],
    ids=repr,
)
def test_numbers_become_bools(x, expected):
    """convert_to_torch_bool: floats by abs(x) > 1e-4, integers by non-zero; always a bool tensor."""
    y = convert_to_torch_bool(x)
    assert y.dtype == torch.bool
    assert y.tolist() == expected


def test_bools_are_returned_unchanged():
    """convert_to_torch_bool: bools are returned unchanged."""
    x = torch.tensor([True, False])
    assert convert_to_torch_bool(x) is x


# ---------------------------------------------------------------- reset_tensors

INDICES = [
    (1, [1]),
    (-1, [3]),
    ([0, 2], [0, 2]),
    ((3,), [3]),
    (range(2), [0, 1]),
    ([], []),
    (np.array([0, 3], np.int32), [0, 3]),
    (np.int64(2), [2]),
    (torch.tensor([1, 2]), [1, 2]),
    (torch.tensor(2), [2]),
    ([True, False, False, True], [0, 3]),
    (np.array([False, True, False, False]), [1]),
    (torch.tensor([False] * 4), []),
]


@pytest.mark.parametrize(("indices", "rows"), INDICES, ids=repr)
def test_reset_zeroes_the_rows_in_place(indices, rows):
    """reset_tensors: indices is an int, ints or a bool mask (sequence, array or tensor)."""
    x = torch.ones(4, 2)
    flags = torch.ones(4, dtype=torch.bool)
    assert reset_tensors([x, flags], indices) is None
    expected = [0 if i in rows else 1 for i in range(4)]
    assert x[:, 0].tolist() == x[:, 1].tolist() == flags.int().tolist() == expected


@given(mask=st.lists(st.booleans(), min_size=1, max_size=8))
def test_masks_and_indices_are_equivalent(mask):
    """reset_tensors: a mask selects the rows where it is true."""
    by_mask = torch.rand(len(mask), 2)
    by_rows = by_mask.clone()
    reset_tensors(by_mask, mask)
    reset_tensors(by_rows, [i for i, chosen in enumerate(mask) if chosen])
    assert torch.equal(by_mask, by_rows)


def test_reset_changes_mappings_and_iterables_only():
    """reset_tensors: walks nested mappings and iterables; str, bytes, bytearray and other types are not changed."""
    pair = namedtuple("pair", "h c")
    tensors = [torch.ones(2, 3) for _ in range(5)]
    array, text, raw = np.ones(2), "ab", bytearray(b"ab")
    nest = {
        "a": tensors[0],
        "b": [tensors[1], pair(tensors[2], (tensors[3], text))],
        "c": (t for t in [tensors[4]]),
        "d": [array, raw, b"ab", None, 7, object()],
    }
    reset_tensors(nest, 1)
    assert all(t.sum(1).tolist() == [3, 0] for t in tensors)
    assert array.tolist() == [1, 1]
    assert raw == bytearray(b"ab")
    assert text == "ab"


def test_reset_counts_tensordicts_as_mappings():
    """reset_tensors: TensorDicts count as mappings, whatever their batch size; non-tensor data are not changed."""
    td = TensorDict(a=torch.ones(3, 2), b=TensorDict(c=torch.ones(3)), n=NonTensorData("text"))
    reset_tensors(td, [0, 2])
    assert td["a"][:, 0].tolist() == td["b", "c"].tolist() == [0, 1, 0]
    assert td["n"] == "text"


@pytest.mark.parametrize("indices", [[0, 2], torch.tensor([True, False, True])], ids=repr)
@pytest.mark.parametrize("stack_dim", [0, 1])
def test_reset_reaches_lazily_stacked_tensordicts(stack_dim, indices):
    """reset_tensors: a lazily stacked TensorDict is written through to its parts."""
    parts = [TensorDict(a=torch.ones(3), n=NonTensorData("text"), batch_size=[3]) for _ in range(3)]
    td = LazyStackedTensorDict(*parts, stack_dim=stack_dim)
    reset_tensors({"td": td}, indices)
    assert td["a"].tolist() == [[0] * 3, [1] * 3, [0] * 3]


def test_reset_of_tensors_that_require_grad():
    """reset_tensors: writes in place and is not recorded by autograd."""
    x = torch.ones(2, requires_grad=True)
    reset_tensors(x, 0)
    assert x.tolist() == [0, 1]
    assert x.grad_fn is None


@pytest.mark.parametrize("indices", [5, [True, False]], ids=repr)
def test_reset_of_missing_rows_raises(indices):
    """reset_tensors: a missing row or a mask of another length is an IndexError."""
    with pytest.raises(IndexError):
        reset_tensors(torch.ones(3), indices)
