"""Converts arrays between torch, NumPy and JAX, shares memory where possible, and copies trees of arrays to devices.

Simulators use one of these three array types and policies use torch. JAX is used only if it has already been imported
or is named by an argument, so that other programs do not import it.

Shared memory is shared in both directions. Writing to a tensor over a JAX array changes an array that JAX assumes to
be immutable, and the reverse holds too: clone before writing in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ..engine.space_layout import Tree
from ..errors import SpaceError
from ..imports import import_library


def array_type(x: Any, fallback: str | None = None) -> str:
    """Returns the library that an array belongs to: `"jax"`, `"torch"` or `"numpy"` (NumPy scalars included).

    Args:
        x: any object.
        fallback: the result if `x` belongs to none of the three.

    Raises:
        TypeError: `x` belongs to none of the three and there is no fallback.

    >>> array_type(torch.zeros(2)), array_type(np.zeros(2)), array_type([0, 0], "numpy")
    ('torch', 'numpy', 'numpy')
    """
    if isinstance(x, torch.Tensor):
        return "torch"
    if isinstance(x, np.ndarray | np.generic):
        return "numpy"
    if _is_jax(x):
        return "jax"
    if fallback is None:
        raise TypeError(f"Expected a torch tensor, a NumPy array or a JAX array, got {type(x).__qualname__}.")
    return fallback


def convert_to_torch(x: Any) -> torch.Tensor:
    """Converts `x` to a tensor of the same values and shape, and of the same dtype if torch has it.

    Args:
        x: a tensor (returned unchanged); a JAX array (memory is shared through DLPack, on its device);
            a NumPy array (memory is shared; copied only if it is read-only or torch does not support its layout);
            a number; or an iterable of numbers or of arrays of one shape.

    Raises:
        SpaceError: (a `TypeError`) torch has no dtype for the values, for example None or JAX's typed PRNG keys.

    >>> convert_to_torch(np.array([1, 2]))
    tensor([1, 2])
    >>> convert_to_torch(range(3))
    tensor([0, 1, 2])
    """
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, np.ndarray):
        return _from_numpy(x)
    if _is_jax(x):
        return _from_jax(x)
    return _from_plain(x)


def convert_from_torch(x: torch.Tensor, array_type: str) -> Any:
    """Converts the tensor `x` to an array of another library, detached from autograd.

    Args:
        x: a tensor on any device.
        array_type: `"torch"` returns `x` itself. `"numpy"` returns an array on the CPU, which shares memory with a
            CPU tensor (bfloat16, which NumPy lacks, becomes float32). `"jax"` returns an array on the same device if
            JAX supports it, else on JAX's default device; memory is shared through DLPack if the tensor is dense and
            aligned, and 64-bit dtypes become 32-bit ones unless JAX is set to 64 bits.

    Raises:
        ValueError: `array_type` is none of the three.
        VersionError: (an ImportError) `array_type` is `"jax"`, and JAX is not installed.

    >>> convert_from_torch(torch.tensor([1.0, 2.0], requires_grad=True), "numpy")
    array([1., 2.], dtype=float32)
    """
    if array_type == "torch":
        return x
    if not isinstance(x, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected x to be a tensor, got {x!r:.80}.")
    if array_type == "numpy":
        x = x.detach().cpu().resolve_conj().resolve_neg()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    if array_type == "jax":
        return _to_jax(x.detach().resolve_conj().resolve_neg())
    raise ValueError(f"Expected array_type to be 'torch', 'numpy' or 'jax', got {array_type!r}.")


def convert_to_torch_bool(x: Any) -> torch.Tensor:
    """Converts `x` to a bool tensor of its shape.

    Args:
        x: what `convert_to_torch` takes. Floats are true where `abs(x) > 1e-4` (simulators on accelerators
            store flags as floats), integers where they are not zero; bools are returned unchanged.

    >>> convert_to_torch_bool([0.0, 1e-5, -1.0])
    tensor([False, False,  True])
    """
    x = convert_to_torch(x)
    if x.dtype == torch.bool:
        return x
    if x.is_floating_point() or x.is_complex():
        return x.abs() > 1e-4
    return x.to(torch.bool)


def reset_tensors(x: Any, indices: object) -> None:
    """Sets rows of tensors to zero, in place.

    Args:
        x: a tensor with rows along its first axis, or any nesting of mappings (also TensorDicts) and
            iterables of tensors. Strings, bytes and other objects in it are not changed.
        indices: one row, several rows, or a bool mask over all rows: a number, a sequence, an array or a tensor.

    Raises:
        IndexError: a row does not exist, or the mask has another length.

    >>> h = torch.ones(3, 2)
    >>> reset_tensors({"h": [h]}, [True, False, True])
    >>> h
    tensor([[0., 0.],
            [1., 1.],
            [0., 0.]])
    """
    rows = convert_to_torch(indices)
    if rows.dtype != torch.bool:
        rows = rows.long()  # an empty list becomes a float tensor; indices of JAX and NumPy have any integer dtype
    with torch.no_grad():
        try:
            _zero_rows(x, rows)
        except IndexError as error:
            raise IndexError(
                f"Expected indices of rows, or a mask over all rows, got {indices!r:.80}: {error}"
            ) from error


def _zero_rows(x: Any, rows: torch.Tensor) -> None:
    if isinstance(x, torch.Tensor):
        x[rows.to(x.device)] = 0
    elif _is_tensordict(x):
        _zero_tensordict_rows(x, rows)
    elif isinstance(x, Mapping):
        _zero_rows(x.values(), rows)
    elif isinstance(x, Iterable) and not (isinstance(x, str | bytes | bytearray | np.ndarray) or _is_jax(x)):
        for item in x:
            _zero_rows(item, rows)


def _zero_tensordict_rows(x: Any, rows: torch.Tensor) -> None:
    """Zeroes rows of a TensorDict. A lazy stack returns copies, so this writes to the TensorDicts in the stack."""
    if sys.modules["tensordict"].is_non_tensor(x):
        return
    if not hasattr(x, "tensordicts"):
        _zero_rows(list(x.values()), rows)
    elif x.stack_dim > 0:
        _zero_rows(list(x.tensordicts), rows)
    else:
        chosen = torch.arange(len(x.tensordicts))[rows.cpu()]
        for i in chosen.reshape(-1).tolist():
            for leaf in x.tensordicts[i].values(True, True):
                if isinstance(leaf, torch.Tensor):
                    leaf.zero_()


def _is_tensordict(x: object) -> bool:
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and tensordict.is_tensor_collection(x)


def _is_jax(x: object) -> bool:
    kind = getattr(sys.modules.get("jax"), "Array", None)
    return kind is not None and isinstance(x, kind)


def _from_jax(x: Any) -> torch.Tensor:
    import jax

    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise SpaceError(f"Expected a dtype that torch has, got JAX's {x.dtype}. Pass jax.random.key_data(key).")
    try:
        return torch.from_dlpack(x)
    except (RuntimeError, BufferError):  # torch cannot read this device or sharding: copy through the host
        return _from_numpy(np.asarray(x))


def _to_jax(x: torch.Tensor) -> Any:
    jax = import_library("jax", 'Expected JAX to make JAX arrays, got none. Install it: pip install "vecrl[brax]"')
    if x.device.type != "cpu" and jax.default_backend() == "cpu":
        x = x.cpu()
    return jax.dlpack.from_dlpack(x.contiguous())  # from_dlpack rejects gaps and repeated strides


def _from_numpy(x: np.ndarray) -> torch.Tensor:
    if x.dtype.kind == "V" and x.dtype.name == "bfloat16":  # of ml_dtypes, in which JAX converts bfloat16 to NumPy
        return _from_numpy(x.view(np.uint16)).view(torch.bfloat16)
    if not x.flags.writeable:
        x = x.copy()
    try:
        return torch.from_numpy(x)
    except ValueError:  # negative strides, foreign byte order
        return torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))
    except TypeError as error:  # no dtype of torch
        raise _not_numbers(x.item() if x.ndim == 0 else f"an array of dtype {x.dtype}") from error


def _from_plain(x: Any) -> torch.Tensor:
    if isinstance(x, Iterable) and not isinstance(x, str | bytes | bytearray | memoryview | np.generic):
        x = list(x)
        if any(isinstance(item, torch.Tensor | np.ndarray) or _is_jax(item) for item in x):
            return torch.stack([convert_to_torch(item) for item in x])
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_numbers(repr(x)) from error


def _not_numbers(found: object) -> SpaceError:
    return SpaceError(f"Expected numbers: a tensor, an array, a number or sequences of these, got {found!s:.80}.")


_ALIGN = 64  # bytes: enough for every dtype and for vectorized loads


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Returns `tree` with every numeric array converted to a tensor on `device`.

    Args:
        tree: arrays nested in dicts, tuples and one-dimensional object arrays. Other values are not changed.
        device: the target. CPU tensors share the arrays' memory; for other devices all arrays are copied in one
            transfer.

    >>> to_device({"x": np.zeros(2), "name": ["a", None]}, torch.device("cpu"))
    {'x': tensor([0., 0.], dtype=torch.float64), 'name': ['a', None]}
    """
    if device.type == "cpu":
        return _map(tree, convert_to_torch)
    arrays: list[np.ndarray] = []
    _map(tree, arrays.append)
    tensors = iter(copy_to_device(arrays, device))
    return _map(tree, lambda _: next(tensors))


def copy_to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Copies `arrays` to `device` as one block, and returns one tensor per array, each a view of that block."""
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in arrays)]).tolist()
    staging_buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    staging_bytes = staging_buffer.numpy()
    for start, array in zip(starts, arrays, strict=False):
        staging_bytes[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # torch reuses pinned memory only after the copy has finished, so this function need not wait for the copy.
    block = staging_buffer.to(device, non_blocking=True)
    dtypes = [torch.from_numpy(np.empty(0, array.dtype)).dtype for array in arrays]
    return [
        block[start : start + array.nbytes].view(dtype).view(array.shape)
        for start, array, dtype in zip(starts, arrays, dtypes, strict=False)
    ]


def _map(tree: Tree, convert: Callable[[np.ndarray], object]) -> Tree:
    """Returns `tree` with `convert` applied to its numeric arrays, always in the same order."""
    if isinstance(tree, dict):
        return {key: _map(value, convert) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map(value, convert) for value in tree)
    if not isinstance(tree, np.ndarray):
        return tree
    if tree.dtype == object:
        converted = np.full(tree.shape, None, object)
        for index, value in enumerate(tree):
            converted[index] = _map(value, convert)
        return converted
    return convert(tree) if _has_torch_dtype(tree.dtype) else tree


@lru_cache
def _has_torch_dtype(dtype: np.dtype[np.generic]) -> bool:
    """Returns whether torch has this dtype; it has no text, no times and no foreign byte order."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True
