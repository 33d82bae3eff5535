"""Readers that write entries of info dicts into TensorDicts. This module must not know environments and libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..errors import SpaceError
from ..specs import Composite, TensorSpec, Unbounded
from .keys import FLAGS, Key, key_path

Info = Mapping[str, Any]


class BaseInfoDictReader:
    """Base class of readers that write infos into TensorDicts. A subclass defines `__call__` and `info_spec`."""

    def __call__(self, info_dict: Info, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes entries of `info_dict` into `tensordict` and returns it."""
        raise NotImplementedError(f"{type(self).__name__} has no __call__.")

    @property
    def info_spec(self) -> Composite:
        """The specs of the entries that it writes, without batch dimensions."""
        raise NotImplementedError(f"{type(self).__name__} has no info_spec.")


class default_info_dict_reader(BaseInfoDictReader):
    """Reads info entries under their own keys. An entry that an info lacks is read as zeros.

    Args:
        keys: the keys to read: strings, or tuples of strings for nested dicts. By default the keys of `spec`, or all
            keys of the first info.
        spec: the specs of the entries, to which values are converted: a mapping or `Composite`, or a sequence in the
            order of `keys`. The default is a number (`Unbounded` with shape () and the default float dtype).
        ignore_private: skip keys that begin with "_", unless `keys` contains them.

    Raises:
        SpaceError: if the numbers of keys and specs differ, or an info entry is not numeric or has the wrong shape.

    >>> from tensordict import TensorDict
    >>> reader = default_info_dict_reader(["lives"])
    >>> reader({"lives": 3, "frame": 20}, TensorDict({}))["lives"]
    tensor(3.)
    """

    def __init__(
        self,
        keys: Sequence[Key] | None = None,
        spec: Mapping[Any, TensorSpec] | Sequence[TensorSpec] | Composite | None = None,
        ignore_private: bool = True,
    ):
        self.ignore_private = ignore_private
        self.keys: list[Key] | None = None if keys is None else list(keys)
        self._specs: dict[Key, TensorSpec] = {}
        if isinstance(spec, Composite):
            spec = {
                key: leaf_spec
                for key, leaf_spec in spec.items(include_nested=True, leaves_only=True)
                if leaf_spec is not None
            }
        if isinstance(spec, Mapping):
            self._specs.update(spec)
        elif spec is not None:
            if self.keys is None or len(spec) != len(self.keys):
                raise SpaceError(f"Expected a spec for each of keys={keys}, got {len(spec)} specs.")
            self._specs.update(zip(self.keys, spec, strict=True))
        if self.keys is None and spec is not None:
            self.keys = list(self._specs)
        for key in self.keys or ():
            self._specs.setdefault(key, Unbounded(()))

    @property
    def info_spec(self) -> Composite:
        """The specs of the entries that it writes; empty until the keys are known."""
        return Composite(self._specs)

    def __call__(self, info_dict: Info, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the entries into `tensordict` and returns it; their shapes start with its batch size."""
        if self.keys is None:
            self._specs = specs_of(info_dict, self.ignore_private, tensordict.batch_dims)
            check_key_conflicts(self._specs, [*tensordict.keys(True, True), "action", "reward", *FLAGS])
            self.keys = list(self._specs)
        batch = tensordict.batch_size
        for key in self.keys:
            spec = self._specs[key]
            value = _lookup(info_dict, key)
            tensordict.set(key, _to_tensor(value, key, spec, batch))
        return tensordict


def check_key_conflicts(keys: Iterable[Key], existing_keys: Iterable[Key]) -> None:
    """Raises a `SpaceError` if an info key equals, contains or is inside a key of the environment."""
    taken_paths = [key if isinstance(key, tuple) else (key,) for key in (*existing_keys, "next")]
    for key in keys:
        path = key if isinstance(key, tuple) else (key,)
        if any(path[: len(taken_path)] == taken_path or taken_path[: len(path)] == path for taken_path in taken_paths):
            raise SpaceError(
                f"Expected info keys that the environment does not use, got {key!r}. Name the keys to read, without "
                "it: env.set_info_dict_reader(default_info_dict_reader([...]))."
            )


def specs_of(info: Info, ignore_private: bool = True, batch_dims: int = 0) -> dict[Key, TensorSpec]:
    """Returns the specs of an info's entries that are not None, without the first `batch_dims` dimensions.

    Arrays, tensors and numbers of NumPy keep their dtypes. Floats of Python have torch's default dtype.

    Raises:
        SpaceError: if an entry is neither a number nor an array of numbers.

    >>> specs_of({"x": 1.0, "_x": True, "deep": {"y": [1, 2]}})[("deep", "y")].shape
    torch.Size([2])
    """
    specs: dict[Key, TensorSpec] = {}
    for key, value in _entries(info, ignore_private):
        if value is None:
            continue
        try:
            array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
            tensor = torch.from_numpy(np.array(array, copy=True)) if array.dtype.kind in "biuf" else None
        except ValueError:  # a ragged list
            tensor = None
        if tensor is None:
            raise SpaceError(
                f"Expected info entries to be numbers or arrays of numbers, got {value!r:.80} at {key!r}. Name the "
                "keys to read: env.set_info_dict_reader(default_info_dict_reader([...]))."
            )
        dtype = torch.get_default_dtype() if type(value) is float else tensor.dtype  # np.float64 derives from float
        device = value.device if isinstance(value, Tensor) else None
        specs[key] = Unbounded(tensor.shape[batch_dims:], device, dtype)
    return specs


def _entries(info: Info, ignore_private: bool, prefix: tuple[str, ...] = ()) -> Iterator[tuple[Key, object]]:
    for name, value in info.items():
        if ignore_private and str(name).startswith("_"):
            continue
        path = (*prefix, str(name))
        if isinstance(value, Mapping):
            yield from _entries(value, ignore_private, path)
        else:
            yield path if prefix else path[0], value


def _lookup(info: Info, key: Key) -> object:
    value: Any = info
    for name in key_path(key):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _to_tensor(value: object, key: Key, spec: TensorSpec, batch: torch.Size) -> Tensor:
    shape = (*batch, *spec.shape)
    if value is None:
        return torch.zeros(shape, dtype=spec.dtype, device=spec.device)
    if isinstance(value, np.ndarray) and value.dtype == object:  # some rows are None
        zeros = np.zeros(tuple(spec.shape))
        value = np.stack([zeros if row is None else np.asarray(row) for row in value])
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"Expected numbers at info {key!r}, got {value!r:.80}. Remove it from the keys.") from error
    tensor = tensor.to(device=spec.device, dtype=spec.dtype)
    if tensor.numel() != torch.Size(shape).numel():
        value_shape = tuple(tensor.shape[len(batch) :])
        raise SpaceError(
            f"Expected shape {tuple(shape)} at info {key!r}, got {tuple(tensor.shape)}. Give its spec: "
            f"default_info_dict_reader([{key!r}], spec={{{key!r}: Unbounded({value_shape})}})."
        )
    return tensor.reshape(shape)
